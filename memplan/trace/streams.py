"""The streams of a CUDA trace, of which a plan is for one.

Memory is reused on a stream without waiting, since the stream runs in order; between
streams it is not. So every stream has its own packing problem, and its own arena.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memplan.errors import UsageError
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
