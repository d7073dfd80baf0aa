"""Upsampling and pixel shuffles: slices of a grid that has another resolution."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from memplan.chunking.rules.arguments import changed, given
from memplan.chunking.rules.flow import Call, Flow, Rule, Slice
from memplan.chunking.rules.windows import outer_dims
from memplan.graph.program import extent


def nearest(call: Call, out: Slice) -> Flow | None:
    """Spatial dimensions where each element is repeated 1, 2, 4, 8… times.

    Other factors are not exact in the arithmetic by which torch finds the element.
    """
    if out.dim < 2:
        return Flow((out,))
    old, new = call.operands[0].shape[2:], call.shape[2:]
    axis = out.dim - 2
    times = new[axis] // old[axis]
    if times * old[axis] != new[axis] or times & (times - 1):
        return None
    arguments = given(call)
    scales: Any = arguments.get("scale_factors") or [
        arguments.get(name) for name in ("scales_d", "scales_h", "scales_w", "scales")
    ]
    if not _consistent(scales, old, new):
        return None
    piece = out.along(out.dim, Fraction(1, times))
    if piece is None:
        return None
    sizes: list[Any] = list(new)
    sizes[axis] = extent(call.window(out))
    changes: dict[str, Any] = {"output_size": sizes}
    if arguments.get("scale_factors") is not None:
        changes["scale_factors"] = None
    return changed(call, (piece,), changes)


def _consistent(scales: Any, old: tuple[int, ...], new: tuple[int, ...]) -> bool:
    """Whether the scales given, if any, are the ratios of the sizes."""
    ratios = {new / old for old, new in zip(old, new, strict=True)}
    return all(scale is None or scale in ratios for scale in scales)


def pixel_shuffle(call: Call, out: Slice) -> Flow | None:
    """[..., C r², H, W] to [..., C, H r, W r]."""
    times = given(call)["upscale_factor"]
    return _shuffled(call, out, Fraction(times * times), Fraction(1, times))


def pixel_unshuffle(call: Call, out: Slice) -> Flow | None:
    """[..., C, H r, W r] to [..., C r², H, W]."""
    times = given(call)["downscale_factor"]
    return _shuffled(call, out, Fraction(1, times * times), Fraction(times))


def _shuffled(call: Call, out: Slice, channel: Fraction, side: Fraction) -> Flow | None:
    rank = len(call.shape)
    times = {rank - 3: channel, rank - 2: side, rank - 1: side}.get(out.dim, 1)
    piece = out.along(out.dim, times)
    return None if piece is None else Flow((piece,))


RULES: dict[str, Rule] = {
    **{f"aten.upsample_nearest{count}d": nearest for count in (1, 2, 3)},
    "aten.upsample_linear1d": outer_dims(1),
    "aten.upsample_bilinear2d": outer_dims(2),
    "aten.upsample_bicubic2d": outer_dims(2),
    "aten.upsample_trilinear3d": outer_dims(3),
    "aten.pixel_shuffle": pixel_shuffle,
    "aten.pixel_unshuffle": pixel_unshuffle,
}
