"""Rules of layers that work on windows of planes, and of normalisation."""

from __future__ import annotations

from typing import Any

from memplan.fusing.front.context import (
    Context,
    LeftAloneError,
    identity,
    made_of,
    planes,
)
from memplan.fusing.layers import Convolution, Layer, Norm
from memplan.fusing.operations import Operation, Pool


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


def same_padding(kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    """Of a convolution whose planes stay as large, where both sides get as much."""
    reaches = [step * (size - 1) for size, step in zip(kernel, dilation, strict=False)]
    if len(reaches) != 2 or any(reach % 2 for reach in reaches):
        raise LeftAloneError("its padding differs from side to side")
    return tuple(reach // 2 for reach in reaches)


def linear(
    layer: Layer, context: Context, x: Any, weight: Any, bias: Any = None
) -> None:
    """Of vectors (n, c): a 1×1 convolution of planes of one element."""
    if len(context.shape(x) or ()) != 2:
        raise LeftAloneError("its input is not (n, c)")
    conv2d(layer, context, x, weight, bias)


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
    planes(context, x)
    name = context.weight(weight)
    if name is None or (bias is not None and context.weight(bias) is None):
        raise LeftAloneError("its weights are computed")
    if padding == "same":
        padding = same_padding((context.shape(weight) or ())[2:], pair(dilation))
    layer.kind, layer.inputs = "convolution", [x.name]
    layer.convolution = Convolution(
        name,
        None if bias is None else context.weight(bias),
        pair(stride),
        (0, 0) if padding == "valid" else pair(padding),
        pair(dilation),
        groups,
    )


def pad(
    layer: Layer,
    context: Context,
    x: Any,
    pad: Any,
    mode: str = "constant",
    value: Any = None,
) -> None:
    """Zeros around planes, given as left, right, above, below."""
    planes(context, x)
    sizes = [*pad, *(0,) * (4 - len(pad))]
    if mode != "constant" or value not in (None, 0):
        raise LeftAloneError("it pads with something else than zeros")
    if len(sizes) != 4 or not all(isinstance(each, int) for each in sizes):
        raise LeftAloneError("it pads more than planes")
    if min(sizes) < 0:
        raise LeftAloneError("it cuts planes")
    if not any(sizes):
        identity(layer, context, x)
        return
    left, right, above, below = sizes
    layer.kind, layer.inputs, layer.pad = "pad", [x.name], (above, below, left, right)
    layer.reason = "no convolution takes its zeros as padding"


def constant_pad_nd(
    layer: Layer, context: Context, x: Any, sizes: Any, value: Any = 0
) -> None:
    pad(layer, context, x, sizes, "constant", value)


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
    planes(context, x)
    wanted = (mean, var, weight, bias)
    names = [None if each is None else context.weight(each) for each in wanted]
    if any((a is None) != (b is None) for a, b in zip(names, wanted, strict=True)) or (
        names[0] is None or names[1] is None
    ):
        raise LeftAloneError("its weights are computed")
    made_of(layer, Operation("affine"), x)
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
    *_, height, width = planes(context, x)
    kernel = pair(kernel_size)
    pool = Pool(
        "max",
        kernel,
        pair(stride) if stride else kernel,
        pair(padding),
        pair(dilation),
        bool(ceil_mode),
    )
    pool = pool.within((height, width))
    made_of(layer, Operation("pool", pool=pool), x)


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
    *_, height, width = planes(context, x)
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
    pool = pool.within((height, width))
    made_of(layer, Operation("pool", pool=pool), x)


def adaptive_avg_pool2d(layer: Layer, context: Context, x: Any, size: Any) -> None:
    """Where the plane divides into the output, it is average pooling; see
    `torch.nn.AdaptiveAvgPool2d`."""
    *_, height, width = planes(context, x)
    wanted = (size, size) if isinstance(size, int) or size is None else tuple(size)
    out = [wanted[0] or height, wanted[1] or width]
    if height % out[0] or width % out[1]:
        raise LeftAloneError("its windows differ in size")
    if [height, width] == out:
        identity(layer, context, x)
        return
    kernel = height // out[0], width // out[1]
    pool = Pool("average", kernel, kernel)
    made_of(layer, Operation("pool", pool=pool), x)


def mean(
    layer: Layer,
    context: Context,
    x: Any,
    dim: Any = None,
    keepdim: bool = False,
    **_: Any,
) -> None:
    planes(context, x)
    if not keepdim or dim is None or sorted(each % 4 for each in dim) != [2, 3]:
        raise LeftAloneError("it is no mean of whole planes")
    adaptive_avg_pool2d(layer, context, x, (1, 1))
