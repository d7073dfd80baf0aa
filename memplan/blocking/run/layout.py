"""Where a convolution's tensors lie in memory, and which cache sets they share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from memplan.blocking.machine.hierarchy import Cache, Hierarchy
from memplan.blocking.nest.layer import Layer, Tensor

FLOAT_BYTES = 4
# Planes that a few register tiles work on at the same time must not share sets.
_TOGETHER = 64
# Planes that follow each other begin apart by this part of a way divided among them.
_PLANES = 16
_EVEN = 0.5


@dataclass(frozen=True)
class Layout:
    """Elements from one row and one plane (of a channel) to the next in memory.

    Input [B][G C][rows][columns], padding included; output [B][G K][Y][X].
    packed_kernel: [G][K / 8][C][Fh][Fw][8], else [G][K][C][Fh][Fw].
    """

    input_row: int
    input_plane: int
    output_row: int
    output_plane: int
    packed_kernel: bool = True

    @classmethod
    def dense(cls, layer: Layer, packed_kernel: bool = True) -> Layout:
        """Row after row, plane after plane."""
        wide, high = input_size(layer)
        plane = layer.X * layer.Y
        return cls(wide, wide * high, layer.X, plane, packed_kernel)

    def planes(self, layer: Layer) -> Iterable[tuple[Tensor, int, int]]:
        """Each tensor of planes: how many an image has, bytes from one to the next."""
        yield Tensor.INPUT, layer.G * layer.C, self.input_plane * FLOAT_BYTES
        yield Tensor.OUTPUT, layer.G * layer.K, self.output_plane * FLOAT_BYTES


@dataclass(frozen=True)
class Aliasing:
    """Planes whose first lines share too few sets of a cache level.

    stride: bytes from a plane to the next; sets: how many sets the planes begin in.
    """

    tensor: Tensor
    stride: int
    level: str
    sets: int

    def __str__(self) -> str:
        into = "one set" if self.sets == 1 else f"{self.sets} sets"
        return (
            f"{self.tensor.value}: planes lie {self.stride} bytes apart, and begin all "
            f"in {into} of {self.level}; pad the planes"
        )


def input_size(layer: Layer) -> tuple[int, int]:
    """Columns and rows of an input plane, padding included."""
    wide = (layer.X - 1) * layer.stride[0] + layer.Fw
    high = (layer.Y - 1) * layer.stride[1] + layer.Fh
    return wide, high


def aliasing(
    layer: Layer, layout: Layout, hierarchy: Hierarchy
) -> tuple[Aliasing, ...]:
    """Where planes get in each other's way: one entry for each tensor and level.

    A stride that is a multiple of a level's way puts all planes into the same set; one
    that shares a large factor with it, into few.
    """
    found = []
    for tensor, planes, stride in layout.planes(layer):
        for level, cache in zip(hierarchy.levels, hierarchy.caches, strict=True):
            way = cache.nbytes // cache.ways
            sets = min(way // math.gcd(stride, way), way // cache.line)
            if sets * cache.ways < min(planes, _TOGETHER):
                found.append(Aliasing(tensor, stride, level.name, sets))
    return tuple(found)


def padded(layer: Layer, layout: Layout, hierarchy: Hierarchy) -> Layout:
    """The layout with those planes that alias moved apart by whole lines.

    By the fewest lines with which planes that follow each other begin far apart in
    every level, if not further than one way of the first level.
    """
    caches = hierarchy.caches
    line = max(cache.line for cache in caches)
    crowded = {entry.tensor for entry in aliasing(layer, layout, hierarchy)}

    def plane(tensor: Tensor, elements: int) -> int:
        if tensor not in crowded:
            return elements
        lines = -(-elements * FLOAT_BYTES // line)
        most = max(1, caches[0].nbytes // caches[0].ways // line)
        strides = [(lines + more) * line for more in range(most)]
        even = (stride for stride in strides if _spread(stride, caches) > _EVEN)
        best = next(even, max(strides, key=lambda stride: _spread(stride, caches)))
        return best // FLOAT_BYTES

    return replace(
        layout,
        input_plane=plane(Tensor.INPUT, layout.input_plane),
        output_plane=plane(Tensor.OUTPUT, layout.output_plane),
    )


def _spread(stride: int, caches: Sequence[Cache]) -> float:
    """How evenly planes `stride` bytes apart begin in a way of each level; 1 is best.

    Planes that do not reach around a way need no more room than their own length.
    """
    worst = 1.0
    for cache in caches:
        way = cache.nbytes // cache.ways
        starts = sorted(plane * stride % way for plane in range(_PLANES))
        around = pairwise([*starts, starts[0] + way])
        gap = min(after - before for before, after in around)
        worst = min(worst, gap / min(way / _PLANES, stride))
    return worst
