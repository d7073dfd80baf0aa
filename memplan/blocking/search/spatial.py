"""The nest and the spatial mapping that together take the least.

A search for nests is run for one mapping of dimensions to an array's sides after the
other, those first that bounds promise most of. A mapping is done with where its nests
were searched for, or where a bound, at first one that all mappings share, then a
relaxation of its own, is no less than the best so far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from memplan.arrays import Float64Array
from memplan.blocking.cost.objective import Fixed, Objective
from memplan.blocking.cost.timed_memories import best_ways, check_minimized
from memplan.blocking.nest.array import Array, Datapath, MappingSearch
from memplan.blocking.nest.layer import DIMS, Layer
from memplan.blocking.nest.nest import Nest, nest_of
from memplan.blocking.search.mappings import (
    bounds_of,
    cycles_of,
    mappings_of,
    relaxed,
    usual,
)
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import (
    Options,
    ProgressReport,
    Result,
    SearchProgress,
)
from memplan.blocking.search.timed import TimeBounds
from memplan.cores import cores
from memplan.errors import NoPlanError, UsageError

_SAME = 1e-9  # relative


def value_of(found: Result) -> float:
    """What was minimized, of a result."""
    return found.energy if found.value is None else found.value


def second_of(found: Result) -> float:
    """What counts where values are the same: energy, or steps."""
    if found.minimized == "cycles":
        return found.energy
    return float(_steps(found.nest))


def _steps(nest: Nest) -> int:
    """Cycles of the datapath at least."""
    return math.prod(-(-nest.layer.size(dim) // nest.base(dim)) for dim in DIMS)


def better(one: Result, other: Result) -> bool:
    """Whether `one` is better than `other`: in what was minimized; else in what counts
    next, then in steps, dimensions of its mapping, and multipliers."""
    for key in (value_of, second_of):
        mine, others = key(one), key(other)
        if abs(mine - others) > _SAME * others:
            return mine < others
    return _plain(one) < _plain(other)


def _plain(found: Result) -> tuple[int, int, int]:
    counts = [found.nest.base(dim) for dim in DIMS]
    return _steps(found.nest), sum(count > 1 for count in counts), math.prod(counts)


_USUAL = 30.0  # seconds, where there is no limit
_BOUNDS, _SCOUTS, _FULL = 0.3, 0.3, 0.6  # parts of what is left, of each phase
_BEST = 6  # scouted mappings that are searched in full first
_DEFAULT = Options()


def search_datapath(
    layer: Layer,
    datapath: Datapath,
    objective: Objective,
    options: Options = _DEFAULT,
    progress: ProgressReport | None = None,
) -> Result:
    """`optimize` on what the datapath does at once; or, where `datapath` is an array,
    the best nest of all its spatial mappings, and in `Result.mapping` how many of these
    there are and what became of them.

    Of mappings whose nests take the same, that of the fewest steps of the array is
    taken, then that of the fewest dimensions, then of the fewest multipliers. Least
    cycles come before least energy. The time limit, or half a minute, is for all of
    them; what is left then has bounds only, and the result's bound is the least of all.
    Ctrl-C ends the search with the best so far.
    Raises as `optimize` does, and UsageError for an array with a target.
    """
    if not isinstance(datapath, Array):
        return optimize(layer, datapath, objective, options, progress)
    check_minimized(options.minimize, objective, options.front)
    if options.target is not None:
        raise UsageError("the datapath of nests for code is a register tile, not auto")
    return _Search(layer, datapath, objective, options, progress).run()


def search_one_of(
    layer: Layer, datapath: Datapath, objective: Objective, options: Options
) -> Result:
    """`search_datapath` for one of several searches, which Ctrl-C ends all."""
    found = search_datapath(layer, datapath, objective, options)
    if found.interrupted:
        raise KeyboardInterrupt
    return found


class _Search:
    """Mappings by number, what is known of each, and the best nest."""

    def __init__(
        self,
        layer: Layer,
        array: Array,
        objective: Objective,
        options: Options,
        progress: ProgressReport | None,
    ) -> None:
        self._layer, self._array, self._objective = layer, array, objective
        self._options, self._progress = options, progress
        self._begin = time.monotonic()
        limit = options.time_limit
        self._limit = _USUAL if limit is None else limit
        self._threads = options.threads or cores()
        self._mappings = mappings_of(layer, array)
        self._searched: dict[int, Result] = {}
        self._scouted: dict[int, float] = {}
        self._refined: set[int] = set()
        self._best: Result | None = None
        self._tried, self._interrupted = 0, False

    def run(self) -> Result:
        """All of it, or until the time is over."""
        count = len(self._mappings.counts)
        self._value: Float64Array = np.zeros(count)  # at least
        self._second: Float64Array = np.zeros(count)
        self._first = self._number(usual(self._layer, self._array))
        try:
            self._search(self._first, self._left / 4)
            self._bound()
            self._scout()
            self._settle_best()
            self._close()
        except KeyboardInterrupt:
            if self._best is None:
                raise
            self._interrupted = True
        return self._result()

    @property
    def _left(self) -> float:
        return max(self._limit - (time.monotonic() - self._begin), 0.0)

    def _number(self, unroll: Mapping[str, int]) -> int:
        row = [unroll.get(dim, 1) for dim in DIMS]
        same = (self._mappings.counts == row).all(axis=1)
        # Those of a large array need not have it.
        return int(
            np.argmax(same if same.any() else self._mappings.counts.prod(axis=1))
        )

    def _search(self, number: int, seconds: float) -> None:
        """The nests around one mapping."""
        if number in self._searched:
            return
        options = replace(self._options, time_limit=seconds, front=False)
        layer, unroll = self._layer, self._mappings.unroll(number)
        try:
            found = optimize(layer, unroll, self._objective, options, self._report)
        except NoPlanError:
            if self._best is None:
                raise
            return
        self._searched[number] = found
        self._tried += found.tried
        self._interrupted = self._interrupted or found.interrupted
        bound = found.lower_bound or 0.0
        self._value[number] = max(self._value[number], bound)
        if self._best is None or better(found, self._best):
            self._best = found
        if self._interrupted:
            raise KeyboardInterrupt

    def _bound(self) -> None:
        """What all mappings take at least."""
        counts = self._mappings.counts
        found = bounds_of(
            self._layer,
            counts,
            self._objective,
            self._left * _BOUNDS,
            self._threads,
        )
        steps = found.steps.astype(np.float64)
        if self._options.minimize == "energy":
            value, self._second = found.energy, steps
        else:
            self._macs_pj = self._layer.macs * self._objective.mac_pj
            assert isinstance(self._objective, Fixed)
            layer, machine, left = self._layer, self._objective, self._left * _BOUNDS
            cycles = cycles_of(layer, counts, machine, left, self._threads)
            self._energy, value, self._second = found.energy, cycles, found.energy
            if self._options.minimize == "edp":
                value, self._second = (found.energy + self._macs_pj) * cycles, steps
        self._value = np.maximum(self._value, value)
        self._order = [int(i) for i in np.lexsort((self._second, self._value))]

    def _refine(self, number: int) -> None:
        """Of one mapping more than all share: what its bandwidths allow."""
        if number in self._refined or self._options.minimize == "energy":
            return
        self._refined.add(number)
        assert isinstance(self._objective, Fixed)
        layer = self._layer
        whole = [(dim, layer.size(dim)) for dim in DIMS]
        nest = nest_of(layer, whole, self._mappings.unroll(number))
        value = TimeBounds(nest, self._objective).cycles
        if self._options.minimize == "edp":
            value *= float(self._energy[number]) + self._macs_pj
        self._value[number] = max(self._value[number], value)

    def _hopeful(self, number: int) -> bool:
        """Whether its nests may do better than the best."""
        assert self._best is not None
        best, second = value_of(self._best), second_of(self._best)
        bound = float(self._value[number])
        if bound < best * (1 - _SAME):
            return True
        alike = bound <= best * (1 + _SAME)
        return alike and float(self._second[number]) < second * (1 - _SAME)

    def _scout(self) -> None:
        """A quick look at the mappings that bounds promise most of."""
        end = self._left * (1 - _SCOUTS)
        options = replace(
            self._options, method="divisors", minimize="energy", front=False
        )
        least = math.inf  # what the divisors' optimum takes, no better nest exceeds
        for number in self._order:
            if self._left <= end or self._value[number] > least * (1 + _SAME):
                return
            if number in self._searched or not self._hopeful(number):
                continue
            part = replace(options, time_limit=max(self._left - end, 0.01))
            unroll = self._mappings.unroll(number)
            try:
                found = optimize(self._layer, unroll, self._objective, part)
            except (NoPlanError, UsageError):
                continue
            self._tried += found.tried
            self._scouted[number] = self._scouted_value(found)
            least = min(least, self._scouted[number])

    def _scouted_value(self, found: Result) -> float:
        minimize = self._options.minimize
        if minimize == "energy" or not isinstance(self._objective, Fixed):
            return found.energy
        return best_ways(found.nest, self._objective, minimize).value(minimize)

    def _settle_best(self) -> None:
        """The nests around the best of these."""
        end = self._left * (1 - _FULL)
        ranked = sorted(
            self._scouted, key=lambda i: (self._scouted[i], self._second[i])
        )
        for place, number in enumerate(ranked[:_BEST]):
            if self._left <= end:
                return
            self._refine(number)
            if self._hopeful(number):
                share = (self._left - end) / (min(len(ranked), _BEST) - place)
                self._search(number, share)

    def _close(self) -> None:
        """Every mapping that may still be better, until none is left, or time is."""
        for number in self._order:
            if self._left <= 0:
                return
            if number in self._searched or not self._hopeful(number):
                continue
            self._refine(number)
            self._relax(number)
            if self._hopeful(number) and self._left > 0:
                self._search(number, max(self._left / 4, 0.05))

    def _relax(self, number: int) -> None:
        """Raises one mapping's bound."""
        if self._options.minimize != "energy" or not self._hopeful(number):
            return
        assert self._best is not None
        bound = relaxed(
            self._layer,
            self._objective,
            self._left / 4,
            self._threads,
            unroll=self._mappings.unroll(number),
            incumbent=self._best.energy * (1 + 2 * _SAME),
        )
        self._value[number] = max(self._value[number], bound)

    def _result(self) -> Result:
        assert self._best is not None
        best = self._fronted(self._best)
        value = value_of(best)
        known = [i for i in range(len(self._value)) if i not in self._searched]
        open_ = [i for i in known if self._hopeful(i)]
        bounds = [float(self._value[i]) for i in (*self._searched, *open_)]
        bound = min(value, *bounds)
        proved = value <= bound * (1 + _SAME)
        return replace(
            best,
            seconds=time.monotonic() - self._begin,
            tried=self._tried,
            complete=best.complete and not open_ and not self._interrupted,
            lower_bound=value if proved else bound,
            proved=proved,
            interrupted=self._interrupted,
            mapping=MappingSearch(
                self._array,
                len(self._value),
                len(known) - len(open_),
                len(self._searched),
                self._mappings.complete,
            ),
        )

    def _fronted(self, best: Result) -> Result:
        """The best with the front of its mapping, if that was asked for."""
        if not self._options.front or self._interrupted:
            return best
        layer, unroll = self._layer, best.nest.unroll
        found = optimize(layer, unroll, self._objective, self._options, self._report)
        kept = found if better(found, best) else best
        return replace(kept, front=found.front)

    def _report(self, done: SearchProgress) -> None:
        if self._progress is None:
            return
        energy = done.energy
        if self._best is not None:
            energy = min(energy, self._best.energy)
        spent = time.monotonic() - self._begin
        tried = self._tried + done.evaluated
        self._progress(SearchProgress(energy, tried, spent))


@dataclass(frozen=True)
class Task:
    """One search; what `search_datapath` takes."""

    layer: Layer
    datapath: Datapath
    objective: Objective
    options: Options = _DEFAULT

    def run(self) -> Result:
        """The search's result, found on one thread."""
        options = replace(self.options, threads=1)
        return search_one_of(self.layer, self.datapath, self.objective, options)
