"""A nest of few cycles, or of little energy times cycles.

Cycles are no sum over what passes the memories, but they are bounded by such sums, and
these have the shape of an energy. So the searches for little energy run with cycles a
byte for prices, and with energies and cycles mixed; what they find is timed, with its
buffers in several choices of memories, and the best is kept. What they prove bounds
the cycles of all nests, and energy times cycles.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from memplan.blocking.cost.evaluation import Evaluation, best_evaluation, evaluate
from memplan.blocking.cost.objective import Fixed, Objective
from memplan.blocking.cost.placement import BufferMemory, level_of
from memplan.blocking.cost.time_weights import Weights, weights_of
from memplan.blocking.cost.timed_memories import (
    FrontPoint,
    Timed,
    best_ways,
    check_minimized,
    ways,
    worth_of,
)
from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.nest import Nest
from memplan.blocking.search.incumbent import ProgressReport, SearchProgress
from memplan.blocking.search.result import Options, Result
from memplan.blocking.search.time_bounds import TimeBounds
from memplan.errors import NoPlanError

# (layer, unroll, objective, options): the nest of least energy.
Find = Callable[[Layer, Mapping[str, int], Objective, Options], Result]
_USUAL = 4.0  # seconds of a search where there is no limit
_SUMS = 3  # of those that bound the cycles, the ones that are most on a first nest
_PARTS = (1.0, 0.2, 5.0)  # of what a cycle is worth where both matter alike
_FRONT = (0.04, 25.0)  # and those between the ends of the front
_CANDIDATES = 4  # nests whose memories are looked at more closely
_SAME = 1e-9


def evaluation_of(
    layer: Layer, nest: Nest, objective: Objective, minimize: str = "energy"
) -> Evaluation:
    """The nest in the memories that take the least energy, or the least of what else is
    minimized, as a search for that has them. Raises as `check_minimized` does."""
    check_minimized(minimize, objective)
    if minimize == "energy" or not isinstance(objective, Fixed):
        return best_evaluation(layer, nest, objective)
    found = best_ways(nest, objective, minimize)
    return evaluate(layer, nest, objective, choice=found.choice)


def search_timed(
    layer: Layer,
    unroll: Mapping[str, int],
    machine: Fixed,
    options: Options,
    find: Find,
    progress: ProgressReport | None = None,
) -> Result:
    """The nest that takes the least of `options.minimize`, and a bound of it.

    find: searches for the nest of least energy by the options' method. The result's
    space is that of its bounds. Ctrl-C ends the search with the best so far.
    """
    search = _Search(layer, unroll, machine, options, find)
    search.progress = progress
    search.run()
    return search.result()


class _Search:
    """All nests that were timed, and the bounds."""

    def __init__(
        self,
        layer: Layer,
        unroll: Mapping[str, int],
        machine: Fixed,
        options: Options,
        find: Find,
    ) -> None:
        self._layer, self._unroll, self._machine = layer, unroll, machine
        self._options, self._find = options, find
        self._begin = time.monotonic()
        self._left = 1 + _SUMS + len(_PARTS) + len(_FRONT) * options.front
        self.progress: ProgressReport | None = None
        self._timed: list[Timed] = []
        self._settled: set[str] = set()
        self._first: Result | None = None
        self._bounds: TimeBounds | None = None
        self._bounded, self._complete, self._interrupted = True, True, False
        self._tried = 0

    def run(self) -> None:
        """Every search, until the result is proved, or Ctrl-C."""
        found = self._look(self._machine)
        assert found is not None
        self._first = found
        self._bounds = TimeBounds(found.nest, self._machine)
        self._bounds.energy = found.lower_bound or 0.0
        sums = self._sums()
        for weights in sums:
            if self._over():
                return
            self._bound_by(weights)
        parts = [*_PARTS, *_FRONT * self._options.front]
        for part in parts:
            if self._over() or not sums:
                return
            self._mix(sums[0], part)

    def result(self) -> Result:
        """The best so far."""
        assert self._first is not None and self._bounds is not None
        minimize = self._options.minimize
        best = self._best()
        value = best.value(minimize)
        bound: float | None = None
        if self._bounded:
            bound = {
                "energy": self._bounds.energy,
                "cycles": self._bounds.cycles,
                "edp": self._bounds.edp(best.mac_pj),
            }[minimize]
        proved = bound is not None and value <= bound * (1 + _SAME)
        return replace(
            self._first,
            nest=best.nest,
            energy=best.energy,
            seconds=time.monotonic() - self._begin,
            tried=self._tried,
            complete=self._complete and not self._interrupted,
            lower_bound=value if proved else bound,
            proved=proved,
            memories=best.choice,
            interrupted=self._interrupted,
            minimized=minimize,
            value=value,
            front=self._front() if self._options.front else (),
        )

    def _best(self) -> Timed:
        """The nests of least value, each in the memories that suit it."""
        minimize = self._options.minimize
        ranked = sorted(self._timed, key=lambda one: one.rank(minimize))
        names: dict[str, Timed] = {}
        for one in ranked:
            names.setdefault(str(one.nest), one)
        for name, one in list(names.items())[:_CANDIDATES]:
            if name not in self._settled:
                found = best_ways(one.nest, self._machine, minimize)
                self._settled.add(name)
                self._timed.append(found)
        return min(self._timed, key=lambda one: one.rank(minimize))

    def _look(self, machine: Fixed) -> Result | None:
        """The nest of least energy on another machine, timed on this one."""
        limit = _USUAL
        if self._options.time_limit is not None:
            spent = time.monotonic() - self._begin
            limit = max(self._options.time_limit - spent, 0.0) / max(self._left, 1)
        self._left -= 1
        options = replace(
            self._options, minimize="energy", front=False, time_limit=limit
        )
        try:
            found = self._find(self._layer, self._unroll, machine, options)
        except NoPlanError:
            if not self._timed:
                raise
            self._complete = False
            return None
        except KeyboardInterrupt:
            if not self._timed:
                raise
            self._interrupted = True
            return None
        self._timed += ways(found.nest, self._machine)
        self._bounded = self._bounded and found.lower_bound is not None
        self._tried += found.tried
        self._complete = self._complete and found.complete
        self._interrupted = self._interrupted or found.interrupted
        if self.progress is not None:
            best = min(self._timed, key=lambda one: one.rank(self._options.minimize))
            spent = time.monotonic() - self._begin
            self.progress(SearchProgress(best.energy, self._tried, spent))
        return found

    def _sums(self) -> list[Weights]:
        """The sums that say most of the best nest so far, those first."""
        best = min(self._timed, key=lambda one: one.rank("cycles"))
        weighed = []
        for weights in weights_of(self._machine.hierarchy):
            priced = Fixed(weights.alone(self._machine.hierarchy))
            value = priced.evaluate(
                best.nest,
                [_priced(one, priced, self._machine) for one in best.choice],
            )
            steps = best.latency.steps if weights.adds else 0
            weighed.append((value + steps, weights))
        weighed.sort(key=lambda pair: -pair[0])
        return [weights for _, weights in weighed[:_SUMS]]

    def _bound_by(self, weights: Weights) -> None:
        assert self._bounds is not None
        hierarchy = weights.alone(self._machine.hierarchy)
        found = self._look(Fixed(hierarchy))
        if found is not None and found.lower_bound is not None:
            self._bounds.bounded_by(weights, found.lower_bound)

    def _mix(self, weights: Weights, part: float) -> None:
        assert self._bounds is not None
        best = min(self._timed, key=lambda one: one.rank("edp"))
        worth = worth_of(best, part)
        found = self._look(Fixed(weights.combined(self._machine.hierarchy, worth)))
        if found is not None and found.lower_bound is not None:
            self._bounds.mixed(weights, worth, found.lower_bound)

    def _over(self) -> bool:
        """Whether nothing more can be found."""
        if self._interrupted:
            return True
        return not self._options.front and self.result().proved

    def _front(self) -> tuple[FrontPoint, ...]:
        """The nests that no other beats in both energy and cycles, by cycles."""
        points: list[FrontPoint] = []
        least = math.inf
        for one in sorted(self._timed, key=lambda one: (one.cycles, one.energy)):
            if one.energy < least * (1 - _SAME):
                least = one.energy
                points.append(FrontPoint(one.energy, one.cycles, str(one.nest)))
        return tuple(points)


def _priced(one: BufferMemory, priced: Fixed, machine: Fixed) -> BufferMemory:
    """The same memory at another machine's price."""
    name = level_of(one, machine.hierarchy)
    names = [level.name for level in machine.hierarchy.levels]
    pj = priced.hierarchy.price(names.index(name), one.tensor)
    return replace(one, pj=pj, level=name)
