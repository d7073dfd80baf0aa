"""Loop nests written as strings, innermost loop first (paper, section 3.1)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from memplan.blocking.nest.layer import DIMS, Layer, Tensor, columns
from memplan.errors import UsageError

_TOKEN = re.compile(r"(Fw|Fh|[XYCKBG])([0-9]{1,18})\Z")
MAX_LOOPS = 256


@dataclass(frozen=True)
class Loop:
    """Steps through `dim` in tiles of `inner` until it has covered `outer`."""

    dim: str
    inner: int
    outer: int

    def __str__(self) -> str:
        return f"{self.dim}{self.outer}"


@dataclass(frozen=True)
class Nest:
    """Loops, innermost first, over a layer.

    unroll: what the datapath does at once, by dimension. Below all loops lies as much
    of it as the layer has; where it does not divide a size, lanes idle at the edge, and
    nothing is fetched for them. Extents are cumulative: a loop's `outer` is what it and
    those inside it cover. They need not divide each other: the last tile of a loop is
    then smaller.
    """

    layer: Layer
    loops: tuple[Loop, ...]
    unroll: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(map(str, self.loops))

    def base(self, dim: str) -> int:
        """What the datapath covers of `dim`, below all loops."""
        return min(self.unroll.get(dim, 1), self.layer.size(dim))

    @property
    def utilisation(self) -> float:
        """The part of the datapath's multipliers that works, in (0, 1]."""
        used = 1.0
        for dim, lanes in self.unroll.items():
            size = self.layer.size(dim)
            used *= size / (-(-size // lanes) * lanes)
        return used

    def extents(self, position: int) -> dict[str, int]:
        """Of the tile that the loops before `position` cover."""
        found = {dim: self.base(dim) for dim in DIMS}
        for loop in self.loops[:position]:
            found[loop.dim] = loop.outer
        return found

    @cached_property
    def _tiles(self) -> dict[tuple[str, int], Counter[int]]:
        """Sizes of all tiles of each dimension and extent, and how many there are."""
        found: dict[tuple[str, int], Counter[int]] = {}
        for dim in DIMS:
            chain = [self.base(dim)]
            chain += [loop.outer for loop in self.loops if loop.dim == dim]
            tiles = Counter({chain[-1]: 1})
            for extent in reversed(chain):
                tiles = _split(tiles, extent)
                found[dim, extent] = tiles
        return found

    def tiles(self, dim: str, extent: int) -> Counter[int]:
        """Tile sizes and their numbers, where `dim` is cut into tiles of `extent`."""
        return self._tiles[dim, extent]

    def visits(self, dim: str, extent: int) -> int:
        """Tiles that `dim` is cut into at `extent`."""
        return self._tiles[dim, extent].total()

    def fetched(
        self, tensor: Tensor, inner: Mapping[str, int], outer: Mapping[str, int]
    ) -> int:
        """Elements of `tensor` moved if every tile is fetched where it is visited.

        inner: the tile's extents; outer: those after the loops that use it again.
        """
        layer = self.layer
        again: tuple[str, ...]
        if tensor is Tensor.KERNEL:
            total = layer.C * layer.K * layer.Fw * layer.Fh * layer.G
            again = ("X", "Y", "B")
        elif tensor is Tensor.OUTPUT:
            total = layer.X * layer.Y * layer.K * layer.B * layer.G
            again = ("C", "Fw", "Fh")
        else:
            total = layer.C * layer.B * layer.G
            total *= self._window(inner, outer, "X", "Fw", layer.stride[0])
            total *= self._window(inner, outer, "Y", "Fh", layer.stride[1])
            again = ("K",)
        for dim in again:
            total *= self.visits(dim, outer[dim])
        return total

    def _window(
        self,
        inner: Mapping[str, int],
        outer: Mapping[str, int],
        along: str,
        window: str,
        stride: int,
    ) -> int:
        """Columns of all tiles, each with the part of the window it is used with."""
        return sum(
            columns(count, part, stride) * times * of
            for count, times in self.tiles(along, inner[along]).items()
            for part, of in self.tiles(window, outer[window]).items()
        )


def _split(tiles: Counter[int], extent: int) -> Counter[int]:
    found: Counter[int] = Counter()
    for size, times in tiles.items():
        whole, rest = divmod(size, extent)
        found[extent] += whole * times
        if rest:
            found[rest] += times
    return +found


def parse_nest(
    text: str, layer: Layer, unroll: Mapping[str, int] | None = None
) -> Nest:
    """The nest that a string like ``Fw3 Fh3 X4 C2 K4 X8`` describes.

    Loops of a single trip are dropped. An extent is a multiple of what the datapath
    does at once, or the whole size; the size rounded up to that stands for it.
    Raises UsageError naming the token that is wrong, or the dimension left uncovered.
    """
    unroll = {dim: n for dim, n in (unroll or {}).items() if n != 1}
    tokens = text.split()
    if len(tokens) > MAX_LOOPS:
        raise UsageError(f"the string has {len(tokens)} loops, more than {MAX_LOOPS}")
    found = _Chains(layer, unroll)
    loops: list[Loop] = []
    for number, token in enumerate(tokens, 1):
        match = _TOKEN.match(token)
        where = f"token {number}, {token!r}"
        if match is None:
            raise UsageError(
                f"{where}: a loop is one of {', '.join(DIMS)} with its extent: Fw3, X8"
            )
        inner = found.reached[match[1]]
        outer = found.extended(match[1], int(match[2]), where)
        if outer > inner:
            loops.append(Loop(match[1], inner, outer))
    for dim in DIMS:
        if found.reached[dim] < layer.size(dim):
            raise UsageError(
                f"the string does not cover {layer.name}: {dim} ends at "
                f"{found.reached[dim]} of {layer.size(dim)}"
            )
    return Nest(layer, tuple(loops), unroll)


class _Chains:
    """How far the loops that were read reach, by dimension."""

    def __init__(self, layer: Layer, unroll: Mapping[str, int]) -> None:
        self._layer, self._unroll = layer, unroll
        self.reached = {dim: min(unroll.get(dim, 1), layer.size(dim)) for dim in DIMS}

    def extended(self, dim: str, extent: int, where: str) -> int:
        """Reach `extent`, or the size that it stands for, which is returned.

        Raises UsageError, which begins with `where`.
        """
        size, lanes = self._layer.size(dim), self._unroll.get(dim, 1)
        rounded = -(-size // lanes) * lanes
        if extent > rounded:
            raise UsageError(
                f"{where}: {self._layer.name} has {dim} = {size}, and no more"
            )
        if extent < 1:
            raise UsageError(f"{where}: an extent is at least 1")
        extent = min(extent, size)
        if extent < self.reached[dim]:
            inside = (
                "the loops inside it cover"
                if self.reached[dim] != min(lanes, size)
                else "the datapath's unrolling covers"
            )
            raise UsageError(
                f"{where}: {inside} {self.reached[dim]} of {dim} already; extents are "
                "cumulative, and must not fall"
            )
        if extent < size and extent % lanes:
            raise UsageError(
                f"{where}: the datapath does {lanes} of {dim} at once, and "
                f"{extent} is no multiple of it"
            )
        self.reached[dim] = extent
        return extent


def nest_of(
    layer: Layer, loops: Sequence[tuple[str, int]], unroll: Mapping[str, int]
) -> Nest:
    """The nest of (dimension, extent) pairs, as `parse_nest` makes it."""
    return parse_nest(" ".join(f"{dim}{n}" for dim, n in loops), layer, unroll)


def parse_unroll(text: str) -> dict[str, int]:
    """What the datapath does at once, from ``C16,K16``; nothing from an empty text.

    Raises UsageError naming the part that is wrong.
    """
    found: dict[str, int] = {}
    for part in filter(None, re.split(r"[,\s]+", text)):
        match = _TOKEN.match(part)
        if match is None or int(match[2]) < 1:
            raise UsageError(
                f"unrolling {part!r}: give dimensions with a number, such as C16,K16"
            )
        if match[1] in found:
            raise UsageError(f"unrolling {part!r}: {match[1]} is given twice")
        found[match[1]] = int(match[2])
    return found
