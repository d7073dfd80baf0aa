"""One pass of the hot steps, as a packing problem on a clock that closes on itself.

A buffer that is still alive when its own successor is made cannot have one offset in
every pass; then the pass is unrolled.
"""

from __future__ import annotations

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.placement import Requests, Workload
from memplan.core.problem import Problem
from memplan.trace.steps import HotSteps, Timeline


class Period:
    """The hot steps' first pass: rows `own` of the timeline, ticks [begin, end)."""

    def __init__(self, line: Timeline, hot: HotSteps) -> None:
        self.line, self.hot = line, hot
        last = hot.begin + hot.period - 1
        self.begin, self.end = line.span(hot.begin)[0], line.span(last)[1]
        self.own = slice(line.requests(hot.begin).start, line.requests(last).stop)
        self.count = self.own.stop - self.own.start

    def workload(self, alignment: int) -> tuple[Workload, int]:
        """The period, unrolled where it must be, on a clock that closes on itself.

        Also how often it is unrolled.
        """
        upper, lived = self._lives()
        transient = np.flatnonzero(lived <= 1)
        lower, upper = (
            (self.line.lower[self.own] - self.begin)[transient],
            upper[transient],
        )
        length = self.end - self.begin
        # A life of a whole period or more meets its own successor: unroll.
        longest = (upper - lower).max(initial=0)
        copies = int(-(-(longest + 1) // max(length, 1)))
        total = length * copies
        turns = np.arange(copies, dtype=np.int64)[:, np.newaxis]
        high = (upper + turns * length).ravel()
        sizes = self._sizes()
        problem = Problem.of(
            (lower + turns * length).ravel(),
            np.where(high > total, high - total, high),
            np.tile(sizes[transient], copies),
            alignment=alignment,
            length=max(total, 1),
            rounding=alignment,
        )
        steps = slice(self.hot.begin, self.hot.begin + self.hot.period)
        starts = self.line.first[steps] - self.own.start + turns * self.count
        served = (transient + turns * self.count).ravel()
        requests = Requests.serving(
            tuple(starts.ravel().tolist()), np.tile(sizes, copies), served
        )
        return Workload(problem, requests), copies

    def _lives(self) -> tuple[Int64Array, Int64Array]:
        """Where the lives of the period's blocks end, and how many steps they last.

        Ends are ticks of the period's first pass, counted from its begin. A free is
        placed by the request that comes next, or by its step's end: that means the
        same in every repetition; ticks do not. Where only the requests repeat, a block
        lives as long as in any repetition.
        """
        line, hot, own = self.line, self.hot, self.own
        upper, lived = self._ends(0)
        passes = 1 if hot.exact else (line.steps - 1 - hot.begin) // hot.period - 1
        for repetition in range(1, passes):
            first = own.start + repetition * self.count
            if not np.array_equal(
                line.size[first : first + self.count], line.size[own]
            ):
                break
            later, longer = self._ends(repetition)
            upper, lived = np.maximum(upper, later), np.maximum(lived, longer)
        return upper, lived

    def _ends(self, repetition: int) -> tuple[Int64Array, Int64Array]:
        """`_lives`, as one repetition of the period has them."""
        line, hot = self.line, self.hot
        rows = np.arange(self.own.start, self.own.stop) + repetition * self.count
        freed = line.upper[rows]
        died = line.step_of(freed)
        lived = np.where(
            freed != Timeline.NEVER, died - line.step_of(line.lower[rows]), line.steps
        )
        at = np.minimum(died, line.steps - 1)
        turns, phase = np.divmod(at - hot.begin, hot.period)
        like = hot.begin + phase
        following = np.searchsorted(line.lower, freed, side="left") - line.first[at]
        counts = np.diff(line.first, append=len(line.size))
        last_ticks = np.append(line.bounds[1:], line.ticks)
        request = np.minimum(line.first[like] + following, len(line.size) - 1)
        inside = following < counts[like]
        tick = np.where(inside, line.lower[request], last_ticks[like])
        # No request lies between a step's begin and its first: that is the end before.
        tick = np.where(following == 0, line.bounds[like], tick)
        shift = (turns - repetition) * (self.end - self.begin)
        return tick - self.begin + shift, lived

    def _sizes(self) -> Int64Array:
        """Bytes of the period's requests; of elastic ones, the most in any pass."""
        passes = self.hot.passes if self.hot.elastic else 1
        sizes = self.line.size[self.own.start : self.own.start + passes * self.count]
        most: Int64Array = sizes.reshape(passes, self.count).max(axis=0)
        return most
