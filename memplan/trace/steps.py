"""Where a program's steps begin, and which of them repeat.

Boundaries come from the strongest kind of mark in the trace. A step is *hot* when
the one after it makes the same requests in the same order (profile-guided memory
optimization, section 1); programs that alternate between a few kinds of steps are
hot with a longer period. Failing that, steps that do the same with other sizes are
hot, and *elastic*: sentences of any length, say (section 4.3).
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Int64Array
from memplan.trace.match import pairs
from memplan.trace.trace import Action, Columns, Mark, Trace

MAX_PERIOD = 8
RARE = 8  # one step in so many may be another than is due
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Timeline:
    """The allocations of a trace, and its steps, on one clock.

    The clock is the paper's: it advances by one after every allocation and every
    free (section 4.1). Steps are numbered from 0, where step 0 is all that comes
    before the first boundary; the last one may be cut off by the recording's end.

    size: exact bytes of each allocation, in the order they were made, shape (m,).
    lower, freed: its half-open life in ticks; freed is `NEVER` if it was not.
    upper: `freed`, or later where threads race: until then it may live in a repetition.
    bounds: first tick of each step, ascending, the first 0, shape (s,).
    first: index of each step's first allocation, shape (s,).
    ticks: the clock's reading at the end.
    """

    size: Int64Array
    lower: Int64Array
    freed: Int64Array
    upper: Int64Array
    bounds: Int64Array
    first: Int64Array
    ticks: int
    mark: Mark

    NEVER = _NEVER

    @property
    def steps(self) -> int:
        """How many steps were begun."""
        return len(self.bounds)

    def step_of(self, ticks: Int64Array) -> Int64Array:
        """The step in which each tick falls; NEVER falls in no step: `steps`."""
        found = np.searchsorted(self.bounds, ticks, side="right") - 1
        return np.where(ticks == _NEVER, self.steps, found).astype(np.int64)

    def requests(self, step: int) -> slice:
        """The allocations made in `step`, as a slice of the arrays."""
        last = step + 1 == self.steps
        return slice(
            int(self.first[step]),
            len(self.size) if last else int(self.first[step + 1]),
        )

    def count(self, step: int, steps: int = 1) -> int:
        """How many allocations `step` and those after it made, so many in all."""
        begin, end = self.requests(step), self.requests(step + steps - 1)
        return int(end.stop) - int(begin.start)

    def span(self, step: int) -> tuple[int, int]:
        """First tick of `step`, and the tick after its last."""
        last = step + 1 == self.steps
        end = self.ticks if last else int(self.bounds[step + 1])
        return int(self.bounds[step]), end


@dataclass(frozen=True)
class HotSteps:
    """Steps that repeat: `period` steps from `begin` on, and again right after.

    exact: the frees repeat as well as the requests, not the requests alone.
    elastic: the order of requests and frees repeats, the sizes do not.
    passes: how often the period comes, one after the other.
    """

    begin: int
    period: int
    exact: bool
    elastic: bool = False
    passes: int = 1


def timeline(trace: Trace) -> Timeline:
    """The trace's allocations and steps on one clock."""
    events = trace.events
    freed_rows, frees = pairs(events)
    made = (events.action == Action.ALLOC) & (events.requested_size > 0)
    counted = made | (events.action == Action.FREE_COMPLETED)
    tick = np.cumsum(counted, dtype=np.int32) - counted  # ticks before each row
    size = events.requested_size[made]
    lower = tick[made].astype(np.int64)
    number = np.cumsum(made, dtype=np.int32) - 1  # of the allocation in each row
    ends = made[freed_rows]
    freed = np.full(len(lower), _NEVER)
    freed[number[freed_rows[ends]]] = tick[frees[ends]]
    mark = strongest_mark(events)
    cuts: Int64Array = tick[(events.action == Action.STEP) & (events.mark == mark)]
    if mark is Mark.NONE:
        cuts = cuts[:0]
    bounds = np.concatenate([np.zeros(1, np.int64), cuts.astype(np.int64)])
    return Timeline(
        size=size,
        lower=lower,
        freed=freed,
        upper=(
            # Of CUDA memory a stream's order counts; who asks beside the program's own
            # thread is autograd's, which never runs at the same time.
            _outlast_races(lower, freed, events.thread, counted, bounds)
            if trace.info.device == "cpu"
            else freed
        ),
        bounds=bounds,
        first=np.searchsorted(lower, bounds, side="left").astype(np.int64),
        ticks=int(counted.sum()),
        mark=mark,
    )


def _outlast_races(
    lower: Int64Array,
    freed: Int64Array,
    thread: npt.NDArray[np.int32],
    counted: BoolArray,
    bounds: Int64Array,
) -> Int64Array:
    """`freed`, put off to the end of the parallel region that a block lives in.

    Within a parallel region (an operator's inner threads, each with its scratch) the
    order of requests and frees changes from run to run, so all blocks made and freed
    in one count as alive together. A region is where threads other than the busiest
    one show up, and as many events around as the threads of a step can have exchanged;
    it does not outlast the step. thread: of every event. counted: which of them are
    ticks. bounds: of the steps.
    """
    if (thread == thread[:1]).all():
        return freed
    thread = thread[counted]
    kinds, counts = np.unique(thread, return_counts=True)
    if len(kinds) < 2:
        return freed
    others = np.flatnonzero(thread != kinds[np.argmax(counts)])
    ends_of_steps = np.append(bounds[1:], len(thread))
    steps = zip(bounds.tolist(), ends_of_steps.tolist(), strict=True)
    reach = 2 * max(len(np.unique(thread[begin:end])) for begin, end in steps)
    apart = np.flatnonzero(np.diff(others) > 2 * reach)
    begins = others[np.append(0, apart + 1)] - reach
    ends = others[np.append(apart, len(others) - 1)] + reach
    region = np.maximum(np.searchsorted(begins, lower, side="right") - 1, 0)
    inside = (lower >= begins[region]) & (freed <= ends[region])
    step = np.searchsorted(ends_of_steps, freed, side="left")
    last = ends_of_steps[np.minimum(step, len(ends_of_steps) - 1)]
    until = np.minimum(ends[region], last)
    outlasted: Int64Array = np.where(inside, np.maximum(freed, until), freed)
    return outlasted


def strongest_mark(events: Columns) -> Mark:
    """The kind of boundary to go by: explicit, else optimizer, else forward."""
    kinds = events.mark[events.action == Action.STEP]
    return Mark(int(kinds.max())) if len(kinds) else Mark.NONE


class Alike(enum.Enum):
    """In what steps must agree to be of one kind."""

    ALL = enum.auto()  # requests, and when they are freed
    REQUESTS = enum.auto()
    ORDER = enum.auto()  # of requests and frees, whatever their sizes


def find_hot(line: Timeline) -> HotSteps | None:
    """The steps that repeat longest, or None.

    Steps with the same requests and the same frees are looked for first, then steps
    with the same requests, then those with requests and frees in the same order; these
    also where the former are but a few that are alike by chance. Step 0 and the last
    one are never hot: the program's start, and a step that may be cut off; nor are
    steps that ask for nothing.
    """
    whole = range(1, line.steps - 1)
    usual = [signature(line, step, Alike.REQUESTS) for step in whole]
    strict: HotSteps | None = None
    for alike in Alike:
        marks = usual
        if alike is not Alike.REQUESTS:
            marks = [signature(line, step, alike) for step in whole]
        found = _repeating(line, marks, alike)
        if found is None:
            continue
        if found.elastic:
            return found if strict is None or _longer(found, strict) else strict
        own = set(usual[found.begin - 1 : found.begin - 1 + found.period])
        if 2 * sum(mark in own for mark in usual) >= len(usual):
            return strict or found
        strict = strict or found
    return strict


def _longer(one: HotSteps, other: HotSteps) -> bool:
    return one.period * one.passes > other.period * other.passes


def _repeating(line: Timeline, marks: list[bytes], alike: Alike) -> HotSteps | None:
    """The longest run of steps, the first one's mark first, that repeats.

    Among periods that cover equally many steps, the shortest; among equally long
    runs, the first.
    """
    best: tuple[int, HotSteps] | None = None
    for period in range(1, min(MAX_PERIOD, len(marks) // 2) + 1):
        same = [a == b for a, b in zip(marks, marks[period:], strict=False)]
        begin, length = _longest_run(same)
        if length < period or not line.count(begin + 1, period):
            continue
        covered = length + period
        if best is None or covered > best[0]:
            exact, elastic = alike is not Alike.REQUESTS, alike is Alike.ORDER
            passes = covered // period
            best = covered, HotSteps(begin + 1, period, exact, elastic, passes)
    return None if best is None else best[1]


def _longest_run(flags: list[bool]) -> tuple[int, int]:
    """Begin and length of the first longest run of True."""
    best, begin, length = (0, 0), 0, 0
    for i, flag in enumerate(flags):
        if not flag:
            length = 0
            continue
        begin = i if length == 0 else begin
        length += 1
        if length > best[1]:
            best = begin, length
    return best


def signature(line: Timeline, step: int, alike: Alike) -> bytes:
    """What a step does, as a hash that is equal for steps of one kind.

    A free is told by how many requests came before it in its step, and by the
    request it ends: the step's own, or of the step before. Older ones do not count.
    """
    own = line.requests(step)
    if alike is Alike.ORDER:
        digest = hashlib.sha256(b"%d" % (own.stop - own.start))
    else:
        digest = hashlib.sha256(line.size[own].astype("<i8").tobytes())
    if alike is Alike.REQUESTS:
        return digest.digest()
    begin, end = line.span(step)
    candidates = np.arange(line.first[max(step - 1, 0)], own.stop, dtype=np.int64)
    ends = line.upper[candidates]
    freed = candidates[(ends >= begin) & (ends < end)]
    order = freed[np.argsort(line.upper[freed], kind="stable")]
    before = np.searchsorted(line.lower[own], line.upper[order], side="left")
    rows = np.stack([before, order - own.start], axis=1).astype("<i8")
    digest.update(rows.tobytes())
    return digest.digest()


def irregular(line: Timeline, hot: HotSteps) -> bool:
    """Whether steps come in another order than `hot` says, more than now and then.

    Then chance may have it that so many were alike in a row, and another run will have
    another order: batches of a few shapes, tasks by turns. Steps before the hot ones
    count where they come again; those that do not are the program's start.
    """
    marks = [signature(line, step, Alike.REQUESTS) for step in range(1, line.steps - 1)]
    before, after = marks[: hot.begin - 1], marks[hot.begin - 1 :]
    loop, due = after[: hot.period], 0
    for mark in after:
        due += mark == loop[due % len(loop)]
    often, later = Counter(before), set(after)
    again = sum(often[mark] > 1 or mark in later for mark in before)
    return RARE * (len(after) - due + again) > len(after) + again
