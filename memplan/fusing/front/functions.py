"""Rules: what a call of a function is as a layer. One rule a function.

Functions go by the name that torch, torch.nn.functional, methods of tensors and ATen
share; where their arguments differ, the rule tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from memplan.fusing.front.context import Context, LeftAloneError
from memplan.fusing.layers import Convolution, Layer, Norm
from memplan.fusing.operations import Operation, Pool
from memplan.graph.program import Ref

Rule = Callable[..., None]


def pair(value: Any) -> tuple[int, int]:
    """A number for both of (height, width), or both."""
    if isinstance(value, int):
        return value, value
    values = tuple(value)
    if len(values) == 1:
        values *= 2
    if len(values) != 2 or not all(isinstance(each, int) for each in values):
        raise LeftAloneError("its sizes follow from data")
    return values


def _planes(context: Context, value: Any) -> tuple[int, int, int, int]:
    """The shape (n, c, h, w). Raises LeftAloneError for values of another rank."""
    shape = context.shape(value)
    if shape is None or len(shape) != 4 or 0 in shape:
        raise LeftAloneError("its input has no planes, (n, c, h, w)")
    return shape


def _operation(layer: Layer, operation: Operation, *inputs: Ref) -> None:
    layer.kind, layer.operation = "operation", operation
    layer.inputs = [each.name for each in inputs]


def _elementwise(kind: str, *numbers: float) -> Rule:
    def rule(layer: Layer, context: Context, x: Any, **_: Any) -> None:
        _planes(context, x)
        _operation(layer, Operation(kind, numbers), x)

    return rule


def _with_numbers(kind: str, *defaults: float) -> Rule:
    """An operation whose arguments behind the value are its numbers."""

    def rule(layer: Layer, context: Context, x: Any, *given: Any, **named: Any) -> None:
        _planes(context, x)
        named.pop("inplace", None)
        if len(given) == len(defaults) + 1 and given[-1] is False:
            given = given[:-1]  # inplace
        numbers = (*given, *named.values(), *defaults[len(given) + len(named) :])
        if len(numbers) != len(defaults) or not all(map(_is_number, numbers)):
            raise LeftAloneError("its arguments are unusual")
        _operation(layer, Operation(kind, tuple(map(float, numbers))), x)

    return rule


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)


def clamp(
    layer: Layer, context: Context, x: Any, min: Any = None, max: Any = None, **_: Any
) -> None:
    _planes(context, x)
    low = -math.inf if min is None else min
    high = math.inf if max is None else max
    if not _is_number(low) or not _is_number(high):
        raise LeftAloneError("its bounds are tensors")
    _operation(layer, Operation("clamp", (float(low), float(high))), x)


def hardtanh(
    layer: Layer,
    context: Context,
    x: Any,
    min_val: float = -1.0,
    max_val: float = 1.0,
    inplace: bool = False,
) -> None:
    clamp(layer, context, x, min_val, max_val)


def gelu(layer: Layer, context: Context, x: Any, approximate: str = "none") -> None:
    _planes(context, x)
    kind = "gelu" if approximate == "none" else "gelu_tanh"
    _operation(layer, Operation(kind), x)


def prelu(layer: Layer, context: Context, x: Any, weight: Any) -> None:
    raise LeftAloneError("prelu is left to torch")


def binary(kind: str, number: str) -> Rule:
    """Addition and its like: of two tensors of one shape, or of one and a number."""

    def rule(
        layer: Layer, context: Context, x: Any, y: Any, alpha: Any = 1, **_: Any
    ) -> None:
        if alpha != 1:
            raise LeftAloneError("one of its operands is scaled")
        if kind in ("add", "mul") and not isinstance(x, Ref):
            x, y = y, x
        shape = _planes(context, x)
        if _is_number(y):
            value = -float(y) if kind == "sub" else float(y)
            _operation(layer, Operation(number, (value,)), x)
            return
        if context.dtype(x) != context.dtype(y):
            raise LeftAloneError("its operands have two types")
        other = context.shape(y)
        if kind == "mul" and shape[2:] == (1, 1) != (other or ())[2:]:
            x, y, shape, other = y, x, other, shape
        if other == shape:
            _operation(layer, Operation(kind), x, y)
        elif kind == "mul" and other == (*(shape or ())[:2], 1, 1):
            _operation(layer, Operation("gate"), x, y)
        else:
            raise LeftAloneError("its operands have two shapes")

    return rule


def identity(layer: Layer, context: Context, x: Any, *_: Any, **__: Any) -> None:
    layer.kind, layer.inputs = "same", [x.name]


def dropout(
    layer: Layer,
    context: Context,
    x: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> None:
    if training:
        raise LeftAloneError("it drops values at random")
    identity(layer, context, x)


def conv2d(
    layer: Layer,
    context: Context,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> None:
    _planes(context, x)
    name = context.weight(weight)
    if name is None or (bias is not None and context.weight(bias) is None):
        raise LeftAloneError("its weights are computed")
    if isinstance(padding, str) and padding != "valid":
        raise LeftAloneError(f"its padding is {padding!r}")
    layer.kind, layer.inputs = "convolution", [x.name]
    layer.convolution = Convolution(
        name,
        None if bias is None else context.weight(bias),
        pair(stride),
        (0, 0) if padding == "valid" else pair(padding),
        pair(dilation),
        groups,
    )


def convolution(
    layer: Layer,
    context: Context,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> None:
    if transposed:
        raise LeftAloneError("it is transposed")
    conv2d(layer, context, x, weight, bias, stride, padding, dilation, groups)


def batch_norm(layer: Layer, context: Context, x: Any, *given: Any, **_: Any) -> None:
    """`functional.batch_norm` (mean and variance first), and ATen's (last)."""
    if len(given) >= 7 and isinstance(given[4], bool):
        mean, var, weight, bias, training, _momentum, eps = given[:7]
        if layer.op.key == "aten.batch_norm":
            weight, bias, mean, var = given[:4]
    else:
        raise LeftAloneError("its arguments are unusual")
    if training:
        raise LeftAloneError("it takes the batch's own statistics")
    _planes(context, x)
    names = [None if each is None else context.weight(each) for each in given[:4]]
    names = [
        None if each is None else context.weight(each)
        for each in (mean, var, weight, bias)
    ]
    wanted = (mean, var, weight, bias)
    if any((a is None) != (b is None) for a, b in zip(names, wanted, strict=True)) or (
        names[0] is None or names[1] is None
    ):
        raise LeftAloneError("its weights are computed")
    _operation(layer, Operation("affine"), x)
    layer.norm = Norm(names[0], names[1], names[2], names[3], float(eps))


def max_pool2d(
    layer: Layer,
    context: Context,
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> None:
    if return_indices:
        raise LeftAloneError("its indices are taken")
    _planes(context, x)
    kernel = pair(kernel_size)
    pool = Pool(
        "max",
        kernel,
        pair(stride) if stride else kernel,
        pair(padding),
        pair(dilation),
        bool(ceil_mode),
    )
    _operation(layer, Operation("pool", pool=pool), x)


def avg_pool2d(
    layer: Layer,
    context: Context,
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> None:
    _planes(context, x)
    kernel = pair(kernel_size)
    pool = Pool(
        "average",
        kernel,
        pair(stride) if stride else kernel,
        pair(padding),
        ceil=bool(ceil_mode),
        count_padding=bool(count_include_pad),
        divisor=divisor_override,
    )
    _operation(layer, Operation("pool", pool=pool), x)


def adaptive_avg_pool2d(layer: Layer, context: Context, x: Any, size: Any) -> None:
    """Where the plane divides into the output, it is average pooling; see
    `torch.nn.AdaptiveAvgPool2d`."""
    *_, height, width = _planes(context, x)
    wanted = (size, size) if isinstance(size, int) or size is None else tuple(size)
    out = [wanted[0] or height, wanted[1] or width]
    if height % out[0] or width % out[1]:
        raise LeftAloneError("its windows differ in size")
    if [height, width] == out:
        identity(layer, context, x)
        return
    kernel = height // out[0], width // out[1]
    pool = Pool("average", kernel, kernel)
    _operation(layer, Operation("pool", pool=pool), x)


def mean(
    layer: Layer,
    context: Context,
    x: Any,
    dim: Any = None,
    keepdim: bool = False,
    **_: Any,
) -> None:
    *_n, height, width = _planes(context, x)
    if not keepdim or dim is None or sorted(each % 4 for each in dim) != [2, 3]:
        raise LeftAloneError("it is no mean of whole planes")
    adaptive_avg_pool2d(layer, context, x, (1, 1))


def cat(layer: Layer, context: Context, tensors: Any, dim: int = 0) -> None:
    shapes = [_planes(context, each) for each in tensors]
    if dim % 4 != 1:
        raise LeftAloneError("it does not join channels")
    if len({(n, h, w) for n, _, h, w in shapes}) > 1:
        raise LeftAloneError("its planes differ")
    layer.kind, layer.inputs = "cat", [each.name for each in tensors]


FUNCTIONS: dict[str, Rule] = {
    "conv2d": conv2d,
    "convolution": convolution,
    "batch_norm": batch_norm,
    "max_pool2d": max_pool2d,
    "avg_pool2d": avg_pool2d,
    "adaptive_avg_pool2d": adaptive_avg_pool2d,
    "_adaptive_avg_pool2d": adaptive_avg_pool2d,
    "mean": mean,
    "cat": cat,
    "concat": cat,
    "concatenate": cat,
    "identity": identity,
    "contiguous": identity,
    "dropout": dropout,
    "dropout2d": dropout,
    "feature_dropout": dropout,
    "clamp": clamp,
    "clamp_": clamp,
    "hardtanh": hardtanh,
    "relu6": _elementwise("clamp", 0.0, 6.0),
    "leaky_relu": _with_numbers("leaky_relu", 0.01),
    "elu": _with_numbers("elu", 1.0),
    "softplus": _with_numbers("softplus", 1.0, 20.0),
    "gelu": gelu,
    "add": binary("add", "add_number"),
    "add_": binary("add", "add_number"),
    "iadd": binary("add", "add_number"),
    "sub": binary("sub", "add_number"),
    "sub_": binary("sub", "add_number"),
    "isub": binary("sub", "add_number"),
    "mul": binary("mul", "mul_number"),
    "mul_": binary("mul", "mul_number"),
    "imul": binary("mul", "mul_number"),
}
for _name in (
    *("relu", "sigmoid", "tanh", "silu", "mish", "hardswish", "hardsigmoid"),
    *("abs", "exp"),
):
    FUNCTIONS[_name] = FUNCTIONS[f"{_name}_"] = _elementwise(_name)
