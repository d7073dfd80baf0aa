"""From a Trace to the packing problem of its hot step.

Buffers that die within their step or the next one are *transient*, and planned;
those still alive two steps later are *persistent*, and left to the default
allocator. A transient buffer that is alive across the end of the step wraps around:
`[lower, T) ∪ [0, upper)`. One that is still alive when its own successor is made
cannot have one offset in every step; then the step is unrolled, and the plan
repeats every two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from memplan.arrays import BoolArray, Int64Array
from memplan.core.placement import Requests, Workload
from memplan.core.problem import Problem
from memplan.errors import NoPlanError, UsageError
from memplan.trace.match import lives
from memplan.trace.persistent import persistent_bytes
from memplan.trace.step_kinds import KindWorkload, other_kinds
from memplan.trace.steps import HotSteps, Timeline, find_hot, timeline
from memplan.trace.threads import ThreadSteps, Together, steps_by_thread, together
from memplan.trace.trace import Trace
from memplan.trace.unmarked import unmarked_steps

NEVER = Timeline.NEVER


@dataclass(frozen=True, eq=False)
class WarmupWorkload(Workload):
    """The steps before the hot ones, on a linear clock.

    `ticks` is the clock's reading where the first hot step begins; lifespans may
    reach beyond it.
    """

    ticks: int


@dataclass(frozen=True, eq=False)
class StepWorkload(Workload):
    """What is to be planned, and how it came about.

    hot: the steps chosen; None when the whole recording is planned as one.
    unrolled: how many steps `problem` spans for each of the period.
    persistent_bytes: exact bytes alive, and outliving steps, when the hot step begins.
    warmup: the steps before them. kinds: steps after the first hot one that are of
    another kind. together: where threads make their steps side by side, each by its own
    sequence, what they hold of the planned blocks at one time. unmarked: the steps are
    not marked in the trace, but found in its sequence of requests.
    """

    hot: HotSteps | None
    unrolled: int
    persistent_bytes: int
    warmup: WarmupWorkload | None = None
    kinds: tuple[KindWorkload, ...] = ()
    together: Together | None = None
    unmarked: bool = False


def step_problem(
    trace: Trace, step: str = "hot", alignment: int | None = None
) -> StepWorkload:
    """The packing problem of one step of `trace`.

    step: "hot", a step's number, or "all" for the whole recording as one step. A
        recording of which no step repeats may have a loop in its sequence of requests;
        without one, and without boundaries, it has one step only: "hot" means "all".
    alignment: bytes; the trace's own when None. Allocators hand out whole blocks of so
        many: buffers take up multiples of it.

    Raises NoPlanError when no step repeats, UsageError for a step that is not there.
    """
    unit = trace.info.alignment if alignment is None else alignment
    on_cpu = trace.info.device == "cpu"  # where the loader follows what is not marked
    if step == "hot" and on_cpu and (threads := _hot_first(trace)) is not None:
        return _of_threads(trace, threads, unit)
    line = timeline(trace)
    if step == "hot":
        hot = find_hot(line)
        if hot is not None:
            return _cycle(line, hot, unit)
        if on_cpu and (unmarked := unmarked_steps(line)) is not None:
            return _unmarked(unmarked, unit)
    if step == "all" or (step == "hot" and line.steps == 1):
        return _whole(line, unit)
    if step == "hot":
        raise _none_repeats(line)
    return _cycle(line, HotSteps(_step_number(line, step), 1, True), unit)


def _hot(line: Timeline) -> HotSteps:
    hot = find_hot(line)
    if hot is None:
        raise _none_repeats(line)
    return hot


def _none_repeats(line: Timeline) -> NoPlanError:
    return NoPlanError(
        f"none of the {line.steps} steps repeats the one before it, and no loop shows "
        "in the sequence of requests; record more steps, mark the top of the loop with "
        "memplan.step(), or choose one with --step N"
    )


def _unmarked(line: Timeline, alignment: int) -> StepWorkload:
    """A loop found in the sequence itself. Nothing tells the loader of the steps before
    it: there is no warm-up, nor are there other kinds."""
    found = _cycle(line, _hot(line), alignment)
    return replace(found, warmup=None, kinds=(), unmarked=True)


def _hot_first(trace: Trace) -> ThreadSteps | None:
    """`steps_by_thread`, the hot steps' thread first: kinds are what comes after."""
    threads = steps_by_thread(trace)
    hot = None if threads is None else find_hot(line := timeline(threads.trace))
    if threads is None or hot is None:
        return threads
    made, _ = lives(threads.trace.events)
    row = made[line.requests(hot.begin).start]
    return steps_by_thread(trace, int(threads.thread[row]))


def _of_threads(trace: Trace, threads: ThreadSteps, alignment: int) -> StepWorkload:
    """The steps of all threads as if one had made them, one after the other.

    Each thread begins where it pleases: there is no warm-up. A kind of step that came
    only once is none: the first of a thread, or one that was cut off.
    """
    line = timeline(threads.trace)
    hot = _hot(line)
    made, _ = lives(threads.trace.events)
    transient = made[_transient(line, line.lower, line.upper)]
    return replace(
        _cycle(line, hot, alignment, least_seen=2),
        persistent_bytes=persistent_bytes(trace, threads, hot),
        warmup=None,
        together=together(threads, transient),
    )


def _step_number(line: Timeline, step: str) -> int:
    if not step.isascii() or not step.isdigit():
        raise UsageError(f"--step {step}: write hot, all or a step's number")
    number = int(step)
    if number >= line.steps:
        raise UsageError(
            f"--step {step}: the trace has steps 0 to {line.steps - 1} only"
        )
    return number


def _whole(line: Timeline, alignment: int) -> StepWorkload:
    transient = line.upper != NEVER
    problem, requests = _begun(line, transient, (0,), alignment)
    return StepWorkload(problem, requests, None, 1, int(line.size[~transient].sum()))


def _begun(
    line: Timeline,
    transient: BoolArray,
    starts: tuple[int, ...],
    alignment: int,
) -> tuple[Problem, Requests]:
    """The workload of a timeline's first requests, as many as `transient` has."""
    chosen = np.flatnonzero(transient)
    problem = Problem.of(
        line.lower[chosen],
        line.upper[chosen],
        line.size[chosen],
        alignment=alignment,
        rounding=alignment,
    )
    return problem, Requests.serving(starts, line.size[: len(transient)], chosen)


def _transient(line: Timeline, lower: Int64Array, upper: Int64Array) -> BoolArray:
    """Freed in the step that made it, or in the next."""
    young = line.step_of(upper) - line.step_of(lower) <= 1
    transient: BoolArray = young & (upper != NEVER)
    return transient


def _cycle(
    line: Timeline, hot: HotSteps, alignment: int, least_seen: int = 1
) -> StepWorkload:
    period = _Period(line, hot)
    workload, unrolled = period.workload(alignment)
    begin = period.begin
    persistent = (line.lower < begin) & (line.step_of(line.upper) > hot.begin + 1)
    kinds: tuple[KindWorkload, ...] = ()
    if hot.passes > 1:
        kinds = other_kinds(line, hot, workload.requests, alignment, least_seen)
    return StepWorkload(
        workload.problem,
        workload.requests,
        hot,
        unrolled,
        int(line.size[persistent].sum()),
        _warmup(line, hot, alignment),
        kinds,
    )


class _Period:
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
            freed != NEVER, died - line.step_of(line.lower[rows]), line.steps
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


def _warmup(line: Timeline, hot: HotSteps, alignment: int) -> WarmupWorkload | None:
    if hot.begin == 0:
        return None
    begin = line.span(hot.begin)[0]
    count = line.requests(hot.begin).start
    transient = _transient(line, line.lower[:count], line.upper[:count])
    starts = tuple(line.first[: hot.begin].tolist())
    return WarmupWorkload(*_begun(line, transient, starts, alignment), begin)
