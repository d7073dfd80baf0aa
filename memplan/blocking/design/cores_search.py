"""The nest for a number of cores and a way to split among them (paper, section 3.3).

A nest that is best for one core is not best for several: those of the last memories
that are split get cheaper with their size, and what is shared is sent once to all, over
wires as long as all memories are wide. A search goes on from the nests that the bounds
are of, at the prices that last memories have beside all bytes of the best so far; what
it finds is then counted exactly, with the buffers that take the least, and improved by
small changes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memplan.blocking.cost.objective import Codesign
from memplan.blocking.design.cores_bound import CoresBound
from memplan.blocking.design.parallel import (
    CoresEnergy,
    best_cores_energy,
    check_split,
)
from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.nest import Nest, nest_of
from memplan.blocking.search.exact import problem_of
from memplan.blocking.search.incumbent import ProgressReport, SearchProgress
from memplan.blocking.search.kernel_loops import nest_from, numbered
from memplan.blocking.search.result import Options
from memplan.cores import cores as all_cores
from memplan.errors import UsageError
from memplan.native import _nest

_USUAL = 3.0  # seconds of a search, where there is no limit
_LONGER = 3  # times that, of a part of the bound
_ROUNDS = 2  # of annealing
_CHANGES = 200  # of a nest, tried one after the other
_SAME = 1e-9
_DEFAULT = Options()


@dataclass(frozen=True)
class CoresNest:
    """The best nest found for so many cores, and its energy; one_nest: that of the nest
    that was given; both with the buffers that take the least (`best_cores_energy`);
    lower_bound: pJ that no nest takes less than on these cores."""

    nest: Nest
    energy: CoresEnergy
    one_nest: CoresEnergy
    lower_bound: float

    @property
    def gap(self) -> float:
        """How far above the bound the energy is, relative to it."""
        return max(self.energy.total / self.lower_bound - 1, 0.0)


def optimize_for_cores(
    one: Nest,
    ways: Sequence[tuple[int, str]],
    objective: Codesign | None = None,
    options: Options = _DEFAULT,
    progress: ProgressReport | None = None,
) -> list[CoresNest]:
    """For each number of cores and split, "k" or "xy", the best nest found, over the
    layer and on the datapath of `one`, and never worse than it.

    options: threads, and the seconds of each of two searches a way, by default 3; three
    bounds may take three times as long.
    Ctrl-C ends all.
    Raises UsageError where the layer cannot be split so, or for options that minimize
    anything but energy.
    """
    if options.minimize != "energy" or options.front or options.target is not None:
        raise UsageError("nests for several cores are those of least energy")
    for cores, split in ways:
        check_split(one, cores, split)
    machine = objective or Codesign()
    searches = [_Search(one, way, machine, options, progress) for way in ways]
    alone: _Search | None = None
    for search in searches:
        if search.cores == 1 and alone is not None:
            search.bound = alone.bound  # the same for both splits
            continue
        search.run()
        alone = search if search.cores == 1 else alone
    nests = {str(nest): nest for search in searches for nest in search.nests}
    for search in searches:
        search.improve(list(nests.values()))
    return [search.result() for search in searches]


class _Search:
    """One number of cores, split one way."""

    def __init__(
        self,
        one: Nest,
        way: tuple[int, str],
        machine: Codesign,
        options: Options,
        progress: ProgressReport | None,
    ) -> None:
        self.cores, self._split = way
        self._one, self._machine, self._progress = one, machine, progress
        self._threads = options.threads or all_cores()
        limit = options.time_limit
        self._seconds = _USUAL if limit is None else limit
        self._begin = time.perf_counter()
        self._bound = CoresBound(one, way, machine, self._threads, self._report)
        self.bound, self._tried = 0.0, 0
        self.nests: list[Nest] = []
        self._given = self._energy(one)
        self._nest, self._best = one, self._given

    def run(self) -> None:
        """The bound; and a search from the nests that it is of."""
        if self.cores > 1:
            self._climb(self._best.sram_bytes)  # a better nest makes bounds quicker
        longer = _LONGER * self._seconds
        self.bound = self._bound.least(
            self._best.total, self._best.sram_bytes, 3 * longer, longer
        )
        if self.cores == 1:
            return  # the nest given is that of a search for one core
        for nest in self._bound.nests:
            self._keep(nest)
        # Larger memories are cheaper ones, smaller ones have shorter wires.
        for part in (1, 4):
            self._climb(self._best.sram_bytes / part)

    def improve(self, nests: Sequence[Nest]) -> None:
        """From the best of these nests to where small changes do not help."""
        for nest in nests:
            self._take(nest)
        if self.cores == 1:
            return  # the nest given is that of a search for one core
        chance = random.Random(0)
        for _ in range(_CHANGES):
            changed = _changed(self._nest, chance)
            if changed is not None:
                self._take(changed)

    def result(self) -> CoresNest:
        """The best so far."""
        bound = min(self.bound, self._best.total)
        return CoresNest(self._nest, self._best, self._given, bound)

    def _energy(self, nest: Nest) -> CoresEnergy:
        return best_cores_energy(nest, self.cores, self._split, self._machine)

    def _take(self, nest: Nest) -> None:
        found = self._energy(nest)
        if found.total < self._best.total * (1 - _SAME):
            self._nest, self._best = nest, found

    def _keep(self, nest: Nest) -> None:
        self.nests.append(nest)
        self._take(nest)

    def _climb(self, nbytes: float) -> None:
        """A nest at the prices of memories that take so many bytes in all."""
        layer, unroll = self._one.layer, self._one.unroll
        loops, tried, _, interrupted = _nest.improved(
            problem_of(
                layer,
                unroll,
                self._machine,
                last=self._bound.prices(nbytes),
            ),
            [numbered(nest) for nest in (self._nest, self._one, *self.nests)],
            bound=0.0,
            rounds=_ROUNDS,
            seconds=self._seconds,
            threads=self._threads,
            report=self._report,
        )
        if interrupted:
            raise KeyboardInterrupt
        self._tried += tried
        self._keep(nest_from(loops, layer, unroll))

    def _report(self) -> None:
        if self._progress is not None:
            seconds = time.perf_counter() - self._begin
            self._progress(SearchProgress(self._best.total, self._tried, seconds))


def _changed(nest: Nest, chance: random.Random) -> Nest | None:
    """The nest with two loops exchanged, a loop more or less, or another extent."""
    loops = [(loop.dim, loop.outer) for loop in nest.loops]
    place = chance.randrange(max(len(loops), 1))
    kind = chance.randrange(4)
    if kind == 0 and place + 1 < len(loops):
        loops[place : place + 2] = loops[place + 1], loops[place]
    elif kind == 1 and loops and _inner(loops, place):
        del loops[place]
    elif kind == 2 and loops and _inner(loops, place):
        dim = loops[place][0]
        loops[place] = dim, _extent(nest, dim, chance)
    else:
        dim = chance.choice("XYCKB")
        loops.insert(place, (dim, _extent(nest, dim, chance)))
    return _made(nest.layer, loops, nest.unroll)


def _inner(loops: Sequence[tuple[str, int]], place: int) -> bool:
    """Whether another loop of its dimension lies outside."""
    return loops[place][0] in {dim for dim, _ in loops[place + 1 :]}


def _extent(nest: Nest, dim: str, chance: random.Random) -> int:
    """One that makes another number of trips than the next."""
    lanes, size = nest.unroll.get(dim, 1), nest.layer.size(dim)
    tiles = -(-size // lanes)
    return min(-(-tiles // chance.randint(1, tiles)) * lanes, size)


def _made(
    layer: Layer, loops: Sequence[tuple[str, int]], unroll: Mapping[str, int]
) -> Nest | None:
    """The nest, if these loops are one: extents must not fall, groups stay outside."""
    reached: dict[str, int] = {}
    kept = []
    for dim, extent in loops:
        if extent < reached.get(dim, 1):
            return None
        reached[dim] = extent
        kept.append((dim, extent))
    groups = [loop for loop in kept if loop[0] == "G"]
    try:
        return nest_of(layer, [o for o in kept if o[0] != "G"] + groups, unroll)
    except UsageError:
        return None
