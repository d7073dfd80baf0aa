"""Which blocks outlive steps, and which are persistent: no plan holds them."""

from __future__ import annotations

import numpy as np

from memplan.arrays import BoolArray, Int64Array
from memplan.trace.match import lives
from memplan.trace.steps import HotSteps, Timeline, timeline
from memplan.trace.threads import ThreadSteps, steps_by_thread
from memplan.trace.trace import Action, Trace


def outlives(trace: Trace) -> BoolArray:
    """Which allocations of `trace` outlive steps, in the order made; shape (m,).

    Where threads make steps side by side, each block goes by the steps of the thread
    that made it. One of no step outlives them if it is there while one of the threads
    makes two, or when the last step of all begins.
    """
    threads = steps_by_thread(trace)
    if threads is None:
        return outlive_steps(timeline(trace))
    row, end = lives(trace.events)
    cuts = _cuts(threads)
    outlive: BoolArray = end > threads.rows[cuts].max()
    for one in np.unique(threads.thread):
        rows = threads.rows[threads.thread == one]
        begins = threads.rows[cuts[threads.thread[cuts] == one]]
        edges = np.append(begins, rows.max() + 1)
        outlive |= np.searchsorted(edges, end) - np.searchsorted(edges, row) > 2
    outlive[np.searchsorted(row, threads.rows[_made(threads)])] = _by_thread(threads)
    return outlive


def outlive_steps(line: Timeline) -> BoolArray:
    """Which blocks are freed after more than one step, or never; shape (m,).

    Of those that are never freed the last ones need not be persistent: the gradients of
    the last step, and what was made after it.
    """
    return _outlive(line, line.steps - 1)


def persistent_bytes(trace: Trace, threads: ThreadSteps, hot: HotSteps) -> int:
    """Bytes alive from the begin of the hot step to the end of the one after it.

    Not those of blocks that another thread's steps hold, and that do not outlive them.
    """
    row, end = lives(trace.events)
    line = timeline(threads.trace)
    cuts = _cuts(threads)
    begin = cuts[hot.begin - 1]
    last = hot.begin + 1  # two steps, which two threads may have made
    after = cuts[last] if last < line.steps - 1 else len(threads.rows)
    held = (row < threads.rows[begin]) & (end > threads.rows[begin:after].max())
    passing = threads.rows[_made(threads)][~_by_thread(threads)]
    held[np.searchsorted(row, passing)] = False
    return int(trace.events.requested_size[row[held]].sum())


def _by_thread(threads: ThreadSteps) -> BoolArray:
    """Which blocks outlive the steps of their own thread, as `_made` has them."""
    thread = threads.thread
    last = np.searchsorted(thread[_cuts(threads)], thread[_made(threads)], "right")
    return _outlive(timeline(threads.trace), last.astype(np.int64))


def _outlive(line: Timeline, last: Int64Array | int) -> BoolArray:
    """last: the last step, or of each block the last one of its thread."""
    made = line.step_of(line.lower)
    never = line.freed == Timeline.NEVER
    kept = never & ((made < last - 1) | (made == 0))
    outlive: BoolArray = kept | (~never & (line.step_of(line.freed) - made > 1))
    return outlive


def _made(threads: ThreadSteps) -> Int64Array:
    """The rows of the threads' allocations, of their own trace."""
    return lives(threads.trace.events)[0]


def _cuts(threads: ThreadSteps) -> Int64Array:
    """The rows that begin steps 1, 2, ..., of their own trace."""
    action = threads.trace.events.action
    return np.flatnonzero(action == Action.STEP).astype(np.int64)
