"""Whose memory: of one CUDA stream, of threads side by side, of steps or beyond them.

A plan is for one CUDA stream. Memory is reused on a stream without waiting, since the
stream runs in order; between streams it is not. So every stream has its own packing
problem, and its own arena.

A pool that serves requests runs many small loops, each on a thread of its own. The
thread that marks a step owns what it asks for from one of its marks to the next.
Threads that mark no steps (an operator's inner ones, autograd's) belong to the loop of
the one thread that does, and to none where several do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from memplan.arrays import BoolArray, Int64Array
from memplan.errors import UsageError
from memplan.levels import levels
from memplan.trace.lives import NEVER, Lives, lives_of
from memplan.trace.steps import HotSteps
from memplan.trace.trace import Action, Columns, Mark, Trace

# The columns of a trace that planning looks at.
NEEDED = ("action", "mark", "address", "requested_size", "thread", "device", "stream")
SIDE_BY_SIDE = 10  # one step in so many, and two, must meet another thread's


@dataclass(frozen=True, eq=False)
class ThreadSteps:
    """The steps of several threads, one thread after the other.

    trace: the threads' events so ordered, under one thread id; those that belong to no
    step are left out. rows: where each of its events stood, shape (m,). thread: which
    of the threads it belongs to, from 0, shape (m,).
    """

    trace: Trace
    rows: Int64Array
    thread: Int64Array


@dataclass(frozen=True)
class Together:
    """What threads hold at one time: at most so many of them anything, and so many
    bytes of it in all."""

    threads: int
    most_bytes: int


def steps_by_thread(trace: Trace, first: int = 0) -> ThreadSteps | None:
    """The steps of each thread of `trace`; None unless threads make some side by side.

    first: which thread's steps come first, counted in the order in which threads began;
        the others follow in that order, around its end.

    A free belongs to the thread that asked for the block.
    """
    events, lives = trace.events, lives_of(trace)
    cuts = lives.bounds
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
    return ThreadSteps(replace(trace, events=chosen), rows, rank)


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


def together(steps: ThreadSteps, transient: Int64Array) -> Together:
    """What the threads hold at one time of the blocks that `transient` names.

    transient: rows of `steps.trace` that ask for them, ascending, shape (k,).
    """
    lives = lives_of(steps.trace)
    chosen = np.searchsorted(lives.row, transient)
    chosen = chosen[lives.freed[chosen] != NEVER]
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


def outlives(trace: Trace) -> BoolArray:
    """Which allocations of `trace` outlive steps, in the order made; shape (m,).

    Where threads make steps side by side, each block goes by the steps of the thread
    that made it. One of no step outlives them if it is there while one of the threads
    makes two, or when the last step of all begins.
    """
    threads = steps_by_thread(trace)
    if threads is None:
        return outlive_steps(lives_of(trace))
    row, end = lives_of(trace).row, lives_of(trace).end
    cuts = lives_of(threads.trace).bounds
    outlive: BoolArray = end > threads.rows[cuts].max()
    for one in np.unique(threads.thread):
        rows = threads.rows[threads.thread == one]
        begins = threads.rows[cuts[threads.thread[cuts] == one]]
        edges = np.append(begins, rows.max() + 1)
        outlive |= np.searchsorted(edges, end) - np.searchsorted(edges, row) > 2
    made = lives_of(threads.trace).row
    outlive[np.searchsorted(row, threads.rows[made])] = _by_thread(threads)
    return outlive


def outlive_steps(lives: Lives) -> BoolArray:
    """Which blocks are freed after more than one step, or never; shape (m,).

    Of those that are never freed the last ones need not be persistent: the gradients of
    the last step, and what was made after it.
    """
    return _outlive(lives, lives.steps - 1)


def persistent_bytes(trace: Trace, threads: ThreadSteps, hot: HotSteps) -> int:
    """Bytes alive from the begin of the hot step to the end of the one after it.

    Not those of blocks that another thread's steps hold, and that do not outlive them.
    """
    lives, own = lives_of(trace), lives_of(threads.trace)
    cuts = own.bounds
    begin = cuts[hot.begin - 1]
    last = hot.begin + 1  # two steps, which two threads may have made
    after = cuts[last] if last < own.steps - 1 else len(threads.rows)
    until = threads.rows[begin:after].max()
    held = (lives.row < threads.rows[begin]) & (lives.end > until)
    passing = threads.rows[own.row][~_by_thread(threads)]
    held[np.searchsorted(lives.row, passing)] = False
    return int(lives.size[held].sum())


def _by_thread(threads: ThreadSteps) -> BoolArray:
    """Which blocks outlive the steps of their own thread, in the order made there."""
    lives, thread = lives_of(threads.trace), threads.thread
    last = np.searchsorted(thread[lives.bounds], thread[lives.row], "right")
    return _outlive(lives, last.astype(np.int64))


def _outlive(lives: Lives, last: Int64Array | int) -> BoolArray:
    """last: the last step, or of each block the last one of its thread."""
    made, never = lives.step, lives.freed == NEVER
    kept = never & ((made < last - 1) | (made == 0))
    outlive: BoolArray = kept | (~never & (lives.step_of(lives.freed) - made > 1))
    return outlive


def streams_of(trace: Trace) -> dict[int, int]:
    """Bytes allocated in all on each stream, by handle; the busiest stream first."""
    events = trace.events
    made = events.action == Action.ALLOC
    handles, which = np.unique(events.stream[made], return_inverse=True)
    total = np.zeros(len(handles), dtype=np.int64)
    np.add.at(total, which.reshape(-1), events.requested_size[made])
    order = np.argsort(-total, kind="stable")
    return {int(handles[i]): int(total[i]) for i in order}


def on_stream(trace: Trace, stream: int) -> Trace:
    """The events of one stream (its handle), and all step boundaries.

    Raises UsageError if the trace has no allocation on that stream.
    """
    found = streams_of(trace)
    if stream not in found:
        listed = ", ".join(map(str, found)) or "none"
        raise UsageError(f"stream {stream}: the trace has streams {listed}")
    events = trace.events
    rows = np.flatnonzero((events.stream == stream) | (events.action == Action.STEP))
    return replace(trace, events=events.take(rows.astype(np.int64)))


def one_stream(trace: Trace) -> Trace:
    """The events of the default CUDA stream, or of the busiest one: an arena, and so a
    plan, belongs to one stream. Other streams are served outside it."""
    streams = streams_of(trace)
    if trace.info.device == "cpu" or len(streams) < 2:
        return trace
    return on_stream(trace, 0 if 0 in streams else next(iter(streams)))
