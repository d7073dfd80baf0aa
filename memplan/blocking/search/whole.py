"""A nest of little energy among all there are, and how much less there could be.

Extents need not divide each other, and the window's loops may stand anywhere. The
search starts from the proved optimum of the smaller space, where extents divide each
other and the window is in one piece, and from a relaxation: nests in which a tile of t
out of n is visited n / t times, rounded up, as if the loops around it cut it off
nowhere. A dynamic programme finds the least energy of all these, which no nest does
with less than; so it is the bound as well, and a nest that takes no more is optimal.
From there on a local search moves, resizes, adds and drops loops. The kernels are
compiled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from memplan.blocking.cost.best_memories import best_memories
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.nest import Nest, nest_of
from memplan.blocking.search.exact import (
    base_of,
    check_unroll,
    optimum_so_far,
    problem_of,
)
from memplan.blocking.search.incumbent import ProgressReport, SearchProgress
from memplan.blocking.search.kernel_loops import (
    DIMS,
    nest_from,
    numbered,
    relaxed_loops,
)
from memplan.blocking.search.result import Options, Result, Space
from memplan.cores import cores
from memplan.errors import NoPlanError, UsageError
from memplan.native import _nest

# Seconds, where there is no limit: for the smaller space's optimum, for the bound, and
# for the search, which mostly ends before.
_START, _BOUND, _CLIMB = 2.0, 4.0, 3.5
_ROUNDS = 2
_NEAR = 1e-3  # relative; a bound that is so close is worth no more time
_SAME = 1e-9  # relative; a bound that is as close is reached


def search_whole(
    layer: Layer,
    unroll: Mapping[str, int],
    objective: Objective,
    options: Options,
    progress: ProgressReport | None = None,
) -> Result:
    """The best nest found for `layer`, and what no nest takes less than.

    The time limit is shared out; without one the smaller space's optimum and the bound
    have a few seconds each, and the local search comes to its end. Ctrl-C ends it with
    the best so far, and with the bound so far. Raises UsageError as `optimum` does
    where levels or unrolling make no sense.
    """
    check_unroll(unroll)
    search = _Search(layer, unroll, objective, options, progress)
    try:
        search.run()
    except KeyboardInterrupt:  # between two kernels, or in `progress`
        search.interrupted = True
    return search.result()


class _Search:
    """The starts, the best nest, and the bound."""

    def __init__(
        self,
        layer: Layer,
        unroll: Mapping[str, int],
        objective: Objective,
        options: Options,
        progress: ProgressReport | None,
    ) -> None:
        self._layer, self._unroll, self._objective = layer, unroll, objective
        self._options, self._progress = options, progress
        self._clock = _Clock(options.time_limit)
        self._threads = options.threads or cores()
        self._problem = problem_of(layer, unroll, objective)
        self._starts = [_one_loop_each(layer, unroll)]
        self._bound = _compulsory(layer, objective)
        self._tried, self._complete = 0, False
        self.interrupted = False
        self._energy = math.inf
        self._take(nest_from(self._starts[0], layer, unroll))

    def run(self) -> None:
        """All of it, until Ctrl-C, which `interrupted` says."""
        for step in (self._start, self._relax, self._climb):
            step()
            if self.interrupted:
                return

    def result(self) -> Result:
        """The best so far."""
        proved = self._energy <= self._bound * (1 + _SAME)
        return Result(
            self._best,
            "whole",
            self._energy,
            self._clock.seconds,
            self._tried,
            self._complete and not self.interrupted,
            self._energy if proved else self._bound,
            proved,
            self._memories,
            Space.WHOLE,
            self.interrupted,
        )

    def _start(self) -> None:
        """From the optimum of the smaller space."""
        limit = self._clock.share(0.4, _START)
        part = Options("divisors", None, limit, self._options.threads)
        layer, unroll = self._layer, self._unroll
        try:
            found = optimum_so_far(layer, unroll, self._objective, part, self._report)
        except (NoPlanError, UsageError):
            return  # too little time, or too many divisors: there are other starts
        self.interrupted = found.interrupted
        self._tried += found.tried
        pairs = [(loop.dim, loop.outer) for loop in found.nest.loops]
        start = nest_of(layer, pairs, unroll)
        self._starts.append(numbered(start))
        self._take(start)

    def _relax(self) -> None:
        """Raises the bound, and adds the relaxation's nests to the starts.

        The bytes that tensors share are first each tensor's alone, which is bound from
        below as well, and soon done.
        """
        objective, groups = self._objective, self._layer.G
        private = isinstance(objective, Fixed) and objective.hierarchy.private
        alone = private or (
            isinstance(objective, Codesign) and objective.budget is None
        )
        for shared in (False,) if alone else (False, True):
            if self.interrupted or self._bound >= self._energy * (1 - _NEAR):
                return
            relaxed = _nest.optimum(
                problem_of(self._layer, self._unroll, objective, shared),
                whole=True,
                incumbent=self._energy / groups,
                seconds=self._clock.share(0.4, _BOUND if alone else _BOUND / 2),
                threads=self._threads,
                report=self._report,
            )
            self.interrupted = relaxed.interrupted
            self._tried += relaxed.labels
            self._bound = max(self._bound, relaxed.lower_bound * groups)
            if start := relaxed_loops(relaxed):
                self._starts.append(start)

    def _climb(self) -> None:
        """To the best nest that the local search comes to."""
        loops, tried, self._complete, self.interrupted = _nest.improved(
            self._problem,
            self._starts,
            bound=self._bound / self._layer.G,
            rounds=_ROUNDS,
            seconds=self._clock.share(1.0, _CLIMB),
            threads=self._threads,
            report=self._report,
        )
        self._tried += tried
        self._take(nest_from(loops, self._layer, self._unroll))

    def _take(self, nest: Nest) -> None:
        """Keep the nest and its memories, unless there is a better one."""
        memories = best_memories(self._objective.traffic(nest), self._objective)
        energy = self._objective.evaluate(nest, memories)
        if energy < self._energy:
            self._best, self._memories, self._energy = nest, memories, energy

    def _report(self) -> None:
        if self._progress is not None:
            done = SearchProgress(self._energy, self._tried, self._clock.seconds)
            self._progress(done)


class _Clock:
    """Shares out the seconds there are."""

    def __init__(self, limit: float | None) -> None:
        self._limit, self._begin = limit, time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._begin

    def share(self, part: float, usual: float) -> float:
        """A part of what is left; `usual` where there is no limit."""
        if self._limit is None:
            return usual
        return max(part * (self._limit - self.seconds), 0.0)


def _compulsory(layer: Layer, objective: Objective) -> float:
    """pJ that every nest takes."""
    nest = nest_of(layer, [(d, layer.size(d)) for d in (*DIMS, "G")], {})
    return objective.compulsory_pj(objective.traffic(nest))


def _one_loop_each(layer: Layer, unroll: Mapping[str, int]) -> list[tuple[int, int]]:
    base = base_of(layer, unroll)
    return [
        (number, layer.size(dim))
        for number, dim in enumerate(DIMS)
        if layer.size(dim) > base[dim]
    ]
