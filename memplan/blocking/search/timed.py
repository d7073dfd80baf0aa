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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from memplan.blocking.cost.evaluation import Evaluation, best_evaluation, evaluate
from memplan.blocking.cost.latency import datapath_bytes, datapath_steps
from memplan.blocking.cost.objective import Fixed, Objective
from memplan.blocking.cost.timed_memories import (
    NOTHING,
    FrontPoint,
    Timed,
    Weights,
    best_ways,
    check_minimized,
    repriced,
    ways,
    weights_of,
    worth_of,
)
from memplan.blocking.nest.counts import Traffic
from memplan.blocking.nest.layer import Layer, Tensor
from memplan.blocking.nest.nest import Nest
from memplan.blocking.search.result import (
    Options,
    ProgressReport,
    Result,
    SearchProgress,
)
from memplan.errors import NoPlanError


@dataclass(frozen=True)
class _Line:
    """energy + worth (cycles - steps) is at least `least`."""

    worth: float
    steps: float
    least: float

    def energy(self, cycles: float) -> float:
        return self.least - self.worth * (cycles - self.steps)


@dataclass
class TimeBounds:
    """Of one layer on one machine; nest: any of the layer's. energy: pJ that no nest
    takes less than, 0 as long as nothing is known."""

    nest: Nest
    machine: Fixed
    energy: float = 0.0
    lines: list[_Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.steps = float(datapath_steps(self.nest))
        self._traffic = self.machine.traffic(self.nest)
        # Whichever memory serves the datapath has to pass all that it asks for.
        served = (min(self._serving(own)) for own in self._traffic.values())
        self.cycles = max(self.steps, *served)
        self._streaming = math.inf

    def _serving(self, own: Traffic) -> Iterator[float]:
        """Cycles of a port of each memory that may serve a tensor to the datapath."""
        hierarchy, tensor = self.machine.hierarchy, own.tensor
        inward, outward = datapath_bytes(own)
        levels = enumerate(hierarchy.levels)
        holding = [depth for depth, level in levels if level.capacity(tensor)]
        for depth in (len(hierarchy.levels), *holding):
            one = hierarchy.ports(depth) == 1
            longer = inward + outward if one else max(inward, outward)
            yield longer / hierarchy.rate(depth, tensor)

    def bounded_by(self, weights: Weights, least: float) -> None:
        """The sum of `weights` over what passes is at least `least`."""
        least -= self._slack(weights)
        if weights.adds:
            found = min(self.steps + least, self._streamed(weights))
        else:
            found = least
        self.cycles = max(self.cycles, found)

    def mixed(self, weights: Weights, worth: float, least: float) -> None:
        """The energy and `worth` times the sum are at least `least` together."""
        steps = 0.0
        if weights.adds:
            steps = self.steps
            self._streaming = min(self._streaming, self._streamed(weights))
        slack = worth * self._slack(weights)
        self.lines.append(_Line(worth, steps, least - slack))

    def edp(self, mac_pj: float) -> float:
        """pJ times cycles, with so many pJ for the multiplications."""
        lines = [*self.lines, _Line(0.0, 0.0, self.energy)]
        corners = [self.cycles]
        for one, other in combinations(lines, 2):
            if one.worth != other.worth:
                apart = one.energy(0.0) - other.energy(0.0)
                corners.append(apart / (one.worth - other.worth))
        least = math.inf
        for cycles in corners:
            if cycles >= self.cycles:
                energy = max(line.energy(cycles) for line in lines) + mac_pj
                least = min(least, cycles * energy)
        # Nests that the lines are not about take at least the energy, and so long.
        return min(least, (self.energy + mac_pj) * max(self._streaming, self.cycles))

    def _slack(self, weights: Weights) -> float:
        """What prices that stand for none come to at most."""
        most = max(w for own in weights.by_depth for w in own.values())
        words = sum(own.demand_words for own in self._traffic.values())
        return 4 * NOTHING * most * words * len(weights.by_depth)

    def _streamed(self, weights: Weights) -> float:
        """Cycles of a nest in which a tensor goes past all levels inside of those with
        a weight: one port then carries all that the datapath asks for."""
        hierarchy, found = self.machine.hierarchy, math.inf
        outside = len(hierarchy.levels)
        for depth, row in enumerate(weights.by_depth):
            for tensor, own in self._traffic.items():
                if not row[tensor]:
                    continue
                rate = hierarchy.rate(depth, tensor) * hierarchy.ports(depth)
                nbytes = 2 * own.demand_words
                if depth == outside:
                    nbytes += _compulsory(self._traffic, tensor)
                found = min(found, max(self.steps, nbytes / rate))
        return found


def _compulsory(traffic: Mapping[Tensor, Traffic], besides: Tensor) -> float:
    """Bytes that all other tensors move to or from main memory at least."""
    others: Sequence[Traffic] = [t for own, t in traffic.items() if own is not besides]
    return sum(2 * own.compulsory_words for own in others)


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
                repriced(best.choice, self._machine.hierarchy, priced.hierarchy),
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
