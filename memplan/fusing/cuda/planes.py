"""Planes of a pooled sequence: their tiles, the rows a thread makes, the buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memplan.fusing.operations import Pool
from memplan.fusing.patches import Span, spans

_ROWS = 4  # outputs one below the other that a thread makes
_UNROLLED = 128  # reads of one thread that are written out


@dataclass(frozen=True)
class Plane:
    """The plane before the first pool, or behind one, and the largest tile of it.

    made: rows of the tile that are in the plane. rows and columns: with padding, as
    the tile lies in a buffer. strip: rows that a thread makes, one below the other.
    capacity: points that its buffer has room for; none behind the last pool.
    """

    height: int
    width: int
    made: int
    rows: int
    columns: int
    strip: int = 1
    capacity: int = 0

    @property
    def strips(self) -> int:
        """Strips of a tile, the last of which may be cut off."""
        return -(-self.made // self.strip)


def tiled(
    pools: Sequence[Pool], size: tuple[int, int], patch: tuple[int, int], most: int
) -> list[Plane]:
    """The planes of height and width `size` and what pools make of it, for blocks that
    make `patch` of the last.

    Strips are as long as keeps the two buffers within `most` points together. If those
    of one row exceed it (patches at the border may be larger than those in the middle,
    by which sequences are measured), patches are made smaller, down to one point.
    """
    strips, (rows, columns) = [_strip(pool) for pool in pools], patch
    while True:
        tiles = [
            _largest(pools, axis, size[axis], part)
            for axis, part in enumerate((rows, columns))
        ]
        planes = _planes(pools, size, tiles, strips)
        if sum(buffers(planes)) <= most or (rows, columns) == (1, 1):
            return planes
        if max(strips) > 1:
            strips = [max(strip // 2, 1) for strip in strips]
        elif rows >= columns:
            rows = -(-rows // 2)
        else:
            columns = -(-columns // 2)


def buffers(planes: Sequence[Plane]) -> tuple[int, int]:
    """Points of the two buffers: of the planes but the last, in turn."""
    capacities = [plane.capacity for plane in planes[:-1]]
    return max(capacities[::2]), max(capacities[1::2], default=0)


def unrolled(pool: Pool, strip: int) -> bool:
    """Whether a thread's reads are written out, and rows shared by its outputs."""
    return rows_read(pool, strip) * pool.kernel[1] <= _UNROLLED


def rows_read(pool: Pool, strip: int) -> int:
    """Rows of the plane before, from the first to the last that a strip looks at."""
    return (strip - 1) * pool.stride[0] + pool.reach(0)


def _strip(pool: Pool) -> int:
    """Rows that are worth making together: one, where windows do not overlap."""
    strip = _ROWS if pool.reach(0) > pool.stride[0] else 1
    while strip > 1 and not unrolled(pool, strip):
        strip //= 2
    return strip


def _largest(
    pools: Sequence[Pool], axis: int, size: int, patch: int
) -> list[tuple[int, int]]:
    """Of each plane, the most rows (or columns) that a tile has in the plane, and in
    all."""
    out = size
    for pool in pools:
        out = pool.size(out, out)[axis]
    tiles: list[list[Span]] = [
        spans(pools, axis, start, min(start + patch, out), size)
        for start in range(0, out, patch)
    ]
    return [
        (max(each.computed for each in plane), max(each.held for each in plane))
        for plane in zip(*tiles, strict=True)
    ]


def _planes(
    pools: Sequence[Pool],
    size: tuple[int, int],
    tiles: Sequence[Sequence[tuple[int, int]]],
    strips: Sequence[int],
) -> list[Plane]:
    sizes = [size]
    for pool in pools:
        sizes.append(pool.size(*sizes[-1]))
    planes: list[Plane] = []
    for number in reversed(range(len(sizes))):
        (made, rows), (_, columns) = tiles[0][number], tiles[1][number]
        strip = max(min(strips[number - 1], made), 1) if number else 1
        capacity = 0
        if planes:
            read = rows_read(pools[number], planes[0].strips * planes[0].strip)
            capacity = max(read, rows) * columns
        planes.insert(0, Plane(*sizes[number], made, rows, columns, strip, capacity))
    return planes
