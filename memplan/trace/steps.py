"""Where a program's steps begin, and which of them repeat.

Boundaries come from the strongest kind of mark in the trace. A step is *hot* when
the one after it makes the same requests in the same order (profile-guided memory
optimization, section 1); programs that alternate between a few kinds of steps are
hot with a longer period. Failing that, steps that do the same with other sizes are
hot, and *elastic*: sentences of any length, say (section 4.3).

A loop without marks shows as well: the sizes it asks for repeat, again and again, and
the largest block that is requested repeatedly is among them. A pipeline may call one
part of itself twenty times within a single forward call.

A pool that serves requests runs many small loops, each on a thread of its own. The
thread that marks a step owns what it asks for from one of its marks to the next.
Threads that mark no steps (an operator's inner ones, autograd's) belong to the loop of
the one thread that does, and to none where several do.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Int64Array
from memplan.core.plan import Program
from memplan.levels import levels
from memplan.trace.lives import NEVER, Lives
from memplan.trace.trace import Action, Columns, Mark

_MARKS = {mark.name.lower(): mark for mark in Mark}
MAX_PERIOD = 8
RARE = 8  # one step in so many may be another than is due
LEAST_PASSES = 3
MOST_PERIODS = 64  # candidates that are tried
LEAST_PART = 8  # one part in so many of the largest block must be in the loop
_STRIDES = 16  # of the largest block: so many may be in one pass
SIDE_BY_SIDE = 10  # one step in so many, and two, must meet another thread's


@dataclass(frozen=True)
class HotSteps:
    """Steps that repeat: `period` steps from `begin` on, and again right after.

    exact: the frees repeat as well as the requests, not the requests alone.
    elastic: the order of requests and frees repeats, the sizes do not.
    passes: how often the period comes, one after the other.
    requests: of steps 1, 2, ... but the last a hash, equal for equal requests.
    """

    begin: int
    period: int
    exact: bool
    elastic: bool = False
    passes: int = 1
    requests: tuple[bytes, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, eq=False)
class ThreadSteps:
    """The steps of several threads, one thread after the other.

    whole: what all threads allocated. lives: the same of the events so ordered, as if
        one thread had caused them; those that belong to no step are left out.
    rows: where each of these events stood, shape (m,). thread: which of the threads it
        belongs to, from 0, shape (m,).
    """

    whole: Lives
    lives: Lives
    rows: Int64Array
    thread: Int64Array


@dataclass(frozen=True)
class Together:
    """What threads hold at one time: at most so many of them anything, and so many
    bytes of it in all."""

    threads: int
    most_bytes: int


@dataclass(frozen=True, eq=False)
class Found:
    """The steps of a trace that repeat, and how they were found.

    together, persistent_bytes: where threads make steps side by side. unmarked: no mark
    tells of them. irregular: they come in no order that another run would repeat.
    """

    lives: Lives
    hot: HotSteps
    together: Together | None = None
    persistent_bytes: int = 0
    unmarked: bool = False
    irregular: bool = False


class Alike(enum.Enum):
    """In what steps must agree to be of one kind."""

    ALL = enum.auto()  # requests, and when they are freed
    REQUESTS = enum.auto()
    ORDER = enum.auto()  # of requests and frees, whatever their sizes


def find_steps(lives: Lives) -> Found | None:
    """The steps that repeat, or None.

    On the CPU, where a loader follows what no mark tells of: of threads that make steps
    side by side, the thread with the hot steps comes first, as kinds are what follows
    them; and failing all marks, the passes of a loop.
    """
    if lives.on_cpu and (threads := steps_by_thread(lives)) is not None:
        return _of_threads(threads)
    hot = find_hot(lives)
    if hot is not None:
        return Found(lives, hot, irregular=not lives.on_cpu and _irregular(hot))
    cut = unmarked_steps(lives) if lives.on_cpu else None
    if cut is None or (hot := find_hot(cut)) is None:
        return None
    return Found(cut, hot, unmarked=True)


def _of_threads(threads: ThreadSteps) -> Found | None:
    hot = find_hot(threads.lives)
    if hot is not None:
        row = threads.lives.row[threads.lives.first[hot.begin]]
        first = int(threads.thread[row])
        threads = steps_by_thread(threads.whole, first) or threads
        hot = find_hot(threads.lives)
    if hot is None:
        return None
    together, persistent = _together(threads), _persistent_bytes(threads, hot)
    return Found(threads.lives, hot, together, persistent)


def find_hot(lives: Lives) -> HotSteps | None:
    """The steps that repeat longest, or None.

    Steps with the same requests and the same frees are looked for first, then steps
    with the same requests, then those with requests and frees in the same order; these
    also where the former are but a few that are alike by chance. Step 0 and the last
    one are never hot: the program's start, and a step that may be cut off; nor are
    steps that ask for nothing.
    """
    whole = range(1, lives.steps - 1)
    usual = [signature(lives, step, Alike.REQUESTS) for step in whole]
    strict: HotSteps | None = None
    for alike in Alike:
        marks = usual
        if alike is not Alike.REQUESTS:
            marks = [signature(lives, step, alike) for step in whole]
        found = _repeating(lives, marks, alike)
        if found is None:
            continue
        found = replace(found, requests=tuple(usual))
        if found.elastic:
            most = 0 if strict is None else strict.period * strict.passes
            return found if found.period * found.passes > most else strict
        own = set(usual[found.begin - 1 : found.begin - 1 + found.period])
        if 2 * sum(mark in own for mark in usual) >= len(usual):
            return strict or found
        strict = strict or found
    return strict


def _repeating(lives: Lives, marks: list[bytes], alike: Alike) -> HotSteps | None:
    """The longest run of steps, the first one's mark first, that repeats.

    Among periods that cover equally many steps, the shortest; among equally long
    runs, the first.
    """
    best: tuple[int, HotSteps] | None = None
    for period in range(1, min(MAX_PERIOD, len(marks) // 2) + 1):
        same = [a == b for a, b in zip(marks, marks[period:], strict=False)]
        begin, length = _longest_run(same)
        asked = lives.first[begin + 1 + period] > lives.first[begin + 1]
        if length < period or not asked:
            continue
        covered = length + period
        if best is None or covered > best[0]:
            exact, elastic = alike is not Alike.REQUESTS, alike is Alike.ORDER
            passes = covered // period
            best = covered, HotSteps(begin + 1, period, exact, elastic, passes)
    return None if best is None else best[1]


def _longest_run(flags: npt.ArrayLike) -> tuple[int, int]:
    """Begin and length of the first longest run of True; (0, 0) if all are False."""
    ones = np.asarray(flags, dtype=np.int8)
    edges = np.flatnonzero(np.diff(ones, prepend=0, append=0))
    begins, lengths = edges[::2], edges[1::2] - edges[::2]
    if not len(begins):
        return 0, 0
    longest = np.argmax(lengths)
    return int(begins[longest]), int(lengths[longest])


def signature(lives: Lives, step: int, alike: Alike) -> bytes:
    """What a step does, as a hash that is equal for steps of one kind.

    A free is told by how many requests came before it in its step, and by the
    request it ends: the step's own, or of the step before. Older ones do not count.
    """
    first, stop = lives.first[step : step + 2].tolist()
    if alike is Alike.ORDER:
        digest = hashlib.sha256(b"%d" % (stop - first))
    else:
        digest = hashlib.sha256(lives.size[first:stop].astype("<i8").tobytes())
    if alike is Alike.REQUESTS:
        return digest.digest()
    begin, end = lives.begins[step : step + 2].tolist()
    candidates = np.arange(lives.first[max(step - 1, 0)], stop, dtype=np.int64)
    ends = lives.upper[candidates]
    freed = candidates[(ends >= begin) & (ends < end)]
    order = freed[np.argsort(lives.upper[freed], kind="stable")]
    before = np.searchsorted(lives.lower[first:stop], lives.upper[order])
    rows = np.stack([before, order - first], axis=1).astype("<i8")
    digest.update(rows.tobytes())
    return digest.digest()


def _irregular(hot: HotSteps) -> bool:
    """Whether steps come in another order than `hot` says, more than now and then, or
    in all sizes.

    Then chance may have it that so many were alike in a row, and another run will have
    another order: batches of a few shapes, tasks by turns. Steps before the hot ones
    count where they come again; those that do not are the program's start. Those right
    before the hot ones that ask for what is due there are of the loop, although they
    free in another order.
    """
    begin, loop = hot.begin - 1, hot.requests[hot.begin - 1 :][: hot.period]
    while begin and hot.requests[begin - 1] == loop[(begin - hot.begin) % len(loop)]:
        begin -= 1
    before, after = hot.requests[:begin], hot.requests[hot.begin - 1 :]
    due = 0
    for mark in after:
        due += mark == loop[due % len(loop)]
    often, later = Counter(before), set(after)
    again = sum(often[mark] > 1 or mark in later for mark in before)
    return hot.elastic or RARE * (len(after) - due + again) > len(after) + again


def unmarked_steps(lives: Lives) -> Lives | None:
    """`lives`, cut where each pass of its longest loop begins; None if there is none.

    The loop repeats at least LEAST_PASSES times with equal sizes, and the largest block
    that comes so often, and is freed, is in it; one that is small beside the largest
    of all is not worth a plan. Its passes begin where least is alive.
    """
    found = _longest_loop(lives)
    if found is None:
        return None
    begin, period, count = found
    first = begin + _quietest(lives, begin + period, period)
    first -= period if first - period >= begin else 0
    passes = (begin + count - first) // period
    if passes < LEAST_PASSES:
        return None
    cuts = first + period * np.arange(passes + 1, dtype=np.int64)
    return lives.cut(cuts[cuts < len(lives)])


def _longest_loop(lives: Lives) -> tuple[int, int, int] | None:
    """First request, requests a pass, and requests in all; among loops that cover
    nearly as many requests the one with the shortest pass."""
    size = lives.size
    freed = size[lives.upper != NEVER]
    kinds, counts = np.unique(freed, return_counts=True)
    often = kinds[counts >= LEAST_PASSES]
    if not len(often) or often[-1] * LEAST_PART < kinds[-1]:
        return None
    places = np.flatnonzero(size == often[-1])
    best: tuple[int, int, int] | None = None
    for period in _periods(places):
        same = size[period:] == size[:-period]
        begin, length = _longest_run(same)
        inside = np.searchsorted(places, [begin, begin + length + period])
        if length + period < LEAST_PASSES * period or inside[0] == inside[1]:
            continue
        # A longer pass must be worth it.
        if best is None or length + period > best[2] + best[2] // 8:
            best = begin, period, length + period
    return best


def _periods(places: Int64Array) -> list[int]:
    """Distances between requests for the largest block, ascending."""
    found: set[int] = set()
    for stride in range(1, min(_STRIDES, len(places) - 1) + 1):
        apart, often = np.unique(places[stride:] - places[:-stride], return_counts=True)
        found.update(apart[np.argsort(-often, kind="stable")][:4].tolist())
    return sorted(found)[:MOST_PERIODS]


def _quietest(lives: Lives, begin: int, period: int) -> int:
    """How far into the pass from request `begin` on the fewest bytes are alive."""
    rows = np.arange(begin, begin + period)
    # Before the request, not after it.
    return int(np.argmin(lives.alive[lives.lower[rows]] - lives.size[rows]))


def steps_by_thread(lives: Lives, first: int = 0) -> ThreadSteps | None:
    """The steps of each thread; None unless threads make some side by side.

    first: which thread's steps come first, counted in the order in which threads began;
        the others follow in that order, around its end.

    A free belongs to the thread that asked for the block.
    """
    events, cuts = lives.events, lives.bounds
    if lives.mark is Mark.NONE or not _side_by_side(events, cuts):
        return None
    alloc, free = lives.pairs
    owner = events.thread.astype(np.int64)
    kept = np.zeros(len(events), dtype=np.bool_)
    made = events.action == Action.ALLOC
    kept[made] = True
    kept[cuts] = True
    kept[free] = True
    threads, earliest = np.unique(owner[cuts], return_index=True)
    begin = cuts[earliest]
    owner[free] = owner[alloc]
    number = np.searchsorted(threads, owner)
    known = threads[np.minimum(number, len(threads) - 1)] == owner
    rows = np.arange(len(events))
    born = rows.copy()
    born[free] = alloc
    kept &= known
    kept[kept] &= born[kept] >= begin[number[kept]]
    rows = rows[kept]
    place = (np.argsort(np.argsort(begin)) - first) % len(threads)
    rank = place[number[kept]]
    order = np.argsort(rank, kind="stable")
    rows, rank = rows[order], rank[order]
    chosen = events.take(rows)
    chosen = replace(chosen, thread=np.zeros_like(chosen.thread))
    return ThreadSteps(lives, lives.of_events(chosen), rows, rank)


def _side_by_side(events: Columns, cuts: Int64Array) -> bool:
    """Whether enough steps, begun at rows `cuts`, begin while another asks for more."""
    thread = events.thread[cuts]
    if not len(cuts) or (thread == thread[0]).all():
        return False
    made = np.flatnonzero(events.action == Action.ALLOC)
    met = 0
    for one in np.unique(thread):
        own, others = cuts[thread == one], cuts[thread != one]
        asked = made[events.thread[made] == one]
        ends = np.append(own[1:], len(events))
        last = np.searchsorted(asked, ends) - 1
        until = np.where(last >= 0, asked[np.maximum(last, 0)], 0)
        next_other = np.append(others, len(events))[np.searchsorted(others, own)]
        met += int((next_other < until).sum())
    return met >= 2 and met * SIDE_BY_SIDE >= len(cuts)


def _together(steps: ThreadSteps) -> Together:
    """What the threads hold at one time of the transient blocks."""
    lives = steps.lives
    chosen = np.flatnonzero(lives.transient & (lives.freed != NEVER))
    begin, end = steps.rows[lives.row[chosen]], steps.rows[lives.end[chosen]]
    thread = steps.thread[lives.row[chosen]]
    busy = [np.empty((2, 0), dtype=np.int64)]  # when each thread holds anything
    for one in np.unique(thread):
        own = thread == one
        moments, count = levels(begin[own], end[own], np.ones_like(begin[own]))
        edges = np.flatnonzero(np.diff(count > 0, prepend=False))
        busy.append(moments[edges].reshape(-1, 2).T)
    first, last = np.concatenate(busy, axis=1)
    return Together(
        int(levels(first, last, np.ones_like(first))[1].max(initial=0)),
        int(levels(begin, end, lives.size[chosen])[1].max(initial=0)),
    )


def _persistent_bytes(threads: ThreadSteps, hot: HotSteps) -> int:
    """Bytes alive from the begin of the hot step to the end of the one after it.

    Not those of blocks that another thread's steps hold, and that do not outlive them.
    """
    lives, own = threads.whole, threads.lives
    cuts = own.bounds
    begin = cuts[hot.begin - 1]
    last = hot.begin + 1  # two steps, which two threads may have made
    after = cuts[last] if last < own.steps - 1 else len(threads.rows)
    until = threads.rows[begin:after].max()
    held = (lives.row < threads.rows[begin]) & (lives.end > until)
    passing = threads.rows[own.row][~_by_thread(threads)]
    held[np.searchsorted(lives.row, passing)] = False
    return int(lives.size[held].sum())


def outlives(lives: Lives) -> BoolArray:
    """Which allocations outlive steps, in the order made; shape (n,).

    Where threads make steps side by side, each block goes by the steps of the thread
    that made it. One of no step outlives them if it is there while one of the threads
    makes two, or when the last step of all begins.
    """
    threads = steps_by_thread(lives)
    if threads is None:
        return outlive_steps(lives)
    row, end = lives.row, lives.end
    cuts = threads.lives.bounds
    outlive: BoolArray = end > threads.rows[cuts].max()
    for one in np.unique(threads.thread):
        rows = threads.rows[threads.thread == one]
        begins = threads.rows[cuts[threads.thread[cuts] == one]]
        edges = np.append(begins, rows.max() + 1)
        outlive |= np.searchsorted(edges, end) - np.searchsorted(edges, row) > 2
    made = threads.rows[threads.lives.row]
    outlive[np.searchsorted(row, made)] = _by_thread(threads)
    return outlive


def outlive_steps(lives: Lives) -> BoolArray:
    """Which blocks are freed after more than one step, or never; shape (m,).

    Of those that are never freed the last ones need not be persistent: the gradients of
    the last step, and what was made after it.
    """
    return _outlive(lives, lives.steps - 1)


def _by_thread(threads: ThreadSteps) -> BoolArray:
    """Which blocks outlive the steps of their own thread, in the order made there."""
    lives, thread = threads.lives, threads.thread
    last = np.searchsorted(thread[lives.bounds], thread[lives.row], "right")
    return _outlive(lives, last.astype(np.int64))


def _outlive(lives: Lives, last: Int64Array | int) -> BoolArray:
    """last: the last step, or of each block the last one of its thread."""
    made, never = lives.step, lives.freed == NEVER
    kept = never & ((made < last - 1) | (made == 0))
    outlive: BoolArray = kept | (~never & (lives.freed_step - made > 1))
    return outlive


def step_marks(program: Program) -> tuple[Mark, ...]:
    """What ends a step of the recorded program; nothing where none was marked."""
    mark = _MARKS.get(program.marks, Mark.NONE)
    return () if mark is Mark.NONE else (mark,)
