"""Searches that always have a plan, and a better one the longer they run."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from typing import ClassVar

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan, Provenance
from memplan.core.problem import Problem
from memplan.solving.gapped import refuse_gaps
from memplan.solving.options import Options, Progress
from memplan.solving.priorities import best_of_six

_SLICE_SECONDS = 0.1  # between looks at the keyboard
_NO_LIMIT = 1 << 62


class Anytime(ABC):
    """A search that can be run on and on. Not to be shared between threads.

    offsets: of the best plan so far, bytes, shape (n,). bound: bytes that no plan needs
    less than. method: its name. tries: what is counted, for people. gaps: whether it
    takes problems with gaps in lifespans.
    """

    method: ClassVar[str]
    tries: ClassVar[str]
    gaps: ClassVar[bool] = False

    def __init__(self, problem: Problem, options: Options, offsets: Int64Array) -> None:
        """offsets: a plan to begin with, in which nothing collides.

        Raises UsageError for gaps in lifespans that it does not take.
        """
        if not self.gaps:
            refuse_gaps(problem, self.method)
        self.problem = problem
        self.options = options
        self.offsets = offsets
        self.bound = lower_bound(problem)

    @property
    def peak(self) -> int:
        """Bytes of the best plan so far."""
        return self.problem.peak(self.offsets)

    @property
    def done(self) -> bool:
        """Whether the best plan is as good as was asked for."""
        return self.peak <= self._goal

    @property
    def _goal(self) -> int:
        return max(self.bound, self.options.capacity or 0)

    @property
    @abstractmethod
    def tried(self) -> int:
        """Tries made so far."""

    @property
    @abstractmethod
    def usual(self) -> int:
        """Tries made without a limit: some seconds' work."""

    @abstractmethod
    def _advance(self, goal: int, most: int, seconds: float, left: float) -> None:
        """Search for `seconds`, and keep what is better.

        goal, most: as in `seek`. left: seconds after which a try is cut off.
        """

    def run(self, start: float, share: float = 1.0) -> None:
        """Search on until done, or until a limit of the options is reached.

        start: when the time limit began to count, by `time.perf_counter`.
        share: of the limits, from 0 to 1.
        """
        most = self.options.iterations
        if most is None:
            most = self.usual if self.options.time_limit is None else _NO_LIMIT
        self.seek(self._goal, math.ceil(most * share), start, share)

    def seek(self, goal: int, most: int, start: float, share: float = 1.0) -> None:
        """Search on until the peak is `goal` bytes or less, until `most` tries are made
        since the beginning, or until a share of the time limit is over."""
        limit = self.options.time_limit
        while self.peak > goal and self.tried < most:
            seconds = time.perf_counter() - start
            left = math.inf if limit is None else limit * share - seconds
            if left <= 0:
                break
            self._advance(goal, most, min(left, _SLICE_SECONDS), left)
            seconds = time.perf_counter() - start
            progress = Progress(self.peak, self.bound, self.tried, seconds)
            self.options.report(progress)

    def take(self, offsets: Int64Array) -> bool:
        """Go on from these offsets if they are better than the best so far: whether
        they are."""
        better = self.problem.peak(offsets) < self.peak
        if better:
            self.offsets = offsets
        return better


def solve_by(kind: type[Anytime], problem: Problem, options: Options) -> Plan:
    """The best Plan found within the limits of `options`, or until Ctrl-C.

    Raises NoPlanError where fixed offsets collide, UsageError for gaps in lifespans
    that it does not take.
    """
    if not kind.gaps:
        refuse_gaps(problem, kind.method)
    start = time.perf_counter()
    offsets, _ = best_of_six(problem, options)
    search = kind(problem, options, offsets)
    interrupted = False
    try:
        search.run(start)
    except KeyboardInterrupt:
        interrupted = True
    note = f"{search.tried:,} {kind.tries}" + (", interrupted" * interrupted)
    made = Provenance(kind.method, options.seed, note=note)
    return Plan.of(problem, search.offsets, made)
