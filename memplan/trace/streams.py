"""The streams of a CUDA trace, of which a plan is for one.

Memory is reused on a stream without waiting, since the stream runs in order; between
streams it is not. So every stream has its own packing problem, and its own arena.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memplan.trace.trace import Action, Trace

# The columns of a trace that planning looks at.
NEEDED = ("action", "mark", "address", "requested_size", "thread", "device", "stream")


def streams_of(trace: Trace) -> dict[int, int]:
    """Bytes allocated in all on each stream, by handle; the busiest stream first."""
    events = trace.events
    made = events.action == Action.ALLOC
    handles, which = np.unique(events.stream[made], return_inverse=True)
    total = np.zeros(len(handles), dtype=np.int64)
    np.add.at(total, which.reshape(-1), events.requested_size[made])
    order = np.argsort(-total, kind="stable")
    return {int(handles[i]): int(total[i]) for i in order}


def one_stream(trace: Trace) -> Trace:
    """The events of the default CUDA stream, or of the busiest one, and all step
    boundaries: an arena, and so a plan, belongs to one stream. Other streams are served
    outside it."""
    streams, events = streams_of(trace), trace.events
    if trace.info.device == "cpu" or len(streams) < 2:
        return trace
    stream = 0 if 0 in streams else next(iter(streams))
    rows = np.flatnonzero((events.stream == stream) | (events.action == Action.STEP))
    return replace(trace, events=events.take(rows.astype(np.int64)))
