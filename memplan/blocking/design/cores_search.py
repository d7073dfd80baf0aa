"""The nest for a number of cores and a way to split among them (paper, section 3.3).

A nest that is best for one core is not best for several: those of the last memories
that are split get cheaper with their size, and what is shared is sent once to all, over
wires as long as all memories are wide. A search goes on from the nests that the bounds
are of, at the prices that last memories have beside all bytes of the best so far; what
it finds is then counted exactly, with the buffers that take the least, and improved by
small changes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from memplan.blocking.cost.objective import Codesign
from memplan.blocking.design.cores_bound import CoresBound
from memplan.blocking.design.nest_changes import descended
from memplan.blocking.design.parallel import (
    CoresEnergy,
    best_cores_energy,
    check_split,
)
from memplan.blocking.nest.nest import Nest
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
_STARTS = 3  # nests that are improved, the best first
_CHANGES = 1000  # of each, and of what it became, tried at most
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

    options: threads, and the seconds of each of three searches a way, by default 3; a
    bound may take about nine times as long. Ctrl-C ends all.
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
        self._below = CoresBound(one, way, machine, self._threads, self._report)
        self.bound, self._tried = 0.0, 0  # pJ, and nests
        self.nests: list[Nest] = []
        self._given = self._energy(one)
        self._nest, self._best = one, self._given

    def run(self) -> None:
        """The bound; and a search from the nests that it is of."""
        if self.cores > 1:
            self._climb(self._best.sram_bytes)  # a better nest makes bounds quicker
        longer = _LONGER * self._seconds
        self.bound = self._below.least(
            self._best.total, self._best.sram_bytes, 3 * longer, longer
        )
        if self.cores == 1:
            return  # the nest given is that of a search for one core
        for nest in self._below.nests:
            self._keep(nest)
        # Larger memories are cheaper ones, smaller ones have shorter wires.
        for part in (1, 4):
            self._climb(self._best.sram_bytes / part)

    def improve(self, nests: Sequence[Nest]) -> None:
        """From the best of these nests to where small changes do not help."""
        if self.cores == 1:  # the nest given is that of a search for one core
            for nest in nests:
                self._take(nest)
            return
        starts = {str(nest): nest for nest in (self._nest, *nests)}.values()
        for nest in sorted(starts, key=self._pj)[:_STARTS]:
            self._take(descended(nest, self._pj, _CHANGES))

    def result(self) -> CoresNest:
        """The best so far."""
        bound = min(self.bound, self._best.total)
        return CoresNest(self._nest, self._best, self._given, bound)

    def _energy(self, nest: Nest) -> CoresEnergy:
        return best_cores_energy(nest, self.cores, self._split, self._machine)

    def _pj(self, nest: Nest) -> float:
        return self._energy(nest).total

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
                last=self._below.prices(nbytes),
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
