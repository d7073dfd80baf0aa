"""Calls of convolutions, poolings and resamplings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.chunking.rules.rule_check import Sample

aten = torch.ops.aten


def convolution_samples() -> Iterator[Sample]:
    def conv(op: Any, *args: Any, dims: tuple[int, ...]) -> Sample:
        return Sample(op, args, {}, dims, close=True)

    x, w, b = torch.randn(2, 4, 11, 10), torch.randn(6, 4, 3, 3), torch.randn(6)
    every = (0, 1, 2, 3)
    two = aten.conv2d.default
    for stride in (1, 2, 3):
        for padding in (0, 1, 2):
            for dilation in (1, 2):
                options = [[stride] * 2, [padding] * 2, [dilation] * 2]
                yield conv(two, x, w, b, *options, dims=every)
    yield conv(two, x.to(torch.bfloat16), w.bfloat16(), None, [1], [1], dims=every)
    yield conv(two, x, w[..., :1, :1], b, dims=every)
    yield conv(two, x, w[..., :1, :1], b, [2, 2], dims=every)
    yield conv(two, x, w[..., :2], b, [2, 1], [1, 0], dims=every)
    yield conv(two, x, w[..., :1], b, [1, 1], [1, 2], dims=(0, 1, 2))
    yield conv(aten.conv2d.padding, x, w, b, [1, 1], "same", [2, 1], dims=every)
    yield conv(aten.conv2d.padding, x, w[..., :2], b, [1, 1], "same", dims=(0, 1))
    yield conv(aten.conv2d.padding, x, w, b, [2, 2], "valid", dims=every)
    depthwise = torch.randn(4, 1, 3, 3)
    yield conv(two, x, depthwise, b[:4], [1], [1], [1], 4, dims=every)
    yield conv(two, x, torch.randn(6, 2, 3, 3), b, [1], [1], [1], 2, dims=(0, 2, 3))
    yield conv(two, x[0], w, b, dims=())
    yield conv(
        aten.conv1d.default, x[0], torch.randn(5, 11, 3), None, [2], [1], dims=(0, 1, 2)
    )
    yield conv(
        aten.conv3d.default,
        torch.randn(2, 3, 4, 5, 6),
        torch.randn(2, 3, 3, 2, 1),
        None,
        [1, 2, 1],
        [1, 0, 0],
        dims=(0, 1, 2, 3, 4),
    )
    rest = ([1, 1], [1, 1], [1, 1])
    yield conv(aten.convolution.default, x, w, b, *rest, False, [0, 0], 1, dims=every)
    for count in (1, 2, 3):
        packet = getattr(aten, f"conv_transpose{count}d")
        op = getattr(packet, packet.overloads()[0])
        grid = torch.randn(2, 4, 5, 6, 3)[(..., *[0] * (3 - count))]
        kernel = torch.randn(4, 3, *[2] * count)
        yield conv(op, grid, kernel, b[:3], [2], dims=tuple(range(count + 2)))
    turned = torch.randn(4, 5, 3, 3)
    yield conv(
        aten.convolution.default, x, turned, b[:5], *rest, True, [0, 0], 1, dims=every
    )
    up = aten.conv_transpose2d.input
    for stride, padding, beyond, dilation in (
        ([2, 2], [0, 0], [0, 0], [1, 1]),
        ([2, 2], [1, 1], [1, 0], [1, 1]),
        ([3, 1], [1, 2], [2, 0], [1, 2]),
        ([1, 2], [2, 0], [0, 1], [2, 1]),
        ([4, 4], [0, 0], [3, 1], [1, 1]),
    ):
        options = (stride, padding, beyond, 1, dilation)
        yield conv(up, x, turned, b[:5], *options, dims=every)
    paired = torch.randn(4, 2, 4, 4)
    yield conv(up, x, paired, None, [2], [1], [0], 2, dims=(0, 2, 3))


def pooling_samples() -> Iterator[Sample]:
    x = torch.randn(2, 3, 11, 10)
    every = (0, 1, 2, 3)
    for kernel, stride, padding in ((2, [], 0), (3, 2, 1), (3, 1, 1), (2, 3, 0)):
        args = (x, [kernel] * 2, [stride] * 2 if stride else [], [padding] * 2)
        yield Sample(aten.max_pool2d.default, args, {}, every)
        yield Sample(aten.max_pool2d.default, (x - 9, *args[1:]), {}, every)
        yield Sample(aten.avg_pool2d.default, args, {}, every, True)
        counted = every if padding == 0 else (0, 1)
        yield Sample(aten.avg_pool2d.default, (*args, False, False), {}, counted, True)
        yield Sample(aten.avg_pool2d.default, (*args, False, True, 5), {}, every, True)
    yield Sample(
        aten.max_pool2d.default, (x, [3, 2], [2, 2], [1, 0], [2, 1]), {}, every
    )
    yield Sample(aten.max_pool2d.default, (x[0], [2, 2]), {}, (0, 1, 2))
    yield Sample(aten.max_pool2d.default, (x, [2, 2], [], 0, 1, True), {}, (0, 1))
    yield Sample(aten.max_pool2d.default, (x, [3, 4], [2, 3], 0, 1, True), {}, every)
    whole = (x * 9).int()
    yield Sample(aten.max_pool2d.default, (whole, [3, 3], [2, 2], [1, 1]), {}, (0, 1))
    yield Sample(aten.max_pool2d_with_indices.default, (x, [2, 2]), {}, (0, 1))
    yield Sample(aten.max_pool1d.default, (x[0], [2]), {}, (0, 1))
    yield Sample(aten.avg_pool1d.default, (x[0], [2]), {}, (0, 1), True)
    deep = torch.randn(2, 3, 4, 6, 4)
    yield Sample(aten.max_pool3d.default, (deep, [2, 2, 2]), {}, (0, 1))
    yield Sample(aten.avg_pool3d.default, (deep, [2, 2, 2]), {}, (0, 1), True)
    for name in ("avg", "max"):
        for count, source in ((1, x[0]), (2, x), (3, deep)):
            op = getattr(aten, f"adaptive_{name}_pool{count}d").default
            dims = tuple(range(source.dim() - count))
            yield Sample(op, (source, [2] * count), {}, dims, True)
    yield Sample(aten._adaptive_avg_pool2d.default, (x, [2, 3]), {}, (0, 1), True)
    yield Sample(aten._adaptive_avg_pool3d.default, (deep, [2, 3, 2]), {}, (0, 1), True)


def resampling_samples() -> Iterator[Sample]:
    x = torch.randn(2, 3, 4, 5)
    every = (0, 1, 2, 3)
    two = aten.upsample_nearest2d
    yield Sample(two.vec, (x, None, [2.0, 2.0]), {}, every)
    yield Sample(two.vec, (x, [16, 10], None), {}, every)
    yield Sample(two.vec, (x, [12, 10], None), {}, (0, 1, 3))
    yield Sample(two.vec, (x, [6, 10], None), {}, (0, 1, 3))
    yield Sample(two.vec, (x, None, [2.2, 2.1]), {}, (0, 1))
    yield Sample(two.default, (x, [8, 10], 2.0, 2.0), {}, every)
    yield Sample(two.default, (x, [8, 10]), {}, every)
    yield Sample(aten.upsample_nearest1d.vec, (x[0], [10], None), {}, (0, 1, 2))
    deep = torch.randn(1, 2, 3, 4, 5)
    yield Sample(aten.upsample_nearest3d.vec, (deep, None, [2.0] * 3), {}, (1, 2, 3, 4))
    for corners in (False, True):
        smooth = {"align_corners": corners, "scale_factors": None}

        def linear(op: Any, x: Any, sizes: list[int], *, dims: tuple[int, ...]) -> Any:
            return Sample(op, (x, sizes), smooth, dims, True)  # noqa: B023

        yield linear(aten.upsample_linear1d.vec, x[0], [10], dims=(0, 1, 2))
        two = aten.upsample_bilinear2d.vec
        for sizes in ([8, 10], [12, 5], [5, 15], [4, 5], [7, 9]):
            yield linear(two, x, sizes, dims=every)
        yield linear(two, x.double(), [8, 10], dims=every)
        yield linear(two, x, [3, 10], dims=(0, 1, 3))
        yield linear(two, x[..., :1], [8, 4], dims=every)
        yield linear(aten.upsample_bicubic2d.vec, x, [8, 10], dims=(0, 1))
        yield linear(aten.upsample_trilinear3d.vec, deep, [6, 8, 10], dims=(1, 2, 3, 4))
    scaled = {"align_corners": False, "scale_factors": [2.2, 2.0]}
    yield Sample(aten.upsample_bilinear2d.vec, (x, None), scaled, (0, 1), True)
    yield Sample(aten.pixel_shuffle.default, (torch.randn(2, 12, 3, 4), 2), {}, every)
    yield Sample(aten.pixel_unshuffle.default, (torch.randn(2, 3, 4, 6), 2), {}, every)
