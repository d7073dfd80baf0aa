"""ATen operations that multiply and add, as layers."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from memplan.blocking.run.convolutions import Axis, Convolution
from memplan.blocking.run.products import (
    Reading,
    attention,
    matrix_product,
    product,
    recurrent,
)
from memplan.errors import InputError

_GATES = {2: 4, 3: 3}  # of ATen's modes of recurrent networks; of others 1
# Words in the names of operations that multiply matrices, or may.
_HEAVY = re.compile(
    r"(^|_)(\w*mm|mv|v?dot|matmul|linear|\w*conv\w*|convolution|attention|rnn|lstm|gru"
    r"|trilinear|cdist|euclidean_dist)(_|\d|$)|^addr$|^_?fft_|^_?linalg_(?!\w*norm)"
)
_LIGHT = re.compile(r"upsample|interpolate|backward|_cell$")


def read(operation: str, args: Any, kwargs: Any, result: Any) -> Reading:
    """What `operation`, an ATen operator's name and one of READ, comes to.

    Raises InputError where one of its sizes is 0, or too large.
    """
    return _READERS[operation](*args, result=result, **kwargs)


def may_multiply(namespace: str, operation: str) -> bool:
    """Whether an operation that `read` does not know may multiply matrices: others'
    own, and those that are called so."""
    if namespace not in ("aten", "prim", "prims", "profiler"):
        return True
    return bool(_HEAVY.search(operation) and not _LIGHT.search(operation))


def _one(layer: Any) -> Reading:
    return Reading(((layer, 1),))


def _convolution(  # noqa: PLR0913, PLR0917 - torch's own
    image: Any,
    weight: Any,
    bias: Any,
    stride: list[int],
    padding: Any,
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    *_: object,
    result: Any,
    **__: object,
) -> Reading:
    rank = weight.dim() - 2
    axes = tuple(
        Axis(result.shape[2 + i], weight.shape[2 + i], step, apart, image.shape[2 + i])
        for i, (step, apart) in enumerate(
            zip(_each(stride, rank), _each(dilation, rank), strict=True)
        )
    )
    first, second = int(weight.shape[0]), int(weight.shape[1])
    channels, kernels = (second, first // groups)
    if transposed:
        channels, kernels = first // groups, second
    batch = image.shape[0]
    return Convolution(batch, channels, kernels, groups, axes, transposed).read()


def _each(values: list[int], rank: int) -> list[int]:
    """One for every dimension; ATen takes one for all."""
    return list(values) * (rank if len(values) == 1 else 1)


def _along_time(
    image: Any, weight: Any, bias: Any, pad: int = 0, *, result: Any
) -> Reading:
    axis = Axis(result.shape[0], weight.shape[0])
    return Convolution(
        image.shape[1], weight.shape[1], weight.shape[2], 1, (axis,)
    ).read()


def _product(left: Any, right: Any, *_: object, result: Any, **__: object) -> Reading:
    return _one(product(left.shape[0], left.shape[1], right.shape[1]))


def _sum_and_product(
    added: Any, left: Any, right: Any, *_: object, result: Any, **__: object
) -> Reading:
    return _product(left, right, result=result)


def _products(left: Any, right: Any, *_: object, result: Any, **__: object) -> Reading:
    # An operand that is expanded is one matrix for all.
    shapes = [
        (1 if one.shape[0] > 1 and one.stride(0) == 0 else one.shape[0], *one.shape[1:])
        for one in (left, right)
    ]
    if shapes[0][0] == shapes[1][0] == 1 < left.shape[0]:
        shapes[0] = tuple(left.shape)
    return _one(matrix_product(*shapes))


def _sum_and_products(
    added: Any, left: Any, right: Any, *_: object, result: Any, **__: object
) -> Reading:
    return _products(left, right, result=result)


def _sum_of_products(
    added: Any, left: Any, right: Any, *_: object, result: Any, **__: object
) -> Reading:
    groups, rows, inner = left.shape
    return _one(product(rows, groups * inner, right.shape[2]))


def _grouped(
    left: Any, right: Any, offs: Any = None, *_: object, result: Any, **__: object
) -> Reading:
    """Rows of several experts, one below the other; offs: where each one's end."""
    if left.dim() == right.dim() == 3:
        return _products(left, right, result=result)
    if (left.dim(), right.dim()) != (2, 3) or offs.device.type == "meta":
        raise InputError(": groups whose sizes are not known")
    ends = [0, *offs.tolist()]
    rows = Counter(b - a for a, b in itertools.pairwise(ends) if b > a)
    _, inner, columns = right.shape
    return Reading(
        tuple((product(n, inner, columns), count) for n, count in rows.items())
    )


def _by_vector(left: Any, right: Any, *_: object, result: Any, **__: object) -> Reading:
    return _one(product(left.shape[0], left.shape[1], 1))


def _sum_and_by_vector(
    added: Any, left: Any, right: Any, *_: object, result: Any, **__: object
) -> Reading:
    return _by_vector(left, right, result=result)


def _dot(left: Any, right: Any, *, result: Any) -> Reading:
    return _one(product(1, left.shape[0], 1))


def _attention(
    query: Any, key: Any, value: Any, *_: object, result: Any, **__: object
) -> Reading:
    return attention(query.shape, key.shape, value.shape)


def _recurrent_layer(
    sequence: Any,
    weights: Any,
    _1: Any,
    _2: Any,
    _3: Any,
    _4: Any,
    _5: Any,
    _6: Any,
    _7: Any,
    mode: int,
    hidden: int,
    *_: object,
    result: Any,
    **__: object,
) -> Reading:
    steps, batch, inputs = sequence.shape
    return recurrent(_GATES.get(mode, 1), steps, batch, inputs, hidden)


def _pooling(  # noqa: PLR0913 - torch's own
    image: Any,
    window: list[int],
    stride: list[int] | None = None,
    padding: Any = 0,
    dilation: Any = 1,
    *_: object,
    result: Any,
    rank: int,
    **__: object,
) -> Reading:
    reduced = result[0] if isinstance(result, tuple) else result
    # Of averages, that argument is no dilation.
    apart = dilation if isinstance(dilation, list | tuple) else [1]
    windows = _each(window, rank)
    steps, gaps = _each(list(stride or window), rank), _each(list(apart), rank)
    axes = map(Axis, reduced.shape[-rank:], windows, steps, gaps)
    batch, channels = math.prod(image.shape[: -rank - 1]), reduced.shape[-rank - 1]
    return Convolution(batch, 1, 1, channels, tuple(axes)).read().without_weights


_READERS: dict[str, Callable[..., Reading]] = {
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_overrideable": _convolution,
    "conv_tbc": _along_time,
    "mm": _product,
    "_int_mm": _product,
    "_scaled_mm": _product,
    "addmm": _sum_and_product,
    "_addmm_activation": _sum_and_product,
    "bmm": _products,
    "baddbmm": _sum_and_products,
    "addbmm": _sum_of_products,
    "_grouped_mm": _grouped,
    "mv": _by_vector,
    "addmv": _sum_and_by_vector,
    "dot": _dot,
    "vdot": _dot,
    "mkldnn_rnn_layer": _recurrent_layer,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "max_pool2d_with_indices": partial(_pooling, rank=2),
    "max_pool3d_with_indices": partial(_pooling, rank=3),
    "avg_pool2d": partial(_pooling, rank=2),
    "avg_pool3d": partial(_pooling, rank=3),
}
READ = frozenset(_READERS)
