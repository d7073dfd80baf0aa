"""Two searches that always have a plan, and a better one the longer they run.

`Search` decodes orders of priority by best fit. It finds the buffers that came too
late to end below the best peak so far, raises their priority, and decodes again
(squeaky wheel optimisation: Joslin and Clements, Journal of Artificial Intelligence
Research 10, 1999); and it refines the best order by small changes around a buffer that
touches the peak. Where lifespans have gaps, it places buffers piece by piece.

`Ejection` is for problems too large for exact search. It takes out all buffers that end
above a roof and puts them back below it one by one, the largest first: into a gap if
there is one, else where the buffers in the way are worth least, and those are taken out
in turn (ejection chains: Glover, Discrete Applied Mathematics 65, 1996). Buffers that
were hard to place cost more to eject (Nagata and Bräysy, Operations Research Letters
37, 2009). When all are back, the roof comes down.

Both kernels are compiled. Without a time limit each does a fixed amount of work, and
the same seed gives the same plan on any number of threads.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan, Provenance
from memplan.core.problem import FREE, Problem, pieces
from memplan.native import _dsa
from memplan.solving.bestfit import best_of_six, merits
from memplan.solving.options import DEFAULTS, Options, Progress
from memplan.solving.placing import quietest_moment, refuse_gaps, spans

UNLIMITED = 1 << 62  # tries
_SLICE_SECONDS = 0.1  # between looks at the keyboard
_DEPTH = 4.0  # of the priorities of offsets from 0 to the peak
_SLOWER = 4  # times, about, an order is packed around gaps
_USUAL_SECONDS = 2.3  # of processor time that `Search` takes without a limit, about
_WORK_A_SECOND = 50e6  # of the ejection kernel, about


class Anytime(ABC):
    """A search that can be run on and on. Not to be shared between threads.

    offsets: of the best plan so far, bytes, shape (n,). bound: bytes; no plan needs
    less. most: tries at the most. method: its name. tries: what is counted, for
    messages. gaps: whether it supports gaps in lifespans.
    """

    method: ClassVar[str]
    tries: ClassVar[str]
    gaps: ClassVar[bool] = False

    def __init__(self, problem: Problem, options: Options, offsets: Int64Array) -> None:
        """offsets: a plan to begin with, in which nothing collides.

        Raises UsageError for gaps in lifespans that it does not support.
        """
        if not self.gaps:
            refuse_gaps(problem, self.method)
        self.problem = problem
        self.options = options
        self.offsets = offsets
        self.bound = lower_bound(problem)
        self.most = UNLIMITED if options.time_limit is not None else self.usual
        if options.iterations is not None:
            self.most = options.iterations

    @property
    def peak(self) -> int:
        """Bytes of the best plan so far."""
        return self.problem.peak(self.offsets)

    @property
    def goal(self) -> int:
        """Bytes: a peak that is low enough, by the bound or the capacity."""
        return max(self.bound, self.options.capacity or 0)

    @property
    @abstractmethod
    def tried(self) -> int:
        """Tries made so far."""

    @property
    @abstractmethod
    def effort(self) -> float:
        """Seconds of processor time so far, by a model: the same on any machine."""

    @property
    @abstractmethod
    def usual(self) -> int:
        """Tries made without a limit: some seconds' work."""

    @abstractmethod
    def _advance(
        self, goal: int, most: int, effort: float, seconds: float, left: float
    ) -> None:
        """Search for `seconds`, and keep what is better.

        goal, most, effort: as in `seek`. left: seconds after which a try is cut off.
        """

    def seek(
        self,
        goal: int,
        start: float,
        most: int | None = None,
        effort: float = math.inf,
    ) -> None:
        """Search until the peak is `goal` bytes or less, or a limit is reached.

        start: when the time limit began to count, by `time.perf_counter`.
        most, effort: tries and modelled seconds, both since the search was made.
        """
        most = self.most if most is None else most
        limit = self.options.time_limit
        while self.peak > goal and self.tried < most and self.effort < effort:
            seconds = time.perf_counter() - start
            left = math.inf if limit is None else limit - seconds
            if left <= 0:
                break
            self._advance(goal, most, effort, min(left, _SLICE_SECONDS), left)
            seconds = time.perf_counter() - start
            progress = Progress(self.peak, self.bound, self.tried, seconds)
            self.options.report(progress)

    def take(self, offsets: Int64Array) -> None:
        """Go on from these offsets if they are better than the best so far."""
        if self.problem.peak(offsets) < self.peak:
            self.offsets = offsets


class Search(Anytime):
    """Randomised search over orders of priority; a try is an order that is packed."""

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
    def effort(self) -> float:
        return self.tried * self._per_order

    @property
    def _per_order(self) -> float:
        return _USUAL_SECONDS / self.usual

    @property
    def usual(self) -> int:
        orders = default_orders(len(self.problem))
        return orders if self.problem.gaps is None else max(12, orders // _SLOWER)

    def _advance(
        self, goal: int, most: int, effort: float, seconds: float, left: float
    ) -> None:
        if self._kernel is None:
            self._kernel = self._new_kernel()
        if effort < math.inf:
            most = min(most, math.ceil(effort / self._per_order))
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
        if gaps:  # and the best so far, lowered into the gaps from the bottom up
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


class Ejection(Anytime):
    """Search by ejection; a try is a buffer that is placed."""

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
    def effort(self) -> float:
        return 0.0 if self._kernel is None else self._kernel.worked / _WORK_A_SECOND

    @property
    def usual(self) -> int:
        return default_placements(self.problem)

    def take(self, offsets: Int64Array) -> None:
        better = self.problem.peak(offsets) < self.peak
        super().take(offsets)
        if better and self._kernel is not None:
            self._kernel.offer(offsets // self._unit)

    def _advance(
        self, goal: int, most: int, effort: float, seconds: float, left: float
    ) -> None:
        if self._kernel is None:
            self._kernel = self._new_kernel()
        unit, workers = self._unit, self.options.workers()
        work = UNLIMITED if effort == math.inf else math.ceil(effort * _WORK_A_SECOND)
        self._kernel.advance(goal // unit, most, seconds, left, workers, work)
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


def default_orders(count: int) -> int:
    """Orders tried for `count` buffers without a limit: a second or two's work."""
    # Some thousand buffers have more lines at a time to choose from; very many do not
    # fit in the caches.
    crowded = min(max(count / 200, 1.0), 3.0) * max(1.0, math.sqrt(count / 32768))
    return min(max(12, round(12e6 / (max(count, 1) * crowded))), 60_000)


def default_placements(problem: Problem) -> int:
    """Placements made without a limit: some seconds' work.

    The more buffers are alive beside one, the longer a placement takes.
    """
    start, end = spans(problem)
    whole = int(end.max(initial=1) - start.min(initial=end.max(initial=1)))
    alive = int((end - start).sum()) / max(whole, 1)
    return round(1e8 / (100 + alive))


def search(problem: Problem, options: Options = DEFAULTS) -> Plan:
    """The best Plan that `Search` finds within the limits, or until Ctrl-C.

    Raises NoPlanError where fixed offsets collide.
    """
    return _solve_by(Search, problem, options)


def ejection(problem: Problem, options: Options = DEFAULTS) -> Plan:
    """The best Plan that `Ejection` finds within the limits, or until Ctrl-C.

    Raises NoPlanError where fixed offsets collide, UsageError for gaps in lifespans.
    """
    return _solve_by(Ejection, problem, options)


def _solve_by(kind: type[Anytime], problem: Problem, options: Options) -> Plan:
    if not kind.gaps:
        refuse_gaps(problem, kind.method)
    start = time.perf_counter()
    offsets, _ = best_of_six(problem, options)
    found = kind(problem, options, offsets)
    interrupted = False
    try:
        found.seek(found.goal, start)
    except KeyboardInterrupt:
        interrupted = True
    note = f"{found.tried:,} {kind.tries}" + (", interrupted" * interrupted)
    made = Provenance(kind.method, options.seed, note=note)
    return Plan.of(problem, found.offsets, made)
