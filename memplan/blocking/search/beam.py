"""The paper's heuristic: levels are added from the inside out (section 3.5).

The 128 best nests seed the next level, together with one random change of each. The
outermost extent that a seed has of every dimension is freed, and one more loop of each
is put around it, in every order; of each order the four best are kept. At last, the
best nests are improved: all loops of one dimension are placed anew, as long as that
helps.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from memplan.arrays import Float64Array, Int64Array
from memplan.blocking.cost.many import BatchEvaluator
from memplan.blocking.cost.objective import Objective
from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.orders import (
    WINDOW,
    Blocking,
    Extents,
    Order,
    level_orders,
)
from memplan.blocking.nest.outer_level import OuterLevel
from memplan.blocking.search.incumbent import Incumbent, SearchProgress, found_by
from memplan.blocking.search.moves import changed_at_random, improve
from memplan.blocking.search.result import Options, Result

WIDTH = 128  # nests that seed the next level
PER_ORDER = 4
IMPROVED = 3
MAX_LEVELS = 8
_SAMPLE = 12  # nests tried of a seed and order before all of them are
_WHOLE = 1 << 19  # nests of one level that are tried after that
BEAM = Options("beam")


def beam_search(
    layer: Layer,
    unroll: Mapping[str, int],
    objective: Objective,
    options: Options = BEAM,
    progress: Callable[[SearchProgress], None] | None = None,
) -> Result:
    """A good nest, for any layer and objective; the same one for the same seed.

    options: levels are loops of one dimension that are built up, at most; improvement
    may add more. Ctrl-C, or the end of the time, returns the best so far.
    Raises UsageError where there are too many levels.
    """
    levels = options.levels_within(4, MAX_LEVELS)
    blocking = Blocking(layer, unroll)
    incumbent = Incumbent(options.time_limit, progress)
    beam = _Beam(blocking, objective, incumbent, np.random.default_rng(options.seed))

    def search() -> None:
        beam.start()
        for _ in range(1, levels):
            beam.widen()
        for order, extents in list(beam.kept)[:IMPROVED]:
            improve(beam.evaluate, blocking, incumbent, order, extents)

    return found_by(options.method, blocking, incumbent, search)


class _Beam:
    """The nests found that are not yet ranked, and the best of those that are."""

    def __init__(
        self,
        blocking: Blocking,
        objective: Objective,
        incumbent: Incumbent,
        random: np.random.Generator,
    ) -> None:
        self.evaluate = BatchEvaluator(blocking.layer, blocking.unroll, objective)
        self._blocking, self._incumbent, self._random = blocking, incumbent, random
        self._found: list[tuple[float, Order, Int64Array]] = []
        self.kept: dict[tuple[Order, Extents], float] = {}

    def start(self) -> None:
        """All nests of one loop a dimension."""
        blocking = self._blocking
        for short in level_orders(blocking.dims):
            for place in range(len(short) + 1) if blocking.window else (0,):
                block = (WINDOW,) if blocking.window else ()
                order = blocking.spelled((*short[:place], *block, *short[place:]))
                sizes = [[blocking.size[dim]] for dim in order]
                self._try(order, np.array(sizes, dtype=np.int64).reshape(-1, 1))
        self._rank()

    def widen(self) -> None:
        """One level more."""
        blocking = self._blocking
        seeds = set(self.kept)
        for nest in self.kept:
            changed = changed_at_random(blocking, self._random, *nest)
            seeds.add(blocking.tidied(*changed))
        level = OuterLevel(blocking, sorted(seeds))
        for order, extents, sections in level.parts(self._promising(level)):
            begins = [section.begin for section in sections]
            self._try(order, extents, begins)
        self._rank()

    def _rank(self) -> None:
        """Keep as many as seed the next level, those of least energy first."""
        found, self._found = self._found, []
        known = [(energy, nest) for nest, energy in self.kept.items()]
        merged = heapq.merge(
            known,
            (
                (energy, self._blocking.tidied(order, tuple(column.tolist())))
                for energy, order, column in sorted(found, key=lambda one: one[0])
            ),
            key=lambda one: one[0],
        )
        self.kept = {}
        for energy, nest in merged:
            self.kept.setdefault(nest, energy)
            if len(self.kept) == WIDTH:
                break

    def _promising(self, level: OuterLevel) -> list[tuple[int, int]]:
        """Pairs of seed and outer order with no more than _WHOLE nests in all; if there
        are more, those with the best among a few nests drawn from each."""
        counts = level.counts()
        pairs = [(int(i), int(j)) for i, j in np.argwhere(counts)]
        if counts.sum() <= _WHOLE:
            return pairs
        ranked = []
        key = int(self._random.integers(1 << 32))
        for order, extents, sections in level.parts(pairs, _SAMPLE, key):
            energies = self.evaluate(order, extents)
            self._incumbent.offer(energies, order, extents)
            for part in sections:
                least = float(energies[part.begin : part.end].min())
                ranked.append((least, part.seed, part.outer))
        chosen: list[tuple[int, int]] = []
        left = _WHOLE
        for _, seed, outer in sorted(ranked):
            left -= int(counts[seed, outer])
            if left < 0 and chosen:
                break
            chosen.append((seed, outer))
        return sorted(chosen)

    def _try(
        self, order: Order, extents: Int64Array, begins: Sequence[int] = (0,)
    ) -> None:
        """Keep the best from each of `begins` to the next, or to the end."""
        energies = self.evaluate(order, extents)
        self._incumbent.offer(energies, order, extents)
        for begin, end in zip(begins, [*begins[1:], len(energies)], strict=True):
            for place in _least(energies[begin:end], PER_ORDER):
                row = begin + place
                column = extents[:, row].copy()
                self._found.append((float(energies[row]), order, column))


def _least(energies: Float64Array, count: int) -> list[int]:
    """Positions of the least."""
    if len(energies) <= count:
        return list(range(len(energies)))
    found: list[int] = np.argpartition(energies, count - 1)[:count].tolist()
    return found
