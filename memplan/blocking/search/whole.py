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

import itertools
import math
import time
from collections.abc import Mapping

from memplan.blocking.cost.best_memories import best_memories
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.nest import Nest, nest_of
from memplan.blocking.search.exact import (
    KERNEL_DIMS,
    base_of,
    check_unroll,
    nest_from,
    numbered,
    optimum_so_far,
    problem_of,
    relaxed_loops,
)
from memplan.blocking.search.result import (
    Options,
    ProgressReport,
    Result,
    SearchProgress,
    Space,
)
from memplan.cores import cores
from memplan.errors import NoPlanError, UsageError
from memplan.native import _nest

# Seconds, where there is no limit: for the smaller space's optimum, for the bound, and
# for the search, which mostly ends before.
_START, _BOUND, _CLIMB = 2.0, 4.0, 3.5
_ROUNDS = 2
# Within a limit: seconds of the first slice, how much longer each next one is, and the
# parts of a slice for the search, the bound and the smaller space's optimum.
_SLICE, _LONGER, _PARTS = 0.1, 3.0, (0.35, 0.35, 0.3)
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

    A time limit is cut into slices that all steps share; without one the smaller
    space's optimum and the bound have a few seconds each, and the local search comes to
    its end. Ctrl-C ends it with
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
        self._begin = time.perf_counter()
        self._threads = options.threads or cores()
        self._problem = problem_of(layer, unroll, objective)
        self._starts = [_one_loop_each(layer, unroll)]
        self._bound = _compulsory(layer, objective)
        self._tried, self._slice = 0, 0
        # Whether each step came to its end: the climb, the smaller space, the bound.
        self._complete, self._started, self._relaxed = False, False, False
        self.interrupted = False
        self._energy = math.inf
        self._take(nest_from(self._starts[0], layer, unroll))

    def run(self) -> None:
        """All of it, until Ctrl-C, which `interrupted` says."""
        if self._options.time_limit is not None:
            self._run_in_slices(self._options.time_limit)
            return
        self._start(_START)
        if not self.interrupted:
            self._relax(_BOUND)
        if not self.interrupted:
            self._climb(self._starts, _CLIMB, 0)

    def result(self) -> Result:
        """The best so far."""
        return Result(
            self._best,
            "whole",
            self._energy,
            self._seconds,
            self._tried,
            self._complete and not self.interrupted,
            self._energy if self._proved else self._bound,
            self._proved,
            self._memories,
            Space.WHOLE,
            self.interrupted,
        )

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._begin

    @property
    def _proved(self) -> bool:
        return self._energy <= self._bound * (1 + _SAME)

    def _run_in_slices(self, limit: float) -> None:
        """Slices of time, each longer than all before it together.

        Every slice has a share for each step, whatever the limit, which only cuts the
        last slice short. So a longer limit does all that a shorter one does, and then
        more. Within a slice the local search comes first: a step that is cut short
        leaves the others their time.
        """
        steps = [self._climb_on, self._relax, self._start]
        for number in itertools.count():
            self._slice = number
            length = _SLICE * _LONGER**number
            for step, part in zip(steps, _PARTS, strict=True):
                left = limit - self._seconds
                if left <= 0 or self.interrupted or self._proved:
                    return
                step(min(part * length, left))
            if self._complete and self._started and self._relaxed:
                return

    def _climb_on(self, seconds: float) -> None:
        """The local search from the best nest and the other starts, at new random
        choices in every slice."""
        best = numbered(self._best)
        starts = [best, *(start for start in self._starts if start != best)]
        before = self._energy
        self._climb(starts, seconds, self._slice * _ROUNDS)
        self._complete = self._complete and self._energy == before

    def _start(self, seconds: float) -> None:
        """From the optimum of the smaller space."""
        if self._started:
            return
        part = Options("divisors", seconds, self._options.threads)
        layer, unroll = self._layer, self._unroll
        try:
            found = optimum_so_far(layer, unroll, self._objective, part, self._report)
        except NoPlanError:  # too little time
            return
        except UsageError:  # too many divisors
            self._started = True
            return
        self.interrupted = found.interrupted
        self._started = found.proved
        self._tried += found.tried
        pairs = [(loop.dim, loop.outer) for loop in found.nest.loops]
        start = nest_of(layer, pairs, unroll)
        self._add_start(numbered(start))
        self._take(start)

    def _relax(self, seconds: float) -> None:
        """Raises the bound, and adds the relaxation's nests to the starts.

        The bytes that tensors share are first each tensor's alone, which is bound from
        below as well, and soon done.
        """
        objective, groups = self._objective, self._layer.G
        private = isinstance(objective, Fixed) and objective.hierarchy.private
        alone = private or (
            isinstance(objective, Codesign) and objective.budget is None
        )
        in_time = True
        for shared in (False,) if alone else (False, True):
            near = self._bound >= self._energy * (1 - _NEAR)
            self._relaxed = self._relaxed or near
            if self.interrupted or self._relaxed:
                return
            begin, share = self._seconds, seconds if alone else seconds / 2
            relaxed = _nest.optimum(
                problem_of(self._layer, self._unroll, objective, shared),
                whole=True,
                incumbent=self._energy / groups,
                seconds=share,
                threads=self._threads,
                report=self._report,
            )
            in_time = in_time and self._seconds - begin < share
            self.interrupted = relaxed.interrupted
            self._tried += relaxed.labels
            self._bound = max(self._bound, relaxed.lower_bound * groups)
            if start := relaxed_loops(relaxed):
                self._add_start(start)
        self._relaxed = in_time

    def _add_start(self, start: list[tuple[int, int]]) -> None:
        if self._options.time_limit is None or start not in self._starts:
            self._starts.append(start)
            self._complete = False

    def _climb(
        self, starts: list[list[tuple[int, int]]], seconds: float, first: int
    ) -> None:
        """To the best nest that the local search comes to. first: number of the first
        round of annealing, which seeds its random choices."""
        loops, tried, self._complete, self.interrupted = _nest.improved(
            self._problem,
            starts,
            bound=self._bound / self._layer.G,
            first=first,
            rounds=_ROUNDS,
            seconds=seconds,
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
            done = SearchProgress(self._energy, self._tried, self._seconds)
            self._progress(done)


def _compulsory(layer: Layer, objective: Objective) -> float:
    """pJ that every nest takes."""
    nest = nest_of(layer, [(d, layer.size(d)) for d in (*KERNEL_DIMS, "G")], {})
    return objective.compulsory_pj(objective.traffic(nest))


def _one_loop_each(layer: Layer, unroll: Mapping[str, int]) -> list[tuple[int, int]]:
    base = base_of(layer, unroll)
    return [
        (number, layer.size(dim))
        for number, dim in enumerate(KERNEL_DIMS)
        if layer.size(dim) > base[dim]
    ]
