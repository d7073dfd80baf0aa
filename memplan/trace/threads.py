"""Threads that make steps side by side: each one's sequence, on its own.

A pool that serves requests runs many small loops, not one whose steps are a jumble of
all. Which thread marks a step says whose it is: what the thread asks for from one of
its marks to the next. Threads that mark no steps (an operator's inner ones, autograd's)
belong to the loop of the one thread that does, and to none where several do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from memplan.arrays import Int64Array
from memplan.trace.match import UNMATCHED, pairs
from memplan.trace.steps import strongest_mark
from memplan.trace.trace import Action, Columns, Mark, Trace

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
    events = trace.events
    mark = strongest_mark(events)
    cuts = np.flatnonzero((events.action == Action.STEP) & (events.mark == mark))
    if mark is Mark.NONE or not _side_by_side(events, cuts):
        return None
    alloc, free = pairs(events)
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
    events = steps.trace.events
    alloc, free = pairs(events)
    freed = np.full(len(events), UNMATCHED, dtype=np.int64)
    freed[alloc] = free
    ends = freed[transient]
    transient, ends = transient[ends != UNMATCHED], ends[ends != UNMATCHED]
    moments = np.concatenate([steps.rows[transient], steps.rows[ends]])
    size = events.requested_size[transient]
    change = np.concatenate([size, -size])
    count = np.concatenate([np.ones_like(size), -np.ones_like(size)])
    thread = np.tile(steps.thread[transient], 2)
    order = np.argsort(moments, kind="stable")
    holding = np.zeros(len(order), dtype=np.int64)  # threads that begin to, or cease
    for one in np.unique(thread):
        mine = order[thread[order] == one]
        now = np.cumsum(count[mine])
        before = np.append(0, now[:-1])
        holding[mine] = (now > 0).astype(np.int64) - (before > 0)
    return Together(
        int(np.cumsum(holding[order]).max(initial=0)),
        int(np.cumsum(change[order]).max(initial=0)),
    )
