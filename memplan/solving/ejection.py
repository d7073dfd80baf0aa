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

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.plan import Plan
from memplan.core.problem import FREE, Problem
from memplan.native import _dsa
from memplan.solving.anytime import Anytime, solve_by
from memplan.solving.clock import quietest_moment, spans
from memplan.solving.options import DEFAULTS, Options


def solve(problem: Problem, options: Options = DEFAULTS) -> Plan:
    """The best Plan found within the limits of `options`, or until Ctrl-C.

    Raises NoPlanError where fixed offsets collide, UsageError for gaps in lifespans.
    """
    return solve_by(Ejection, problem, options)


def default_placements(problem: Problem) -> int:
    """Placements made without a limit: some seconds' work.

    One takes the longer, the more buffers are alive beside one.
    """
    start, end = spans(problem)
    whole = int(end.max(initial=1) - start.min(initial=end.max(initial=1)))
    alive = int((end - start).sum()) / max(whole, 1)
    return round(1e8 / (100 + alive))


class Ejection(Anytime):
    """The search; a try is a buffer that is placed."""

    method = "ejection"
    tries = "placements"

    def __init__(self, problem: Problem, options: Options, offsets: Int64Array) -> None:
        super().__init__(problem, options, offsets)
        self._unit = problem.granularity  # of the kernel's bytes
        self._kernel: _dsa.Ejection | None = None

    @property
    def tried(self) -> int:
        return 0 if self._kernel is None else self._kernel.placed

    @property
    def usual(self) -> int:
        return default_placements(self.problem)

    def take(self, offsets: Int64Array) -> bool:
        better = super().take(offsets)
        if better and self._kernel is not None:
            self._kernel.offer(offsets // self._unit)
        return better

    def _advance(self, goal: int, most: int, seconds: float, left: float) -> None:
        if self._kernel is None:
            self._kernel = self._new_kernel()
        unit, workers = self._unit, self.options.workers()
        self._kernel.advance(goal // unit, most, seconds, left, workers)
        super().take(self._kernel.offsets * unit)

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
