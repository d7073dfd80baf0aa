"""Local search for problems too large for exact search: blocks out, and back in lower.

All buffers that end above a roof are taken out, and put back beneath it one by one, the
largest first: into a gap if there is one, else where the buffers in the way are worth
least, and those are taken out in turn (ejection chains: Glover, Discrete Applied
Mathematics 65, 1996). What was hard to place becomes dear to eject (Nagata and Bräysy,
Operations Research Letters 37, 2009). When all are back, the roof comes down. The
kernel is compiled.

Without a time limit it does a fixed amount of work, and the same seed gives the same
plan on any number of threads.
"""

from __future__ import annotations

import math
import time

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan, Provenance
from memplan.core.problem import FREE, Problem
from memplan.native import _dsa
from memplan.solving.clock import quietest_moment, spans
from memplan.solving.gapped import refuse_gaps
from memplan.solving.options import DEFAULTS, Options, Progress
from memplan.solving.priorities import best_of_six

_SLICE_SECONDS = 0.1  # between looks at the keyboard
_NO_LIMIT = 1 << 62


def solve(problem: Problem, options: Options = DEFAULTS) -> Plan:
    """The best Plan found within the limits of `options`, or until Ctrl-C.

    Raises NoPlanError where fixed offsets collide, UsageError for gaps in lifespans.
    """
    refuse_gaps(problem, "ejection")
    start = time.perf_counter()
    offsets, _ = best_of_six(problem, options)
    search = Ejection(problem, options, offsets)
    interrupted = False
    try:
        search.run(start)
    except KeyboardInterrupt:
        interrupted = True
    note = f"{search.placed:,} placements" + (", interrupted" * interrupted)
    made = Provenance("ejection", options.seed, note=note)
    return Plan.of(problem, search.offsets, made)


def default_placements(problem: Problem) -> int:
    """Placements made without a limit: some seconds' work.

    One takes the longer, the more buffers are alive beside one.
    """
    start, end = spans(problem)
    whole = int(end.max(initial=1) - start.min(initial=end.max(initial=1)))
    alive = int((end - start).sum()) / max(whole, 1)
    return round(1e8 / (100 + alive))


class Ejection:
    """A search that can be run on and on. Not to be shared between threads.

    offsets: of the best plan so far, bytes, shape (n,).
    """

    def __init__(self, problem: Problem, options: Options, offsets: Int64Array) -> None:
        """offsets: a plan to begin with, in which nothing collides.

        Raises UsageError for gaps in lifespans.
        """
        refuse_gaps(problem, "ejection")
        self.problem = problem
        self.options = options
        self.offsets = offsets
        self.bound = lower_bound(problem)
        self._unit = problem.granularity  # of the kernel's bytes
        self._kernel: _dsa.Ejection | None = None
        self._before = 0  # placements of kernels that are gone

    @property
    def peak(self) -> int:
        """Bytes of the best plan so far."""
        return self.problem.peak(self.offsets)

    @property
    def placed(self) -> int:
        """Placements made so far."""
        return self._before + (0 if self._kernel is None else self._kernel.placed)

    @property
    def goal(self) -> int:
        """Bytes; a plan that needs no more is as good as was asked for."""
        return max(self.bound, self.options.capacity or 0)

    def run(self, start: float, share: float = 1.0) -> None:
        """Search on until the goal is reached, or a limit of the options.

        start: when the time limit began to count, by `time.perf_counter`.
        share: of the limits, from 0 to 1.
        """
        placements = self.options.iterations
        if placements is None:
            free = self.options.time_limit is not None
            placements = _NO_LIMIT if free else default_placements(self.problem)
        self.seek(self.goal, math.ceil(placements * share), start, share)

    def seek(
        self, goal: int, placements: int, start: float, share: float = 1.0
    ) -> None:
        """Search on until the peak is `goal` bytes or less, until `placements` are made
        since the beginning, or until a share of the time limit is over."""
        limit = self.options.time_limit
        while self.peak > goal and self.placed < placements:
            seconds = time.perf_counter() - start
            left = math.inf if limit is None else limit * share - seconds
            if left <= 0:
                break
            if self._kernel is None:
                self._kernel = self._new_kernel()
            self._kernel.advance(
                goal // self._unit,
                placements - self._before,
                min(left, _SLICE_SECONDS),
                left,
                self.options.workers(),
            )
            self._keep(self._kernel.offsets * self._unit)
            seconds = time.perf_counter() - start
            progress = Progress(self.peak, self.bound, self.placed, seconds)
            self.options.report(progress)

    def take(self, offsets: Int64Array) -> None:
        """Go on from these offsets if they are better than the best so far."""
        if self._keep(offsets) and self._kernel is not None:
            self._before += self._kernel.placed
            self._kernel = None

    def _keep(self, offsets: Int64Array) -> bool:
        if self.problem.peak(offsets) >= self.peak:
            return False
        self.offsets = offsets
        return True

    def _new_kernel(self) -> _dsa.Ejection:
        problem, unit = self.problem, self._unit
        start, end = spans(problem, quietest_moment(problem))
        fixed = None
        if (problem.fixed != FREE).any():
            fixed = np.where(problem.fixed == FREE, FREE, problem.fixed // unit)
        uniform = bool((problem.alignment == unit).all())
        return _dsa.Ejection(
            start,
            end,
            problem.padded // unit,
            self.offsets // unit,
            self.options.seed,
            None if uniform else problem.alignment // unit,
            fixed,
            problem.length or 0,
        )
