"""From a Trace to the packing problem of its hot step.

Buffers that die within their step or the next one are *transient*, and planned;
those still alive two steps later are *persistent*, and left to the default
allocator. A transient buffer that is alive across the end of the step wraps around:
`[lower, T) ∪ [0, upper)`. One that is still alive when its own successor is made
cannot have one offset in every step; then the step is unrolled, and the plan
repeats every two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memplan.arrays import BoolArray, Int64Array
from memplan.core.placement import Requests, Workload
from memplan.core.problem import Problem
from memplan.errors import NoPlanError, UsageError
from memplan.trace.step_kinds import KindWorkload, other_kinds
from memplan.trace.steps import HotSteps, Timeline, find_hot, timeline
from memplan.trace.trace import Trace

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
    another kind.
    """

    hot: HotSteps | None
    unrolled: int
    persistent_bytes: int
    warmup: WarmupWorkload | None = None
    kinds: tuple[KindWorkload, ...] = ()


def step_problem(
    trace: Trace, step: str = "hot", alignment: int | None = None
) -> StepWorkload:
    """The packing problem of one step of `trace`.

    step: "hot", a step's number, or "all" for the whole recording as one step. A
        recording without boundaries has one step only, and "hot" means "all".
    alignment: bytes; the trace's own when None.

    Raises NoPlanError when no step repeats, UsageError for a step that is not there.
    """
    line = timeline(trace)
    unit = trace.info.alignment if alignment is None else alignment
    if step == "all" or (step == "hot" and line.steps == 1):
        return _whole(line, unit)
    if step == "hot":
        hot = find_hot(line)
        if hot is None:
            raise NoPlanError(
                f"none of the {line.steps} steps repeats the one before it; record "
                "more steps, mark the top of the loop with memplan.step(), "
                "or choose one with --step N"
            )
    else:
        hot = HotSteps(_step_number(line, step), 1, True)
    return _cycle(line, hot, unit)


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
        line.lower[chosen], line.upper[chosen], line.size[chosen], alignment=alignment
    )
    return problem, Requests.serving(starts, line.size[: len(transient)], chosen)


def _transient(line: Timeline, lower: Int64Array, upper: Int64Array) -> BoolArray:
    """Freed in the step that made it, or in the next."""
    young = line.step_of(upper) - line.step_of(lower) <= 1
    transient: BoolArray = young & (upper != NEVER)
    return transient


def _cycle(line: Timeline, hot: HotSteps, alignment: int) -> StepWorkload:
    begin, end = line.span(hot.begin)[0], line.span(hot.begin + hot.period - 1)[1]
    length = end - begin
    own = slice(
        line.requests(hot.begin).start, line.requests(hot.begin + hot.period - 1).stop
    )
    upper, lived = _lives(line, hot, own)
    transient = lived <= 1
    lower = line.lower[own] - begin
    life = np.where(transient, upper - lower, 0)
    # A life of a whole period or more meets its own successor: unroll.
    unrolled = int(-(-(life.max(initial=0) + 1) // max(length, 1)))
    size = _sizes(line, hot, own)
    problem, requests = _unroll(
        lower, upper, size, line, own, transient, length, unrolled, hot, alignment
    )
    persistent = (line.lower < begin) & (line.step_of(line.upper) > hot.begin + 1)
    return StepWorkload(
        problem,
        requests,
        hot,
        unrolled,
        int(line.size[persistent].sum()),
        _warmup(line, hot, alignment),
        other_kinds(line, hot, requests, alignment) if hot.passes > 1 else (),
    )


def _lives(line: Timeline, hot: HotSteps, own: slice) -> tuple[Int64Array, Int64Array]:
    """Where the lives of the period's blocks end, and how many steps they last.

    Ends are ticks of the period's first pass, counted from its begin. A free is placed
    by the request that comes next, or by its step's end: that means the same in every
    repetition; ticks do not. Where only the requests repeat,
    a block lives as long as in any repetition.
    """
    upper, lived = _ends(line, hot, own, 0)
    count = own.stop - own.start
    passes = 1 if hot.exact else (line.steps - 1 - hot.begin) // hot.period - 1
    for repetition in range(1, passes):
        first = own.start + repetition * count
        if not np.array_equal(line.size[first : first + count], line.size[own]):
            break
        later, longer = _ends(line, hot, own, repetition)
        upper, lived = np.maximum(upper, later), np.maximum(lived, longer)
    return upper, lived


def _ends(
    line: Timeline, hot: HotSteps, own: slice, repetition: int
) -> tuple[Int64Array, Int64Array]:
    """`_lives`, as one repetition of the period has them."""
    rows = np.arange(own.start, own.stop) + repetition * (own.stop - own.start)
    freed = line.upper[rows]
    known = freed != NEVER
    died = line.step_of(freed)
    lived = np.where(known, died - line.step_of(line.lower[rows]), line.steps)
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
    begin, end = line.bounds[hot.begin], last_ticks[hot.begin + hot.period - 1]
    return tick - begin + (turns - repetition) * (end - begin), lived


def _sizes(line: Timeline, hot: HotSteps, own: slice) -> Int64Array:
    """Bytes of the period's requests; of elastic ones, the most in any pass."""
    count = own.stop - own.start
    passes = hot.passes if hot.elastic else 1
    sizes = line.size[own.start : own.start + passes * count]
    most: Int64Array = sizes.reshape(passes, count).max(axis=0)
    return most


def _unroll(
    lower: Int64Array,
    upper: Int64Array,
    size: Int64Array,
    line: Timeline,
    own: slice,
    transient: BoolArray,
    length: int,
    copies: int,
    hot: HotSteps,
    alignment: int,
) -> tuple[Problem, Requests]:
    """`copies` passes of the period side by side, on a clock that closes on itself."""
    chosen = np.flatnonzero(transient)
    total = length * copies
    shifts = np.repeat(np.arange(copies, dtype=np.int64) * length, len(chosen))
    low = np.tile(lower[chosen], copies) + shifts
    high = np.tile(upper[chosen], copies) + shifts
    problem = Problem.of(
        low,
        np.where(high > total, high - total, high),
        np.tile(size[chosen], copies),
        alignment=alignment,
        length=max(total, 1),
    )
    served = np.flatnonzero(np.tile(transient, copies))
    firsts = line.first[hot.begin : hot.begin + hot.period] - own.start
    starts = [
        int(first) + copy * len(transient) for copy in range(copies) for first in firsts
    ]
    return problem, Requests.serving(tuple(starts), np.tile(size, copies), served)


def _warmup(line: Timeline, hot: HotSteps, alignment: int) -> WarmupWorkload | None:
    if hot.begin == 0:
        return None
    begin = line.span(hot.begin)[0]
    count = line.requests(hot.begin).start
    transient = _transient(line, line.lower[:count], line.upper[:count])
    starts = tuple(line.first[: hot.begin].tolist())
    return WarmupWorkload(*_begun(line, transient, starts, alignment), begin)
