"""One more loop of each dimension around given nests, in every order.

All orders are written as one: a cycle of the dimensions long enough to hold each of
them, where the loops that an order does not use make a single trip. So few calls of
the batch evaluator do for many short lists of extents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memplan.arrays import Int64Array
from memplan.blocking.nest.orders import Blocking, Extents, Order, grid, level_orders

_PART = 1 << 15  # nests between two looks at the clock


@dataclass(frozen=True)
class Section:
    """Some of the nests of one seed with one outer order: columns [begin, end)."""

    seed: int
    outer: int
    begin: int
    end: int


class OuterLevel:
    """Seeds whose outermost extents are free, inside one more level.

    seeds: tidied nests. outers: the orders of the new level.
    """

    def __init__(
        self, blocking: Blocking, seeds: Sequence[tuple[Order, Extents]]
    ) -> None:
        self._blocking = blocking
        self.outers = level_orders(blocking.dims)
        self._cycle, self._sources = _cycle(blocking.dims, self.outers)
        self._whole = _column([blocking.size[dim] for dim in blocking.dims])
        self._groups = _column([blocking.size[dim] for dim in blocking.groups])
        self._seeds = [_Seed(blocking, order, extents) for order, extents in seeds]

    def counts(self) -> Int64Array:
        """Nests of every seed and outer order, shape (seeds, outers).

        0 where the outer level would begin with the dimension that the seed ends with:
        the same nests come with another order.
        """
        found = np.array([[seed.count] for seed in self._seeds], dtype=np.int64)
        ends = [seed.order[-1:] for seed in self._seeds]
        repeats = [[bool(e) and o[:1] == e for o in self.outers] for e in ends]
        return np.where(np.array(repeats, dtype=bool), 0, found)

    def parts(
        self, pairs: Sequence[tuple[int, int]], sample: int | None = None, key: int = 0
    ) -> Iterator[tuple[Order, Int64Array, list[Section]]]:
        """Order, extents and sections of the pairs of seed and outer order.

        All their nests or, of each pair, `sample` at random; the same ones for the
        same `key`. Pairs must come seed by seed.
        """
        random = np.random.default_rng(key)
        rows: list[Int64Array] = []
        sections: list[Section] = []
        order: Order = ()
        count = 0
        for seed, outers in _grouped(pairs):
            own = self._seeds[seed]
            spelled = (*own.order, *self._cycle, *self._blocking.groups)
            chosen = own.grid() if sample is None else own.drawn(random, sample)
            width = chosen.shape[1]
            for outer in outers:
                if rows and (spelled != order or count + width > _PART):
                    yield order, np.concatenate(rows, axis=1), sections
                    rows, sections, count = [], [], 0
                order = spelled
                rows.append(self._extents(own, outer, chosen))
                sections.append(Section(seed, outer, count, count + width))
                count += width
        if rows:
            yield order, np.concatenate(rows, axis=1), sections

    def _extents(self, seed: _Seed, outer: int, chosen: Int64Array) -> Int64Array:
        """Of one seed and outer order, where `chosen` are the freed extents, by
        dimension."""
        inner, width = len(seed.order), chosen.shape[1]
        cycle, dims = len(self._cycle), len(chosen)
        reached = np.empty((2 * dims, width), dtype=np.int64)
        reached[:dims] = chosen
        reached[dims:] = self._whole
        loops = inner + cycle + len(self._groups)
        extents = np.empty((loops, width), dtype=np.int64)
        extents[:inner] = seed.column
        extents[seed.free] = chosen
        extents[inner : inner + cycle] = reached[self._sources[outer]]
        extents[inner + cycle :] = self._groups
        return extents


class _Seed:
    """A nest without its groups, and what its freed extents may be."""

    def __init__(self, blocking: Blocking, order: Order, extents: Extents) -> None:
        loops = [
            loop for loop in zip(order, extents, strict=True) if loop[0] not in "G"
        ]
        self.order: Order = tuple(dim for dim, _ in loops)
        self.column = _column([extent for _, extent in loops])
        self.free: list[int] = []
        self.choices: list[Int64Array] = []
        for dim in blocking.dims:
            *inside, last = [i for i, own in enumerate(self.order) if own == dim]
            self.free.append(last)
            below = loops[inside[-1]][1] if inside else None
            self.choices.append(blocking.extents(dim, below))
        self.count = int(np.prod([len(own) for own in self.choices], dtype=np.int64))

    def grid(self) -> Int64Array:
        """All combinations, shape (dimensions, count)."""
        return grid(self.choices)

    def drawn(self, random: np.random.Generator, count: int) -> Int64Array:
        """Some at random, or all if there are no more."""
        if self.count <= count:
            return self.grid()
        rows = [own[random.integers(len(own), size=count)] for own in self.choices]
        return np.stack(rows)


def _column(values: Sequence[int]) -> Int64Array:
    return np.array(values, dtype=np.int64).reshape(-1, 1)


def _cycle(
    dims: Order, outers: Sequence[Order]
) -> tuple[Order, list[npt.NDArray[np.intp]]]:
    """The cycle, and for every order what its loops reach: the number of a dimension
    before its own loop, where the seed's extent stays, and from there on that number
    plus len(dims), for the whole size."""
    n = len(dims)
    cycle = tuple(dims[i % n] for i in range(n * n - n + 1)) if n else ()
    sources = []
    for outer in outers:
        place, slots = -1, {}
        for dim in outer:
            place = slots[dim] = cycle.index(dim, place + 1)
        reached = [
            dims.index(dim) + n * (place >= slots[dim])
            for place, dim in enumerate(cycle)
        ]
        sources.append(np.array(reached, dtype=np.intp))
    return cycle, sources


def _grouped(pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, list[int]]]:
    seeds: dict[int, list[int]] = {}
    for seed, outer in pairs:
        seeds.setdefault(seed, []).append(outer)
    yield from seeds.items()
