"""What torch would reserve of a GPU for recorded requests: models of its allocator."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from memplan.arrays import Int64Array
from memplan.trace.reserved import most_reserved
from memplan.trace.trace import Action, Mark, Trace

EXPANDABLE = "expandable_segments:True"  # of PYTORCH_CUDA_ALLOC_CONF
MOST_EVENTS = 10_000_000
MOST_BYTES = 1 << 48  # of a block
NEARLY = 100  # the rules hold if they predict the recording to one part in so many
_REQUEST, _FREE, _STEP, _EMPTY = range(4)  # as the native code numbers them


def event_columns(
    trace: Trace, marks: Collection[Mark] = (), stream: int | None = None
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """What `_alloc.modelled` and `_alloc.dry_run` take: columns of requests, frees,
    steps, and emptied caches. marks: that begin a step; stream: which has a plan."""
    events = trace.events
    what = np.full(len(events), -1, dtype=np.int64)
    what[events.action == Action.ALLOC] = _REQUEST
    what[events.action == Action.FREE_COMPLETED] = _FREE
    steps = np.isin(events.mark, [int(mark) for mark in marks])
    what[(events.action == Action.STEP) & steps] = _STEP
    # Segments go one after the other when the cache is emptied. They go for other
    # reasons, too; the models are then checked against what was reserved.
    given_back = events.action == Action.SEGMENT_FREE
    given_back[1:] &= ~given_back[:-1].copy()
    what[given_back] = _EMPTY
    rows = np.flatnonzero(what >= 0)
    handles, numbers = np.unique(events.stream, return_inverse=True)
    numbers = np.where(handles == stream, 0, np.arange(1, len(handles) + 1))[numbers]
    columns = what, events.address.astype(np.int64), events.size, numbers
    one, two, three, four = (
        np.ascontiguousarray(column[rows], dtype=np.int64) for column in columns
    )
    return one, two, three, four


def expandable_bytes(trace: Trace) -> int:
    """The most bytes that torch would have reserved with expandable_segments.

    0 where that is not known: the recording is not whole, or has more than MOST_EVENTS
    events, or the allocator did not reserve what its rules say.
    """
    from memplan.native import _alloc

    recorded = most_reserved(trace.events)
    if not recorded or not trace.info.complete or len(trace.events) > MOST_EVENTS:
        return 0
    if int(trace.events.size.max()) > MOST_BYTES:
        return 0
    natively, expandable = _alloc.modelled(*event_columns(trace))
    return expandable if abs(natively - recorded) <= recorded // NEARLY else 0
