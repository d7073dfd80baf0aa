"""Rules: what a call of an ATen operator is as a layer. One rule an operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from memplan.fusing.layers import Convolution, Layer, Norm
from memplan.fusing.operators import OPERATORS, Operation, Pool
from memplan.graph.program import Meta, Program, Ref

Sizes = int | Sequence[int]  # as torch takes them: one for both axes, or one for each


class Context:
    """What rules may query about a program: shapes, dtypes, names of weights."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def shape(self, value: object) -> tuple[int, ...] | None:
        """Of a Ref's tensor; None for anything else."""
        meta = self._meta(value)
        return None if meta is None else meta.shape

    def dtype(self, value: object) -> Any:
        meta = self._meta(value)
        return None if meta is None else meta.dtype

    def weight(self, value: object) -> str | None:
        """The name in the model of what a Ref stands for."""
        if isinstance(value, Ref):
            return self._program.constants.get(value.name)
        return None

    def _meta(self, value: object) -> Meta | None:
        """Of a Ref's tensor; None for anything else."""
        found = self._program.metas.get(value.name) if isinstance(value, Ref) else None
        return found if isinstance(found, Meta) else None


class UnsupportedError(Exception):
    """Why torch runs an operator: the reason."""


def planes(context: Context, value: object) -> tuple[int, int, int, int]:
    """The shape (n, c, h, w); vectors (n, c) have planes of one element.

    Raises UnsupportedError for values of another rank.
    """
    shape = context.shape(value)
    if shape is not None and len(shape) == 2:
        shape = (*shape, 1, 1)
    if shape is None or len(shape) != 4 or 0 in shape:
        raise UnsupportedError("its input does not have the shape (n, c, h, w)")
    return shape


def set_operation(layer: Layer, operation: Operation, *inputs: Ref) -> None:
    """Make a layer an operation of a stack."""
    layer.kind, layer.operation = "operation", operation
    layer.inputs = [each.name for each in inputs]


def identity(layer: Layer, x: Ref) -> None:
    """Make a layer one whose value is its input's."""
    layer.kind, layer.inputs = "same", [x.name]


def pair(value: Sizes) -> tuple[int, int]:
    """A number for both of (height, width), or both."""
    if isinstance(value, int):
        return value, value
    values = tuple(value)
    if len(values) == 1:
        values *= 2
    if len(values) != 2 or not all(isinstance(each, int) for each in values):
        raise UnsupportedError("its sizes depend on data")
    return values[0], values[1]


def same_padding(kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    """Of a convolution whose planes stay as large, where both sides get as much."""
    reaches = [step * (size - 1) for size, step in zip(kernel, dilation, strict=False)]
    if len(reaches) != 2 or any(reach % 2 for reach in reaches):
        raise UnsupportedError("its padding is not symmetric")
    return tuple(reach // 2 for reach in reaches)


def linear(
    layer: Layer,
    context: Context,
    x: Ref,
    weight: Ref,
    bias: Ref | None = None,
) -> None:
    """Of vectors (n, c): a 1×1 convolution of planes of one element."""
    if len(context.shape(x) or ()) != 2:
        raise UnsupportedError("its input does not have the shape (n, c)")
    conv2d(layer, context, x, weight, bias)


def conv2d(
    layer: Layer,
    context: Context,
    x: Ref,
    weight: Ref,
    bias: Ref | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> None:
    planes(context, x)
    name = context.weight(weight)
    if name is None or (bias is not None and context.weight(bias) is None):
        raise UnsupportedError("its weights are not parameters of the model")
    if padding == "same":
        padding = same_padding((context.shape(weight) or ())[2:], pair(dilation))
    layer.kind, layer.inputs = "convolution", [x.name]
    layer.convolution = Convolution(
        name,
        None if bias is None else context.weight(bias),
        pair(stride),
        (0, 0) if isinstance(padding, str) else pair(padding),
        pair(dilation),
        groups,
    )


def pad(
    layer: Layer,
    context: Context,
    x: Ref,
    pad: Any,
    mode: str = "constant",
    value: object = None,
) -> None:
    """Zeros around planes, given as left, right, above, below."""
    planes(context, x)
    sizes = [*pad, *(0,) * (4 - len(pad))]
    if mode != "constant" or value not in (None, 0):
        raise UnsupportedError("it does not pad with zeros")
    if len(sizes) != 4 or not all(isinstance(each, int) for each in sizes):
        raise UnsupportedError("it pads other dimensions than height and width")
    if min(sizes) < 0:
        raise UnsupportedError("its padding is negative")
    if not any(sizes):
        identity(layer, x)
        return
    left, right, above, below = sizes
    layer.kind, layer.inputs, layer.pad = "pad", [x.name], (above, below, left, right)
    layer.reason = "no convolution can take over its padding"


def constant_pad(
    layer: Layer, context: Context, x: Ref, sizes: Any, value: object = 0
) -> None:
    pad(layer, context, x, sizes, "constant", value)


def batch_norm(
    layer: Layer,
    context: Context,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    mean: Ref | None,
    var: Ref | None,
    training: bool,
    *rest: float,
) -> None:
    if training:
        raise UnsupportedError("it uses batch statistics")
    planes(context, x)  # rest: momentum, eps, whether cuDNN may be used
    wanted = (mean, var, weight, bias)
    names = [None if each is None else context.weight(each) for each in wanted]
    if any((a is None) != (b is None) for a, b in zip(names, wanted, strict=True)) or (
        names[0] is None or names[1] is None
    ):
        raise UnsupportedError("its weights are not parameters of the model")
    set_operation(layer, Operation("affine"), x)
    layer.norm = Norm(names[0], names[1], names[2], names[3], float(rest[1]))


def _set_pool(layer: Layer, context: Context, x: Ref, pool: Pool) -> None:
    *_, height, width = planes(context, x)
    set_operation(layer, Operation("pool", pool=pool.within((height, width))), x)


def max_pool2d(
    layer: Layer,
    context: Context,
    x: Ref,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> None:
    kernel = pair(kernel_size)
    pool = Pool(
        "max",
        kernel,
        pair(stride) if stride else kernel,
        pair(padding),
        pair(dilation),
        bool(ceil_mode),
    )
    _set_pool(layer, context, x, pool)


def avg_pool2d(
    layer: Layer,
    context: Context,
    x: Ref,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> None:
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
    _set_pool(layer, context, x, pool)


def adaptive_avg_pool2d(layer: Layer, context: Context, x: Ref, size: Any) -> None:
    """Where the plane divides into the output, it is average pooling; see
    `torch.nn.AdaptiveAvgPool2d`."""
    *_, height, width = planes(context, x)
    wanted = (size, size) if isinstance(size, int) or size is None else tuple(size)
    out = [wanted[0] or height, wanted[1] or width]
    if height % out[0] or width % out[1]:
        raise UnsupportedError("its windows differ in size")
    if [height, width] == out:
        identity(layer, x)
        return
    kernel = height // out[0], width // out[1]
    pool = Pool("average", kernel, kernel)
    set_operation(layer, Operation("pool", pool=pool), x)


def mean(
    layer: Layer,
    context: Context,
    x: Ref,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    **_: object,
) -> None:
    planes(context, x)
    if not keepdim or dim is None or sorted(each % 4 for each in dim) != [2, 3]:
        raise UnsupportedError("it is not a mean over height and width")
    adaptive_avg_pool2d(layer, context, x, (1, 1))


Rule = Callable[..., None]


def _called(kind: str, defaults: dict[str, float]) -> Rule:
    """An operator whose arguments behind the value are its numbers."""

    def rule(layer: Layer, context: Context, x: Ref, *given: Any, **named: Any) -> None:
        planes(context, x)
        if len(given) > len(defaults):
            raise UnsupportedError("it has unsupported arguments")
        chosen = {**defaults, **dict(zip(defaults, given, strict=False)), **named}
        if chosen.keys() != defaults.keys() or not all(
            map(_is_number, chosen.values())
        ):
            raise UnsupportedError("it has unsupported arguments")
        set_operation(layer, Operation(kind, tuple(map(float, chosen.values()))), x)

    return rule


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def clamp(
    layer: Layer,
    context: Context,
    x: Ref,
    min: Any = None,
    max: Any = None,
    **_: object,
) -> None:
    planes(context, x)
    low = -math.inf if min is None else min
    high = math.inf if max is None else max
    if not all(isinstance(each, int | float) for each in (low, high)):
        raise UnsupportedError("its bounds are tensors")
    if not low <= high:
        raise UnsupportedError("its bounds are in the wrong order")
    set_operation(layer, Operation("clamp", (float(low), float(high))), x)


def hardtanh(
    layer: Layer,
    context: Context,
    x: Ref,
    min_val: float = -1.0,
    max_val: float = 1.0,
) -> None:
    clamp(layer, context, x, min_val, max_val)


def gelu(layer: Layer, context: Context, x: Ref, approximate: str = "none") -> None:
    planes(context, x)
    kind = "gelu" if approximate == "none" else "gelu_tanh"
    set_operation(layer, Operation(kind), x)


def binary(kind: str, number: str) -> Rule:
    """Addition and its like: of two tensors of one shape, or of one and a number."""

    def rule(
        layer: Layer,
        context: Context,
        x: Ref,
        y: Any,
        alpha: Any = 1,
        **_: object,
    ) -> None:
        if alpha != 1:
            raise UnsupportedError("one of its operands is scaled")
        if kind in ("add", "mul") and not isinstance(x, Ref):
            x, y = y, x
        shape: tuple[int, ...] | None = planes(context, x)
        if _is_number(y):
            value = -float(y) if kind == "sub" else float(y)
            set_operation(layer, Operation(number, (value,)), x)
            return
        if context.dtype(x) != context.dtype(y):
            raise UnsupportedError("its operands have different types")
        other = context.shape(y)
        if kind == "mul" and (shape or ())[2:] == (1, 1) != (other or ())[2:]:
            x, y, shape, other = y, x, other, shape
        if other is not None and len(other) == 2:
            other = (*other, 1, 1)
        if other == shape:
            set_operation(layer, Operation(kind), x, y)
        elif kind == "mul" and other == (*(shape or ())[:2], 1, 1):
            set_operation(layer, Operation("gate"), x, y)
        else:
            raise UnsupportedError("its operands have different shapes")

    return rule


def cat(layer: Layer, context: Context, tensors: Any, dim: int = 0) -> None:
    shapes = [planes(context, each) for each in tensors]
    if dim % 4 != 1:
        raise UnsupportedError("it does not concatenate channels")
    if len({(n, h, w) for n, _, h, w in shapes}) > 1:
        raise UnsupportedError("its inputs differ in height, width or batch")
    layer.kind, layer.inputs = "cat", [each.name for each in tensors]


RULES: dict[str, Rule] = {
    "aten.conv2d": conv2d,
    "aten.linear": linear,
    "aten.batch_norm": batch_norm,
    "aten.max_pool2d": max_pool2d,
    "aten.avg_pool2d": avg_pool2d,
    "aten.adaptive_avg_pool2d": adaptive_avg_pool2d,
    "aten.mean": mean,
    "aten.pad": pad,
    "aten.constant_pad_nd": constant_pad,
    "aten.cat": cat,
    "aten.clamp": clamp,
    "aten.hardtanh": hardtanh,
    "aten.gelu": gelu,
    "aten.add": binary("add", "add_number"),
    "aten.sub": binary("sub", "add_number"),
    "aten.mul": binary("mul", "mul_number"),
    **{
        f"aten.{kind}": _called(kind, operator.numbers)
        for kind, operator in OPERATORS.items()
        if operator.called
    },
}
