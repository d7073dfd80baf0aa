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
from memplan.trace.period import Period
from memplan.trace.persistent import persistent_bytes
from memplan.trace.step_kinds import KindWorkload, other_kinds
from memplan.trace.steps import HotSteps, Timeline, find_hot, irregular, timeline
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
class VariedWorkload:
    """Steps that differ in their sizes, or of a few kinds in any order, as they came.

    blocks: of all `steps` but the program's start, those that die within their step or
    the next one, on a linear clock. start: the warm-up without any of those steps.
    """

    steps: int
    blocks: Problem
    start: WarmupWorkload


@dataclass(frozen=True, eq=False)
class StepWorkload(Workload):
    """What is to be planned, and how it came about.

    hot: the steps chosen; None when the whole recording is planned as one.
    unrolled: how many steps `problem` spans for each of the period.
    persistent_bytes: exact bytes alive, and outliving steps, when the hot step begins.
    warmup: the steps before them. kinds: steps after the first hot one that are of
    another kind. together: where threads make their steps side by side, each by its own
    sequence, what they hold of the planned blocks at one time. unmarked: the steps are
    not marked in the trace, but found in its sequence of requests. varied: of CUDA
    memory, where steps are elastic or in no order.
    """

    hot: HotSteps | None
    unrolled: int
    persistent_bytes: int
    warmup: WarmupWorkload | None = None
    kinds: tuple[KindWorkload, ...] = ()
    together: Together | None = None
    unmarked: bool = False
    varied: VariedWorkload | None = None


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
            if trace.info.device == "cuda" and (hot.elastic or irregular(line, hot)):
                found = _cycle(line, hot, unit, kinds_from=1)
                return replace(found, varied=_varied(line, unit))
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
    line: Timeline,
    hot: HotSteps,
    alignment: int,
    least_seen: int = 1,
    kinds_from: int | None = None,
) -> StepWorkload:
    """kinds_from: as `begin` of `other_kinds`."""
    period = Period(line, hot)
    workload, unrolled = period.workload(alignment)
    begin = period.begin
    persistent = (line.lower < begin) & (line.step_of(line.upper) > hot.begin + 1)
    kinds: tuple[KindWorkload, ...] = ()
    if hot.passes > 1:
        requests = workload.requests
        kinds = other_kinds(line, hot, requests, alignment, least_seen, kinds_from)
    return StepWorkload(
        workload.problem,
        workload.requests,
        hot,
        unrolled,
        int(line.size[persistent].sum()),
        _warmup(line, hot, alignment),
        kinds,
    )


def _varied(line: Timeline, alignment: int) -> VariedWorkload:
    start = line.requests(1).start
    lower, upper = line.lower[start:], line.upper[start:]
    chosen = np.flatnonzero(_transient(line, lower, upper))
    blocks = Problem.of(
        lower[chosen],
        upper[chosen],
        line.size[start:][chosen],
        alignment=alignment,
        rounding=alignment,
    )
    return VariedWorkload(line.steps - 1, blocks, _before(line, 1, alignment))


def _warmup(line: Timeline, hot: HotSteps, alignment: int) -> WarmupWorkload | None:
    return _before(line, hot.begin, alignment) if hot.begin else None


def _before(line: Timeline, step: int, alignment: int) -> WarmupWorkload:
    """The steps before `step`, which is not the first."""
    begin = line.span(step)[0]
    count = line.requests(step).start
    transient = _transient(line, line.lower[:count], line.upper[:count])
    starts = tuple(line.first[:step].tolist())
    return WarmupWorkload(*_begun(line, transient, starts, alignment), begin)
