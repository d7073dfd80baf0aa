"""The memory of a recorded run over time, split by whether it outlives steps."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from memplan.arrays import BoolArray, Int64Array
from memplan.plotting.timeline import timeline
from memplan.trace import steps
from memplan.trace.steps import Timeline
from memplan.trace.threads import steps_by_thread
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
    outlives = _outlive(line)
    if (threads := steps_by_thread(trace)) is not None:
        # Each block by the steps of the thread that made it; of no step, by its end.
        made = _made(threads.trace.events)
        number = np.cumsum(_made(events)) - 1  # of the allocation in each row
        outlives = line.freed == Timeline.NEVER
        outlives[number[threads.rows[made]]] = _outlive(steps.timeline(threads.trace))
    return timeline(
        times,
        _live(line, np.ones(len(line.size), dtype=bool)),
        time[marked],
        title or trace.info.program.script,
        persistent=_live(line, outlives) if line.steps > 1 else None,
    )


def _made(events: Columns) -> BoolArray:
    made: BoolArray = (events.action == Action.ALLOC) & (events.requested_size > 0)
    return made


def _outlive(line: Timeline) -> BoolArray:
    """Which blocks are freed after more than one step, or never.

    Of those that are never freed the last ones need not be persistent: the gradients of
    the last step, and what was made after it.
    """
    made = line.step_of(line.lower)
    never = line.freed == Timeline.NEVER
    kept = never & ((made < line.steps - 2) | (made == 0))
    outlive: BoolArray = kept | (~never & (line.step_of(line.freed) - made > 1))
    return outlive


def _live(line: Timeline, chosen: BoolArray) -> Int64Array:
    """Bytes of the chosen blocks alive after each tick, shape (ticks,)."""
    change = np.zeros(line.ticks, dtype=np.int64)
    np.add.at(change, line.lower[chosen], line.size[chosen])
    died = chosen & (line.freed != Timeline.NEVER)
    np.add.at(change, line.freed[died], -line.size[died])
    live: Int64Array = np.cumsum(change)
    return live
