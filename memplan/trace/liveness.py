"""From a Trace to the packing problem of its hot step.

Buffers that die within their step or the next one are *transient*, and planned;
those still alive two steps later are *persistent*, and left to the default
allocator. A transient buffer that is alive across the end of the step wraps around:
`[lower, T) ∪ [0, upper)`. One that is still alive when its own successor is made
cannot have one offset in every step; then the step is unrolled, and the plan
repeats every two.

Steps of other kinds than the hot one (a short last batch, an evaluation) are planned
one kind at a time, on a linear clock that begins with the step. Blocks of the step
before that are still alive in it, and blocks of the step after that are made while its
own are alive, are its *neighbours*: their places are given.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from memplan.arrays import BoolArray, Int64Array
from memplan.core.plan import Requests, Workload
from memplan.core.problem import Problem
from memplan.errors import NoPlanError, UsageError, as_options
from memplan.trace.lives import NEVER, Lives, lives_of
from memplan.trace.steps import Found, HotSteps, Together, find_steps
from memplan.trace.trace import NO_HISTORY, Trace

MOST_KINDS = 32
HOT = -1  # in `Neighbours.kind`: of the hot steps


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Blocks of other steps that a kind's own must keep clear of; shape (k,) each.

    lower, upper: ticks of the kind's clock, half-open. kind: HOT, or the number of
    another kind. request: of the hot steps' requests, or of that kind's.
    """

    lower: Int64Array
    upper: Int64Array
    size: Int64Array
    kind: Int64Array
    request: Int64Array

    def take(self, rows: BoolArray) -> Neighbours:
        """Those chosen, as new columns."""
        return Neighbours(*(getattr(self, f.name)[rows] for f in fields(self)))


@dataclass(frozen=True, eq=False)
class KindWorkload(Workload):
    """One kind of step, on a linear clock, and its neighbours.

    steps: the numbers of the recorded steps that are of this kind.
    begins_as: a row (kind, request) for each of its first requests, those by which it
        cannot be told yet from the step that was expected, or from an earlier kind:
        it is served in that request's place, as in `Neighbours`. Shape (p, 2).
    """

    neighbours: Neighbours
    steps: tuple[int, ...]
    begins_as: Int64Array


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

    Raises NoPlanError when no step repeats, or the trace has no history; UsageError for
    a step that is not there.
    """
    if not trace.info.history:
        raise NoPlanError(
            f"{NO_HISTORY}; a plan needs the requests of some steps: call "
            "torch.cuda.memory._record_memory_history() before them"
        )
    unit = trace.info.alignment if alignment is None else alignment
    line = lives_of(trace)
    if step == "hot" and (found := find_steps(line)) is not None:
        return _planned(found, unit)
    if step == "all" or (step == "hot" and line.steps == 1):
        freed = line.upper != NEVER
        own, rows = slice(0, len(line)), np.flatnonzero(freed)
        begun = _linear(line, own, rows, (0,), unit)
        return StepWorkload(*begun, None, 1, int(line.size[~freed].sum()))
    if step == "hot":
        text = (
            f"none of the {line.steps} steps repeats the one before it, and no loop "
            "shows in the sequence of requests; record more steps, mark the top of the "
            'loop with memplan.step(), or choose one with step="N"'
        )
        raise NoPlanError(text, shell=as_options(text))
    return _cycle(line, HotSteps(_step_number(line, step), 1, True), unit)


def _planned(found: Found, alignment: int) -> StepWorkload:
    """The workload of steps that repeat."""
    line, hot = found.lives, found.hot
    if found.irregular:
        planned = _cycle(line, hot, alignment, kinds_from=1)
        return replace(planned, varied=_varied(line, alignment))
    if found.together is not None:
        # Each thread begins where it pleases: there is no warm-up. A kind of step that
        # came only once is none: the first of a thread, or one that was cut off.
        return replace(
            _cycle(line, hot, alignment, least_seen=2),
            persistent_bytes=found.persistent_bytes,
            warmup=None,
            together=found.together,
        )
    planned = _cycle(line, hot, alignment)
    if found.unmarked:
        # Nothing tells the loader of the steps before it, or of other kinds.
        return replace(planned, warmup=None, kinds=(), unmarked=True)
    return planned


def _step_number(line: Lives, step: str) -> int:
    if not step.isascii() or not step.isdigit():
        why = "write hot, all or a step's number"
        raise UsageError(f"step {step!r}: {why}", shell=f"--step {step}: {why}")
    number = int(step)
    if number >= line.steps:
        last = line.steps - 1
        why = f"the trace has steps 0 to {last} only"
        raise UsageError(f"step {step}: {why}", shell=f"--step {step}: {why}")
    return number


def _linear(
    line: Lives,
    own: slice,
    rows: Int64Array,
    starts: tuple[int, ...],
    alignment: int,
    begin: int = 0,
) -> tuple[Problem, Requests]:
    """The requests `own`, of which the blocks `rows` are planned, on a linear clock.

    begin: the tick at which that clock reads 0.
    """
    problem = _problem(line, rows, begin, alignment)
    return problem, Requests.serving(starts, line.size[own], rows - own.start)


def _problem(line: Lives, rows: Int64Array, begin: int, alignment: int) -> Problem:
    """Blocks on a linear clock that reads 0 at tick `begin`."""
    return Problem.of(
        line.lower[rows] - begin,
        line.upper[rows] - begin,
        line.size[rows],
        alignment=alignment,
        rounding=alignment,
    )


def _cycle(
    line: Lives,
    hot: HotSteps,
    alignment: int,
    least_seen: int = 1,
    kinds_from: int | None = None,
) -> StepWorkload:
    """kinds_from: as `begin` of `_other_kinds`."""
    period = _Period(line, hot)
    workload, unrolled = period.workload(alignment)
    begin = period.begin
    persistent = (line.lower < begin) & (line.last_step > hot.begin + 1)
    kinds: tuple[KindWorkload, ...] = ()
    if hot.passes > 1:
        requests = workload.requests
        kinds = _other_kinds(line, hot, requests, alignment, least_seen, kinds_from)
    return StepWorkload(
        workload.problem,
        workload.requests,
        hot,
        unrolled,
        int(line.size[persistent].sum()),
        _before(line, hot.begin, alignment) if hot.begin else None,
        kinds,
    )


def _varied(line: Lives, alignment: int) -> VariedWorkload:
    rows = np.flatnonzero(line.transient)
    rows = rows[rows >= line.first[1]]
    blocks = _problem(line, rows, 0, alignment)
    return VariedWorkload(line.steps - 1, blocks, _before(line, 1, alignment))


def _before(line: Lives, step: int, alignment: int) -> WarmupWorkload:
    """The steps before `step`, which is not the first."""
    starts = tuple(line.first[:step].tolist())
    own = slice(0, int(line.first[step]))
    rows = np.flatnonzero(line.transient[own])
    begun = _linear(line, own, rows, starts, alignment)
    return WarmupWorkload(*begun, int(line.begins[step]))


class _Period:
    """The hot steps' first pass: rows `own` of the allocations, ticks [begin, end)."""

    def __init__(self, line: Lives, hot: HotSteps) -> None:
        self.line, self.hot = line, hot
        steps = [hot.begin, hot.begin + hot.period]
        self.begin, self.end = line.begins[steps].tolist()
        self.own = slice(*line.first[steps].tolist())
        self.count = self.own.stop - self.own.start

    def workload(self, alignment: int) -> tuple[Workload, int]:
        """The period, unrolled where it must be, on a clock that closes on itself.

        Also how often it is unrolled.
        """
        upper, lived = self._lives()
        transient = np.flatnonzero(lived <= 1)
        lower = (self.line.lower[self.own] - self.begin)[transient]
        upper = upper[transient]
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
            later_sizes = line.size[first : first + self.count]
            if not np.array_equal(later_sizes, line.size[own]):
                break
            later, longer = self._ends(repetition)
            upper, lived = np.maximum(upper, later), np.maximum(lived, longer)
        return upper, lived

    def _ends(self, repetition: int) -> tuple[Int64Array, Int64Array]:
        """`_lives`, as one repetition of the period has them."""
        line, hot = self.line, self.hot
        rows = np.arange(self.own.start, self.own.stop) + repetition * self.count
        freed, died = line.upper[rows], line.last_step[rows]
        lived = np.where(freed != NEVER, died - line.step[rows], line.steps)
        at = np.minimum(died, line.steps - 1)
        turns, phase = np.divmod(at - hot.begin, hot.period)
        like = hot.begin + phase
        following = np.searchsorted(line.lower, freed, side="left") - line.first[at]
        counts = np.diff(line.first)
        request = np.minimum(line.first[like] + following, len(line) - 1)
        inside = following < counts[like]
        tick = np.where(inside, line.lower[request], line.begins[like + 1])
        # No request lies between a step's begin and its first: that is the end before.
        tick = np.where(following == 0, line.begins[like], tick)
        shift = (turns - repetition) * (self.end - self.begin)
        return tick - self.begin + shift, lived

    def _sizes(self) -> Int64Array:
        """Bytes of the period's requests; of elastic ones, the most in any pass."""
        passes = self.hot.passes if self.hot.elastic else 1
        sizes = self.line.size[self.own.start : self.own.start + passes * self.count]
        most: Int64Array = sizes.reshape(passes, self.count).max(axis=0)
        return most


def _other_kinds(
    line: Lives,
    hot: HotSteps,
    requests: Requests,
    alignment: int,
    least_seen: int = 1,
    begin: int | None = None,
) -> tuple[KindWorkload, ...]:
    """The kinds of the steps from `begin` on that are not hot; None: the first hot one.

    requests: of the hot steps, as planned. The kinds seen most often, at most
    MOST_KINDS, without those seen less than `least_seen` times; none where the hot
    steps are elastic, and take steps of many sizes.
    """
    if hot.elastic:
        return ()
    begin = hot.begin if begin is None else begin
    chosen = _Steps(line, hot, requests, least_seen, begin)
    numbers = range(len(chosen.kinds))
    return tuple(_kind(line, chosen, number, alignment) for number in numbers)


class _Steps:
    """Which step of the plan each recorded step stands for.

    of: per recorded step its kind (HOT or a number) and the request it begins with, for
    those that stand for one. kinds: the recorded steps of each kind. expected: per
    recorded step the place in the loop of the hot step that was due.
    """

    def __init__(
        self,
        line: Lives,
        hot: HotSteps,
        requests: Requests,
        least_seen: int,
        begin: int,
    ) -> None:
        self.of: dict[int, tuple[int, int]] = {}
        self.expected: dict[int, int] = {}
        self.loop = np.split(requests.size, requests.starts[1:])
        self.starts = requests.starts
        period = hot.requests[hot.begin - 1 : hot.begin - 1 + hot.period]
        loop = period * (len(requests.starts) // hot.period)
        groups: dict[bytes, list[int]] = {}
        following = 0
        for step in range(begin, line.steps - 1):
            mark = hot.requests[step - 1]
            around = [*range(following, len(loop)), *range(following)]
            place = next((i for i in around if loop[i] == mark), None)
            self.expected[step] = following
            if place is None:
                groups.setdefault(mark, []).append(step)
                continue
            self.of[step] = HOT, requests.starts[place]
            following = (place + 1) % len(loop)
        seen = [steps for steps in groups.values() if len(steps) >= least_seen]
        often = sorted(seen, key=len, reverse=True)[:MOST_KINDS]
        asked = np.diff(line.first)
        self.kinds = [tuple(steps) for steps in sorted(often) if asked[steps[0]]]
        for number, steps in enumerate(self.kinds):
            self.of |= dict.fromkeys(steps, (number, 0))

    def begins_as(self, line: Lives, number: int) -> Int64Array:
        """`KindWorkload.begins_as` of a kind: which steps the loader takes it for."""
        step = self.kinds[number][0]
        asked = np.split(line.size, line.first[1:-1])  # by step
        place, sizes = self.expected[step], asked[step]
        around = [*range(place, len(self.loop)), *range(place)]
        candidates = [(HOT, self.starts[i], self.loop[i]) for i in around]
        for kind in range(number):
            candidates.append((kind, 0, asked[self.kinds[kind][0]]))
        rows: list[tuple[int, int]] = []
        for kind, first, like in candidates:
            # Later ones come into question only where they go on alike for longer.
            alike = _common(sizes, like)
            rows += [(kind, first + i) for i in range(len(rows), alike)]
        return np.array(rows, dtype=np.int64).reshape(-1, 2)


def _common(one: Int64Array, other: Int64Array) -> int:
    """How many entries the two begin with alike."""
    count = min(len(one), len(other))
    differ = np.flatnonzero(one[:count] != other[:count])
    return int(differ[0]) if len(differ) else count


def _kind(line: Lives, chosen: _Steps, number: int, alignment: int) -> KindWorkload:
    steps = chosen.kinds[number]
    step = steps[0]
    own, begin = line.requests(step), int(line.begins[step])
    mine = own.start + np.flatnonzero(line.last_step[own] <= step + 1)
    problem, requests = _linear(line, own, mine, (0,), alignment, begin)
    neighbours = _neighbours(line, chosen, step, int(problem.upper.max(initial=0)))
    begins_as = chosen.begins_as(line, number)
    return KindWorkload(problem, requests, neighbours, steps, begins_as)


def _neighbours(line: Lives, chosen: _Steps, step: int, end: int) -> Neighbours:
    """The transient blocks of the steps around it that live in ticks [0, end)."""
    begin = line.begins[step]
    parts = [np.empty((5, 0), dtype=np.int64)]
    for near in (step - 1, step + 1):
        if near not in chosen.of:
            continue
        kind, first = chosen.of[near]
        own = np.arange(line.first[near], line.first[near + 1])
        rows = own[line.last_step[own] <= min(near + 1, line.steps - 1)]
        lower = np.maximum(line.lower[rows] - begin, 0)
        upper, kinds = line.upper[rows] - begin, np.full(len(rows), kind)
        request = rows - line.first[near] + first
        parts.append(np.stack([lower, upper, line.size[rows], kinds, request]))
    found = Neighbours(*np.concatenate(parts, axis=1))
    return found.take((found.upper > 0) & (found.lower < end))
