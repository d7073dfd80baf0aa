"""Bytes that an operator needs beside its operands and results.

Facts about the kernels of torch 2.13 on a CPU, each found with the allocator's own
events: which operands they copy before they compute, and the buffers they compute in.
On other devices nothing is known, and nothing is added.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from memplan.graph.program import Meta, Metas, Op, Program

# Convolutions of fewer elements are done as a product with the unfolded input.
DIRECT_ELEMENTS = 20480
BLOCK = 16  # channels are padded to this in oneDNN's layouts
KEYS_AT_ONCE = 512  # of a step of flash attention
SIDES_AS_CHANNELS_LAST = 128  # of an enlarged picture, added up
SINGLE = 4  # bytes of float32


def temporaries(program: Program, op: Op) -> int:
    """Bytes that live only while `op` runs."""
    kernel = KERNELS.get(op.key)
    metas = [program.metas[name] for name in op.operands()]
    if kernel is None or not all(isinstance(meta, Meta) for meta in metas):
        return 0
    if not metas or metas[0].device != "cpu":
        return 0
    return int(kernel(metas, program.metas[op.name]))


Kernel = Callable[[list[Meta], Metas], int]


def _first_contiguous(metas: list[Meta], _: Metas) -> int:
    return 0 if metas[0].contiguous else metas[0].bytes


def _rows_flattened(metas: list[Meta], _: Metas) -> int:
    """Leading dimensions become one; where they do not lie so, the input is copied."""
    first = metas[0]
    return 0 if _collapses(first.shape[:-1], first.strides[:-1]) else first.bytes


def _exponents(metas: list[Meta], result: Metas) -> int:
    """The exponents of all elements, and the largest one of each sum."""
    assert isinstance(result, Meta)
    return int(metas[0].elements * result.dtype.itemsize + result.bytes)


def _batched(metas: list[Meta], _: Metas) -> int:
    """Batch dimensions become one, or the operand is copied; of matrices that lie
    neither by rows nor by columns, one is copied at a time. Beside one matrix, the
    other operand's rows become one matrix."""
    left, right = metas[-2:]
    if min(len(left.shape), len(right.shape)) <= 2:
        return _rows_flattened([left if len(left.shape) > 2 else right], _)
    total = 0
    for meta in (left, right):
        if len(meta.shape) < 3:
            continue
        if not _collapses(meta.shape[:-2], meta.strides[:-2]):
            total += meta.bytes
        elif 1 not in meta.strides[-2:] and 1 not in meta.shape[-2:]:
            total += meta.bytes // max(1, prod(meta.shape[:-2]))
    return total


def _collapses(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether dimensions can be seen as one, without a copy."""
    inner: int | None = None
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if inner is not None and stride != inner:
            return False
        inner = stride * size
    return True


def _convolution(metas: list[Meta], result: Metas) -> int:
    """An input that is neither contiguous nor channels last is copied. oneDNN reorders
    input, weight and result into blocks of channels; small inputs are unfolded
    instead, and kernels of one element need neither; with a stride that divides the
    input, they also gather the elements that they read."""
    source, weight = metas[:2]
    pixels, window = prod(result.shape[2:]), prod(weight.shape[2:])
    item = int(source.dtype.itemsize)
    channels_last = _is_channels_last(source)
    copy = 0 if channels_last or source.contiguous else source.bytes
    strided = result.shape[2:] != source.shape[2:]
    if window == 1 and not strided:
        return int(copy)
    grouped = weight.shape[1] != source.shape[1]
    if source.shape[0] == 1 and source.elements <= DIRECT_ELEMENTS and not grouped:
        return int(copy + source.shape[1] * window * pixels * item)
    padded = (_padded(weight.shape[0]), _padded(weight.shape[1]))
    weights = prod((*padded, window, item))
    if channels_last:  # at most: which of these there are depends on the kernel
        halved = 2 * result.shape[-1] <= source.shape[-1] + 1
        both = source.bytes * (2 if halved else 1) + (result.bytes if grouped else 0)
        return int(both + weights)
    out = result.shape[0] * _padded(result.shape[1]) * pixels * item
    few = source.shape[1] <= 3
    given = 0 if few else source.bytes // source.shape[1] * _padded(source.shape[1])
    sizes = zip(source.shape[2:], result.shape[2:], strict=True)
    gathers = window == 1 and not any(size % made for size, made in sizes)
    gathered = given * pixels // prod(source.shape[2:]) if gathers else 0
    return int(copy + gathered + max(given + weights + out - result.bytes, out))


def _is_channels_last(meta: Meta) -> bool:
    order = (0, 2, 3, 1)
    if len(meta.shape) != len(order):
        return False
    stride = 1
    for dim in reversed(order):
        if meta.shape[dim] != 1 and meta.strides[dim] != stride:
            return False
        stride *= meta.shape[dim]
    return True


def _windowed_convolution(metas: list[Meta], result: Metas) -> int:
    """At the edges of the picture a slice is padded first."""
    return _convolution(metas, result) + metas[0].bytes


def _transposed_convolution(_: list[Meta], result: Metas) -> int:
    """oneDNN's result in blocks of channels, and once more without padding."""
    assert isinstance(result, Meta)
    return 2 * int(result.bytes)


def _windowed_linear(metas: list[Meta], result: Metas) -> int:
    """Both neighbours of each element, and their mean, along one dimension."""
    assert isinstance(result, Meta)
    others = prod(result.shape[2:]) // max(result.shape[2:])
    return int(result.bytes) // (others if len(result.shape) > 3 else 1)


def _padded(channels: int) -> int:
    return -(-channels // BLOCK) * BLOCK if channels > 3 else channels


def _attention(metas: list[Meta], _: Metas) -> int:
    """Flash attention's buffers, one set a thread, the sums of each row, and a mask of
    truth values made one of numbers."""
    import torch

    query, key = metas[:2]
    rows, heads = query.shape[-2], prod(query.shape[:-2])
    if any(meta.strides[-1] != 1 for meta in metas[:3]):
        # Not flash attention: products, two softmaxes and a mask of the scores.
        scores = heads * rows * key.shape[-2] * int(query.dtype.itemsize)
        return int(3.25 * scores + 2 * query.bytes + rows * key.shape[-2] * 5)
    at_once = 256 if rows >= 768 else 64 if rows >= 192 else 32
    at_once = min(at_once, rows)
    keys = min(KEYS_AT_ONCE, key.shape[-2])
    width = query.shape[-1]
    buffers = (at_once * keys + 2 * at_once + at_once * width) * SINGLE
    total = torch.get_num_threads() * buffers + heads * rows * SINGLE
    if len(metas) > 3 and metas[3].dtype == torch.bool:
        total += metas[3].elements * query.dtype.itemsize
    return int(total)


def _windowed_attention(metas: list[Meta], result: Metas) -> int:
    """A causal slice of attention also makes its mask: of bool, and of float32."""
    rows, keys = metas[0].shape[-2], metas[1].shape[-2]
    return int(_attention(metas[:3], result) + rows * keys * 5)


def _both(metas: list[Meta], _: Metas) -> int:
    return sum(meta.bytes for meta in metas[:2] if not meta.contiguous)


def _enlarged(metas: list[Meta], result: Metas) -> int:
    """Pictures whose new sides add up to 128 or less are enlarged as channels last,
    there and back; larger ones only if they lie so. Of one picture that does, the
    result is made otherwise where the stride over pictures is not the usual one."""
    source = metas[0]
    channels_last = _is_channels_last(source)
    if not channels_last and sum(result.shape[-2:]) > SIDES_AS_CHANNELS_LAST:
        return 0
    there = 0 if channels_last else source.bytes
    as_it_lies = result.shape[1] == 1 or (channels_last and result.shape[0] > 1)
    return int(there + (0 if as_it_lies else result.bytes))


KERNELS: dict[str, Kernel] = {
    **dict.fromkeys(
        (
            "aten.layer_norm",
            "aten.native_layer_norm",
            "aten.group_norm",
            "aten.softmax",
            "aten._softmax",
            "aten.log_softmax",
        ),
        _first_contiguous,
    ),
    "aten.linear": _rows_flattened,
    "aten.logsumexp": _exponents,
    **dict.fromkeys(("aten.matmul", "aten.bmm", "aten.baddbmm"), _batched),
    **dict.fromkeys(
        (
            "aten.conv1d",
            "aten.conv2d",
            "aten.conv3d",
            "aten.convolution",
        ),
        _convolution,
    ),
    **dict.fromkeys(
        (
            "aten.conv_transpose1d",
            "aten.conv_transpose2d",
            "aten.conv_transpose3d",
            "windowed_transposed_conv",
        ),
        _transposed_convolution,
    ),
    "windowed_conv": _windowed_convolution,
    "windowed_linear": _windowed_linear,
    "aten.scaled_dot_product_attention": _attention,
    "causal_attention": _windowed_attention,
    "aten.einsum": _both,
    **dict.fromkeys(
        (
            "aten.upsample_nearest2d",
            "aten._upsample_nearest_exact2d",
            "aten.upsample_bilinear2d",
            "windowed_nearest",
        ),
        _enlarged,
    ),
}
