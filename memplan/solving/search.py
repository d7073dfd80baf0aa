"""Randomised search over orders of priority: better the longer it may take.

The orders of `priorities` are where it starts. It packs an order by best fit, blames
the buffers that came too late to end below the best peak so far, gives those more
priority, and packs again (squeaky wheel optimisation: Joslin and Clements, Journal of
Artificial Intelligence Research 10, 1999); and it refines the best order by small
disturbances about a buffer that touches the peak. Where lifespans have gaps, an order
is packed piece by piece, each buffer as low as it can go. The kernel is compiled.

Without a time limit it does a fixed amount of work, and the same seed gives the same
plan on any number of threads.
"""

from __future__ import annotations

import math

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.pieces import pieces
from memplan.core.plan import Plan
from memplan.core.problem import FREE, Problem
from memplan.native import _dsa
from memplan.solving.anytime import Anytime, solve_by
from memplan.solving.clock import quietest_moment, spans
from memplan.solving.options import DEFAULTS, Options
from memplan.solving.priorities import merits

_DEPTH = 4.0  # of the priorities of offsets from 0 to the peak
_SLOWER = 4  # times, about, an order is packed around gaps


def solve(problem: Problem, options: Options = DEFAULTS) -> Plan:
    """The best Plan found within the limits of `options`, or until Ctrl-C.

    Raises NoPlanError where fixed offsets collide.
    """
    return solve_by(Search, problem, options)


def default_orders(count: int) -> int:
    """Orders tried for `count` buffers without a limit: a second or two's work."""
    # Some thousand buffers have more lines at a time to choose from; very many are
    # too much for the caches.
    crowded = min(max(count / 200, 1.0), 3.0) * max(1.0, math.sqrt(count / 32768))
    return min(max(12, round(12e6 / (max(count, 1) * crowded))), 60_000)


class Search(Anytime):
    """The search; a try is an order that is packed."""

    method = "search"
    tries = "orders tried"
    gaps = True

    def __init__(self, problem: Problem, options: Options, offsets: Int64Array) -> None:
        super().__init__(problem, options, offsets)
        self._kernel: _dsa.Search | None = None

    @property
    def tried(self) -> int:
        return 0 if self._kernel is None else self._kernel.packed

    @property
    def usual(self) -> int:
        orders = default_orders(len(self.problem))
        return orders if self.problem.gaps is None else max(12, orders // _SLOWER)

    def _advance(self, goal: int, most: int, seconds: float, left: float) -> None:
        if self._kernel is None:
            self._kernel = self._new_kernel()
        workers = self.options.workers()
        self._kernel.advance(goal, most, seconds, left, workers, self.peak)
        if self._kernel.peak is not None:
            self.take(self._kernel.offsets)

    def _new_kernel(self) -> _dsa.Search:
        problem = self.problem
        start, end = spans(problem, quietest_moment(problem))
        fixed = problem.fixed if (problem.fixed != FREE).any() else None
        # Padded sizes stack up to multiples of the granularity by themselves.
        uniform = bool((problem.alignment == problem.granularity).all())
        gaps = problem.gaps is not None
        needed = not uniform or fixed is not None or gaps
        starts = np.log(np.stack(list(merits(problem).values())))
        if gaps:  # and the best so far, let down into the gaps from the lowest up
            starts = np.vstack([starts, -_DEPTH * self.offsets / self.peak])
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
            pieces(problem).table if gaps else None,
        )
