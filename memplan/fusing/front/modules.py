"""Modules of torch.nn as calls of functions, their weights by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memplan.fusing.front.context import LeftAloneError
from memplan.fusing.front.trace import Method, has_hooks
from memplan.fusing.front.windows import same_padding
from memplan.graph.program import Op, key_of

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def functional(op: Op) -> Call:
    """The function's name that an operator calls, without namespace and overload, its
    arguments and keyword arguments; names of weights stand as text.

    Raises LeftAloneError for modules that do more than their forward.
    """
    import torch

    module = op.target
    if not isinstance(module, torch.nn.Module):
        return _name(op), op.args, dict(op.kwargs)
    name = type(module).__name__
    rule = MODULES.get(name)
    if rule is None or getattr(torch.nn, name, None) is not type(module):
        raise LeftAloneError(f"{name} is none of the layers that are fused")
    if has_hooks(module):
        raise LeftAloneError("it has hooks")
    if "forward" in vars(module):
        raise LeftAloneError("its forward was replaced")
    if len(op.args) != 1 or op.kwargs:
        raise LeftAloneError("its arguments are unusual")
    key, rest = rule(module, op.line)
    return key, (*op.args, *rest), {}


def _name(op: Op) -> str:
    """The name of one of torch's functions; other functions may have the same names."""
    import operator

    import torch

    name = key_of(op.target).rpartition(".")[2]
    if hasattr(op.target, "overloadpacket"):
        if not op.key.startswith("aten."):
            raise LeftAloneError(f"{op.key} is none of the layers that are fused")
    elif not isinstance(op.target, Method) and not any(
        getattr(room, name, None) is op.target
        for room in (torch, torch.nn.functional, torch._C._nn, operator)
    ):
        raise LeftAloneError(f"{name} is none of torch's functions")
    if "out" in op.kwargs:
        raise LeftAloneError("its result goes where it is told to")
    return name


def _convolution(module: Any, path: str) -> tuple[str, tuple[Any, ...]]:
    if module.padding_mode != "zeros":
        raise LeftAloneError(f"it pads with {module.padding_mode}")
    bias = None if module.bias is None else f"{path}.bias"
    padding = module.padding
    if padding == "same":
        padding = same_padding(module.kernel_size, module.dilation)
    numbers = module.stride, padding, module.dilation, module.groups
    return "conv2d", (f"{path}.weight", bias, *numbers)


def _linear(module: Any, path: str) -> tuple[str, tuple[Any, ...]]:
    return "linear", (
        f"{path}.weight",
        None if module.bias is None else f"{path}.bias",
    )


def _batch_norm(module: Any, path: str) -> tuple[str, tuple[Any, ...]]:
    if module.running_mean is None:
        raise LeftAloneError("it has no running statistics")
    if module.training:
        raise LeftAloneError("it is in training mode")
    affine = [
        None if getattr(module, name) is None else f"{path}.{name}"
        for name in ("weight", "bias")
    ]
    statistics = f"{path}.running_mean", f"{path}.running_var"
    return "batch_norm", (*statistics, *affine, False, 0.0, module.eps)


def _max_pool(module: Any, _: str) -> tuple[str, tuple[Any, ...]]:
    return "max_pool2d", (
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        module.ceil_mode,
        module.return_indices,
    )


def _avg_pool(module: Any, _: str) -> tuple[str, tuple[Any, ...]]:
    return "avg_pool2d", (
        module.kernel_size,
        module.stride,
        module.padding,
        module.ceil_mode,
        module.count_include_pad,
        module.divisor_override,
    )


def _attributes(key: str, *names: str) -> Callable[[Any, str], Any]:
    """A module as a call of `key` with some of its attributes."""
    return lambda module, _: (key, tuple(getattr(module, name) for name in names))


MODULES: dict[str, Callable[[Any, str], tuple[str, tuple[Any, ...]]]] = {
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
    "ReLU": _attributes("relu"),
    "ReLU6": _attributes("relu6"),
    "Hardtanh": _attributes("hardtanh", "min_val", "max_val"),
    "LeakyReLU": _attributes("leaky_relu", "negative_slope"),
    "ELU": _attributes("elu", "alpha"),
    "Sigmoid": _attributes("sigmoid"),
    "Tanh": _attributes("tanh"),
    "SiLU": _attributes("silu"),
    "GELU": lambda module, _: ("gelu", (module.approximate,)),
    "Mish": _attributes("mish"),
    "Softplus": _attributes("softplus", "beta", "threshold"),
    "Hardswish": _attributes("hardswish"),
    "Hardsigmoid": _attributes("hardsigmoid"),
}
