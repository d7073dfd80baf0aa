"""The memory of a recorded run over time, split by whether it outlives steps."""

from __future__ import annotations

from pathlib import PurePath

import numpy as np
from matplotlib.figure import Figure

from memplan.arrays import BoolArray, Float64Array, Int64Array
from memplan.plotting.timeline import Failure, timeline
from memplan.trace import steps
from memplan.trace.persistent import outlives
from memplan.trace.steps import Timeline
from memplan.trace.trace import Action, Columns, Trace
from memplan.trace.user_frames import first_of_user


def memory(trace: Trace, title: str = "") -> Figure:
    """The picture of a trace: live bytes over seconds, with its steps.

    Raises InputError if the trace holds no allocation.
    """
    line = steps.timeline(trace)
    events = trace.events
    counted = _made(events)
    counted |= events.action == Action.FREE_COMPLETED
    # Threads may read the clock out of turn by some nanoseconds.
    time = np.maximum.accumulate(events.time_ns) / 1e9
    times = time[counted]
    marked = (events.action == Action.STEP) & (events.mark == line.mark)
    return timeline(
        times,
        _live(line, np.ones(len(line.size), dtype=bool)),
        time[marked],
        title or trace.info.program.script,
        persistent=_live(line, outlives(trace)) if line.steps > 1 else None,
        failure=_failure(trace, time),
    )


def _failure(trace: Trace, time_s: Float64Array) -> Failure | None:
    """The last request that failed, and the line that asked."""
    events = trace.events
    rows = np.flatnonzero(events.action == Action.OOM)
    if not len(rows):
        return None
    row = int(rows[-1])
    frame = first_of_user(trace.stacks[int(events.stack[row])])
    site = f"{PurePath(frame.filename).name}:{frame.line} {frame.name}".rstrip()
    requested = int(events.requested_size[row])
    return Failure(float(time_s[row]), requested, site if frame.filename else "")


def _made(events: Columns) -> BoolArray:
    made: BoolArray = (events.action == Action.ALLOC) & (events.requested_size > 0)
    return made


def _live(line: Timeline, chosen: BoolArray) -> Int64Array:
    """Bytes of the chosen blocks alive after each tick, shape (ticks,)."""
    change = np.zeros(line.ticks, dtype=np.int64)
    np.add.at(change, line.lower[chosen], line.size[chosen])
    died = chosen & (line.freed != Timeline.NEVER)
    np.add.at(change, line.freed[died], -line.size[died])
    live: Int64Array = np.cumsum(change)
    return live
