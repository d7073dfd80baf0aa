"""Loops as the kernels number them, and those of nests that a relaxation has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.nest import Nest, nest_of
from memplan.blocking.search.exact import LOOPS, WINDOW, base_of
from memplan.native import _nest

DIMS = (*LOOPS, *WINDOW)  # as the kernels number them
MOST = 24  # loops that a start of a search may have

Loops = Sequence[tuple[int, int]]  # dimension and extent, innermost first


def numbered(nest: Nest) -> list[tuple[int, int]]:
    """The loops as the kernels have them, without groups."""
    pairs = ((loop.dim, loop.outer) for loop in nest.loops)
    return [(DIMS.index(dim), extent) for dim, extent in pairs if dim != "G"]


def nest_from(loops: Loops, layer: Layer, unroll: Mapping[str, int]) -> Nest:
    """The nest of these loops, with a loop over groups where there are several."""
    named = [(DIMS[dim], extent) for dim, extent in loops]
    if base_of(layer, unroll)["G"] < layer.G:
        named.append(("G", layer.G))
    return nest_of(layer, named, unroll)


def relaxed_loops(relaxed: _nest.Optimum) -> list[tuple[int, int]]:
    """The loops of a relaxation's optimum, as few as will do; none where there is no
    optimum, or it has more than MOST."""
    loops = _kept(relaxed.loops, _striped(relaxed), _slid(relaxed))
    return loops if len(loops) <= MOST else []


def _striped(relaxed: _nest.Optimum) -> set[int]:
    """Numbers of the loops that sweep over a stripe of the input that is kept."""
    outer = [number for tensor, number, *_ in relaxed.kept if tensor == 0]
    return {number for number in outer if DIMS[relaxed.loops[number][0]] in "XY"}


def _slid(relaxed: _nest.Optimum) -> set[int]:
    """Numbers of the loops along which a buffer that is kept slides."""
    return {number for _, number, _, _, slides in relaxed.kept if slides}


def _kept(loops: Loops, striped: Set[int], slid: Set[int]) -> list[tuple[int, int]]:
    """The relaxation's loops, of which neighbours that use the same tensors again are
    one of each dimension, up to a stripe and outside of it; a loop along which a buffer
    slides stays as it is, around the same tile."""
    kept: list[tuple[int, int]] = []
    inside = 0  # loops that are in a stripe, or in a sliding buffer
    for number, (dim, extent) in enumerate(loops):
        place = len(kept)
        if number in slid:
            inside = place
        while place > inside and _alike(kept[place - 1][0], dim):
            place -= 1
            if kept[place][0] == dim:
                del kept[place]
        kept.append((dim, extent))
        if number in striped:
            inside = len(kept)
    return kept


def _alike(one: int, other: int) -> bool:
    """Whether loops of both dimensions use the same tensors again."""
    groups = (("X", "Y", "B"), ("C",), ("K",), ("Fw", "Fh"))
    return any(DIMS[one] in group and DIMS[other] in group for group in groups)
