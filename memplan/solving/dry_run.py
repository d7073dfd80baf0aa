"""A dry run of a recorded program under its plan: what torch would reserve of a GPU.

The loader's own arenas serve the recorded requests, and a model of torch's allocator
says what that takes.
"""

from __future__ import annotations

import numpy as np

from memplan.core.plan import Plan
from memplan.core.tables import replay_arrays
from memplan.trace.importers.snapshot_history import rounded
from memplan.trace.reserved import most_reserved
from memplan.trace.steps import step_marks
from memplan.trace.streams import one_stream
from memplan.trace.trace import Action, Trace

MOST_EVENTS = 10_000_000
NEARLY = 100  # the rules hold if they predict the recording to one part in so many
_REQUEST, _FREE, _STEP, _EMPTY = range(4)  # as the native code numbers them


def predicted_bytes(trace: Trace, plan: Plan) -> int:
    """The most bytes that torch would have reserved in the recorded run under `plan`.

    0 where that is not known: the recording is not whole, or has more than MOST_EVENTS
    events, or the allocator did not reserve what its rules say.
    """
    from memplan.native import _alloc

    events, recorded = trace.events, most_reserved(trace.events)
    whole = trace.info.complete and len(events) <= MOST_EVENTS
    if not whole or not recorded:
        return 0
    own = one_stream(trace).events
    stream = own.stream[own.action == Action.ALLOC][0]
    what = np.full(len(events), -1, dtype=np.int64)
    what[events.action == Action.ALLOC] = _REQUEST
    what[events.action == Action.FREE_COMPLETED] = _FREE
    marks = [int(mark) for mark in step_marks(plan.provenance.program)]
    what[(events.action == Action.STEP) & np.isin(events.mark, marks)] = _STEP
    # Segments go one after the other when the cache is emptied.
    given_back = events.action == Action.SEGMENT_FREE
    what[given_back & ~np.roll(given_back, 1)] = _EMPTY
    rows = np.flatnonzero(what >= 0)
    handles, numbers = np.unique(events.stream, return_inverse=True)
    numbers = np.where(handles == stream, 0, np.arange(1, len(handles) + 1))[numbers]
    arena = rounded(plan.arena_bytes)
    natively, planned = _alloc.dry_run(
        replay_arrays(plan).table(arena, arena, cuda=True),
        0 if plan.varies else recorded,
        *(
            np.ascontiguousarray(column[rows], dtype=np.int64)
            for column in (what, events.address.astype(np.int64), events.size, numbers)
        ),
    )
    return planned if abs(natively - recorded) <= recorded // NEARLY else 0
