"""The memory of a recorded run over time, split by whether it outlives steps."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from memplan.arrays import BoolArray, Int64Array
from memplan.plotting.timeline import timeline
from memplan.trace import steps
from memplan.trace.persistent import outlives
from memplan.trace.steps import Timeline
from memplan.trace.trace import Action, Columns, Trace


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
    )


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
