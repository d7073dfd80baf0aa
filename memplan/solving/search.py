"""Randomised search over orders of priority: better the longer it may take.

The orders of `priorities` are where it starts. It packs an order by best fit, blames
the buffers that came too late to end below the best peak so far, gives those more
priority, and packs again (squeaky wheel optimisation: Joslin and Clements, Journal of
Artificial Intelligence Research 10, 1999); and it refines the best order by small
disturbances about a buffer that touches the peak. The kernel is compiled.

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
from memplan.solving.priorities import best_of_six, merits

_SLICE_SECONDS = 0.1  # between looks at the keyboard
_NO_LIMIT = 1 << 62


def solve(problem: Problem, options: Options = DEFAULTS) -> Plan:
    """The best Plan found within the limits of `options`, or until Ctrl-C.

    Raises NoPlanError where fixed offsets collide, UsageError for gaps in lifespans.
    """
    refuse_gaps(problem, "search")
    start = time.perf_counter()
    offsets, _ = best_of_six(problem, options)
    search = Search(problem, options, offsets)
    interrupted = False
    try:
        search.run(start)
    except KeyboardInterrupt:
        interrupted = True
    note = f"{search.packed:,} orders tried" + (", interrupted" * interrupted)
    made = Provenance("search", options.seed, note=note)
    return Plan.of(problem, search.offsets, made)


def default_orders(count: int) -> int:
    """Orders tried for `count` buffers without a limit: a second or two's work."""
    # Some thousand buffers have more lines at a time to choose from; very many are
    # too much for the caches.
    crowded = min(max(count / 200, 1.0), 3.0) * max(1.0, math.sqrt(count / 32768))
    return min(max(12, round(12e6 / (max(count, 1) * crowded))), 60_000)


class Search:
    """A search that can be run on and on. Not to be shared between threads.

    offsets: of the best plan so far, bytes, shape (n,).
    """

    def __init__(self, problem: Problem, options: Options, offsets: Int64Array) -> None:
        """offsets: a plan to begin with. Raises UsageError for gaps in lifespans."""
        refuse_gaps(problem, "search")
        self.problem = problem
        self.options = options
        self.offsets = offsets
        self.bound = lower_bound(problem)
        self._kernel: _dsa.Search | None = None

    @property
    def peak(self) -> int:
        """Bytes of the best plan so far."""
        return self.problem.peak(self.offsets)

    @property
    def packed(self) -> int:
        """Orders tried so far."""
        return 0 if self._kernel is None else self._kernel.packed

    @property
    def done(self) -> bool:
        """Whether the best plan is as good as was asked for."""
        return self.peak <= max(self.bound, self.options.capacity or 0)

    def run(self, start: float, share: float = 1.0) -> None:
        """Search on until done, or until a limit of the options is reached.

        start: when the time limit began to count, by `time.perf_counter`.
        share: of the limits, from 0 to 1.
        """
        limit = self.options.time_limit
        orders = self.options.iterations
        if orders is None:
            orders = default_orders(len(self.problem)) if limit is None else _NO_LIMIT
        goal = max(self.bound, self.options.capacity or 0)
        self.seek(goal, math.ceil(orders * share), start, share)

    def seek(self, goal: int, orders: int, start: float, share: float = 1.0) -> None:
        """Search on until the peak is `goal` bytes or less, until `orders` orders are
        tried since the beginning, or until a share of the time limit is over."""
        limit = self.options.time_limit
        while self.peak > goal and self.packed < orders:
            seconds = time.perf_counter() - start
            left = math.inf if limit is None else limit * share - seconds
            if left <= 0:
                break
            if self._kernel is None:
                self._kernel = self._new_kernel()
            self._kernel.advance(
                goal,
                orders,
                min(left, _SLICE_SECONDS),
                left,
                self.options.workers(),
                self.peak,
            )
            if self._kernel.peak is not None:
                self.take(self._kernel.offsets)
            seconds = time.perf_counter() - start
            progress = Progress(self.peak, self.bound, self.packed, seconds)
            self.options.report(progress)

    def take(self, offsets: Int64Array) -> None:
        """Go on from these offsets if they are better than the best so far."""
        if self.problem.peak(offsets) < self.peak:
            self.offsets = offsets

    def _new_kernel(self) -> _dsa.Search:
        problem = self.problem
        start, end = spans(problem, quietest_moment(problem))
        fixed = problem.fixed if (problem.fixed != FREE).any() else None
        # Padded sizes stack up to multiples of the granularity by themselves.
        uniform = bool((problem.alignment == problem.granularity).all())
        needed = not uniform or fixed is not None
        starts = np.log(np.stack(list(merits(problem).values())))
        return _dsa.Search(
            start,
            end,
            problem.padded,
            np.ascontiguousarray(starts),
            self.options.seed,
            problem.alignment if needed else None,
            fixed,
            problem.length or 0,
            problem.taken if problem.slack.any() else None,
        )
