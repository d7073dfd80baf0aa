"""Resampling: interpolation and pixel shuffles."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

from memplan.chunking.rules.flow import (
    Call,
    Flow,
    Slice,
    given,
    part_of,
    rule,
)
from memplan.chunking.rules.lowered import windowed_linear, windowed_nearest
from memplan.chunking.rules.spatial import outer_dims
from memplan.graph.program import Argument, Bound, extent

rule("upsample_bicubic2d")(outer_dims(2))


@rule("upsample_nearest1d upsample_nearest2d upsample_nearest3d")
def nearest(call: Call, out: Slice) -> Flow | None:
    """Spatial dimensions where each element is repeated 1, 2, 4, 8… times.

    Other factors are not exact in the arithmetic by which torch finds the element.
    """
    if out.dim < 2:
        return Flow((out,))
    old, new = call.operands[0].shape[2:], call.shape[2:]
    axis = out.dim - 2
    times = new[axis] // old[axis]
    exact = times * old[axis] == new[axis] and not times & (times - 1)
    if not exact or not _consistent(call):
        return None
    need = out._replace(
        ratio=out.ratio / times,
        before=ceil(Fraction(out.before, times)),
        after=ceil(Fraction(out.after, times)),
    )
    made = call.window(need, call.operands[0].shape)
    sizes: list[Argument] = list(new)
    sizes[axis] = Bound(made, -times, times)
    part = (out.dim, *part_of(made, times, 0, call.window(out)))
    args = (call.op.args[0], _name(call), sizes, part)
    return Flow((need,), windowed_nearest, args, {})


def _name(call: Call) -> str:
    """The operator's name in ATen."""
    return call.op.key.removeprefix("aten.")


@rule("upsample_linear1d upsample_bilinear2d upsample_trilinear3d")
def linear(call: Call, out: Slice) -> Flow | None:
    """Spatial dimensions that grow: each element lies between two neighbours."""
    if out.dim < 2:
        return Flow((out,))
    axis = out.dim - 2
    old, new = call.operands[0].shape[2:][axis], call.shape[2:][axis]
    if old > new or not _consistent(call):
        return None
    ratio, corners = Fraction(old, new), given(call)["align_corners"]
    # Element o lies at most one element before o * ratio, and never behind it.
    need = out._replace(
        ratio=out.ratio * ratio,
        before=ceil(out.before * ratio) + 1,
        after=floor((out.after - 1) * ratio) + 2,
    )
    made, wanted = call.window(need, call.operands[0].shape), call.window(out)
    sizes: list[Argument] = list(call.shape[2:])
    sizes[axis] = extent(wanted)
    part = (out.dim, *part_of(made, 1, 0, wanted))
    args = (call.op.args[0], _name(call), (sizes, corners), (old, new), part)
    return Flow((need,), windowed_linear, args, {})


def _consistent(call: Call) -> bool:
    """Whether the scales given, if any, are the ratios of the sizes."""
    old, new, arguments = call.operands[0].shape[2:], call.shape[2:], given(call)
    scales: Argument = arguments.get("scale_factors") or [
        arguments.get(name) for name in ("scales_d", "scales_h", "scales_w", "scales")
    ]
    ratios = {new / old for old, new in zip(old, new, strict=True)}
    return all(scale is None or scale in ratios for scale in scales)


@rule("pixel_shuffle")
def pixel_shuffle(call: Call, out: Slice) -> Flow | None:
    """[..., C r², H, W] to [..., C, H r, W r]."""
    times = given(call)["upscale_factor"]
    return _shuffled(call, out, Fraction(times * times), Fraction(1, times))


@rule("pixel_unshuffle")
def pixel_unshuffle(call: Call, out: Slice) -> Flow | None:
    """[..., C, H r, W r] to [..., C r², H, W]."""
    times = given(call)["downscale_factor"]
    return _shuffled(call, out, Fraction(1, times * times), Fraction(times))


def _shuffled(call: Call, out: Slice, channel: Fraction, side: Fraction) -> Flow | None:
    rank = len(call.shape)
    times = {rank - 3: channel, rank - 2: side, rank - 1: side}.get(out.dim, 1)
    piece = out.along(out.dim, times)
    return None if piece is None else Flow((piece,))
