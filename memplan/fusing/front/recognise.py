"""Which layer each operator of a program is, and which modules are worth fusing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from memplan.errors import UsageError
from memplan.fusing.front.capture import Method, NotTraceableError, trace
from memplan.fusing.front.rules import (
    FUNCTIONS,
    Context,
    UnsupportedError,
    same_padding,
)
from memplan.fusing.layers import Layer, Network
from memplan.fusing.operators import OPERATORS
from memplan.graph.program import Op, Program, Ref, key_of
from memplan.graph.weights import has_hooks

Call = tuple[str, tuple[Any, ...], dict[str, Any]]
Positional = tuple[str, tuple[object, ...]]


def functional(op: Op) -> Call:
    """The function's name that an operator calls, without namespace and overload, its
    arguments and keyword arguments; names of weights stand as text.

    Raises UnsupportedError for modules that do more than their forward.
    """
    module = op.target
    if not isinstance(module, torch.nn.Module):
        return _name(op), op.args, dict(op.kwargs)
    name = type(module).__name__
    rule = MODULES.get(name)
    if rule is None or getattr(torch.nn, name, None) is not type(module):
        raise UnsupportedError(f"{name} is not a supported layer")
    if has_hooks(module):
        raise UnsupportedError("it has hooks")
    if "forward" in vars(module):
        raise UnsupportedError("its forward was replaced")
    if len(op.args) != 1 or op.kwargs:
        raise UnsupportedError("it has unsupported arguments")
    key, rest = rule(module, op.line)
    return key, (*op.args, *rest), {}


def _name(op: Op) -> str:
    """The name of one of torch's functions; other functions may have the same names."""
    import operator

    name = key_of(op.target).rpartition(".")[2]
    if hasattr(op.target, "overloadpacket"):
        if not op.key.startswith("aten."):
            raise UnsupportedError(f"{op.key} is not a supported layer")
    elif not isinstance(op.target, Method) and not any(
        getattr(room, name, None) is op.target
        for room in (torch, torch.nn.functional, torch._C._nn, operator)
    ):
        raise UnsupportedError(f"{name} is not one of torch's functions")
    if "out" in op.kwargs:
        raise UnsupportedError("it writes to an out= tensor")
    return name


def _convolution(module: torch.nn.Module, path: str) -> Positional:
    if module.padding_mode != "zeros":
        raise UnsupportedError(f"its padding mode is {module.padding_mode}")
    bias = None if module.bias is None else f"{path}.bias"
    padding = module.padding
    if padding == "same":
        padding = same_padding(module.kernel_size, module.dilation)
    numbers = module.stride, padding, module.dilation, module.groups
    return "conv2d", (f"{path}.weight", bias, *numbers)


def _linear(module: torch.nn.Module, path: str) -> Positional:
    return "linear", (
        f"{path}.weight",
        None if module.bias is None else f"{path}.bias",
    )


def _batch_norm(module: torch.nn.Module, path: str) -> Positional:
    if module.running_mean is None:
        raise UnsupportedError("it has no running statistics")
    if module.training:
        raise UnsupportedError("it is in training mode")
    affine = [
        None if getattr(module, name) is None else f"{path}.{name}"
        for name in ("weight", "bias")
    ]
    statistics = f"{path}.running_mean", f"{path}.running_var"
    return "batch_norm", (*statistics, *affine, False, 0.0, module.eps)


def _max_pool(module: torch.nn.Module, _: str) -> Positional:
    return "max_pool2d", (
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        module.ceil_mode,
        module.return_indices,
    )


def _avg_pool(module: torch.nn.Module, _: str) -> Positional:
    return "avg_pool2d", (
        module.kernel_size,
        module.stride,
        module.padding,
        module.ceil_mode,
        module.count_include_pad,
        module.divisor_override,
    )


def _attributes(key: str, *names: str) -> Callable[[torch.nn.Module, str], Positional]:
    """A module as a call of `key` with some of its attributes."""
    return lambda module, _: (key, tuple(getattr(module, name) for name in names))


MODULES: dict[str, Callable[[torch.nn.Module, str], Positional]] = {
    "Conv2d": _convolution,
    "Linear": _linear,
    "BatchNorm2d": _batch_norm,
    "MaxPool2d": _max_pool,
    "AvgPool2d": _avg_pool,
    "AdaptiveAvgPool2d": _attributes("adaptive_avg_pool2d", "output_size"),
    "ZeroPad2d": _attributes("pad", "padding"),
    "ConstantPad2d": lambda module, _: (
        "pad",
        (module.padding, "constant", module.value),
    ),
    "Identity": lambda module, _: ("identity", ()),
    "Dropout": lambda module, _: ("dropout", (module.p, module.training)),
    "Dropout2d": lambda module, _: ("dropout", (module.p, module.training)),
    "ReLU6": _attributes("relu6"),
    "Hardtanh": _attributes("hardtanh", "min_val", "max_val"),
    "GELU": lambda module, _: ("gelu", (module.approximate,)),
}
MODULES.update(
    (operator.module, _attributes(kind, *operator.numbers))
    for kind, operator in OPERATORS.items()
    if operator.module
)


def recognise(program: Program) -> Network:
    """The layers of a program whose metas are known."""
    context = Context(program)
    layers = [_layer(op, program, context) for op in program.ops]  # type: ignore[arg-type]
    metas = {name: meta for name, meta in program.metas.items() if meta is not None}
    return Network(
        list(program.inputs),
        dict(program.constants),
        layers,
        program.outputs,
        {name: meta.shape for name, meta in metas.items()},
        {name: meta.dtype for name, meta in metas.items()},
        {name: meta.strides for name, meta in metas.items()},
    )


def _layer(op: Op, program: Program, context: Context) -> Layer:
    meta = program.metas.get(op.name)
    shape = () if meta is None else meta.shape
    layer = Layer(op.name, "call", op.operands(), op, shape)
    try:
        key, args, kwargs = functional(op)
        rule = FUNCTIONS.get(key)
        if rule is None:
            raise UnsupportedError(f"{key} is not a supported layer")
        if meta is None or not meta.dtype.is_floating_point:
            raise UnsupportedError("its result is not a floating-point tensor")
        if not meta.device.startswith(("cpu", "cuda")):
            raise UnsupportedError(f"it runs on {meta.device}")
        _check_dtype(meta.dtype)
        rule(layer, context, *args, **kwargs)
        if any(context.dtype(Ref(name)) != meta.dtype for name in layer.inputs):
            raise UnsupportedError("its operands and result have different types")
    except UnsupportedError as error:
        _leave(layer, str(error))
    except (TypeError, UsageError):
        _leave(layer, "it has unsupported arguments")
    return layer


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in (torch.float32, torch.bfloat16):
        raise UnsupportedError(f"its type is {str(dtype).removeprefix('torch.')}")


def _leave(layer: Layer, reason: str) -> None:
    """Mark a layer as run by torch."""
    layer.kind, layer.reason, layer.inputs = "call", reason, layer.op.operands()
    layer.convolution = layer.operation = layer.norm = None


FEWEST = 2  # layers that are worth a part


def mirrored(
    model: torch.nn.Module, fused: Callable[[torch.nn.Module], torch.nn.Module]
) -> tuple[torch.nn.Module, list[str]]:
    """A copy of `model`'s tree of modules in which the largest that can be traced are
    what `fused` makes of them, and their paths; the tensors are the model's own.

    A module without such parts is in the copy as it is, and so is one with hooks.
    """
    paths: list[str] = []
    return _descend(model, fused, "", paths), paths


def _descend(
    module: torch.nn.Module,
    fused: Callable[[torch.nn.Module], torch.nn.Module],
    path: str,
    paths: list[str],
) -> torch.nn.Module:
    changed: dict[str, torch.nn.Module] = {}
    for name, child in module._modules.items():
        if child is None:
            continue
        here = f"{path}.{name}" if path else name
        if has_hooks(child):
            continue  # they are given the module itself
        if is_worth_fusing(child):
            changed[name] = fused(child)
            paths.append(here)
        else:
            other = _descend(child, fused, here, paths)
            if other is not child:
                changed[name] = other
    if not changed:
        return module
    mirror = copy.copy(module)
    mirror._modules = type(module._modules)({**module._modules, **changed})
    return mirror


def is_worth_fusing(module: torch.nn.Module) -> bool:
    """Whether a module has several supported layers and can be traced."""
    known = [each for each in module.modules() if type(each).__name__ in MODULES]
    if len(known) < FEWEST:
        return False
    try:
        trace(module, {})
    except NotTraceableError:
        return False
    return True
