"""The memory of a recorded run over time, split by whether it outlives steps."""

from __future__ import annotations

from pathlib import PurePath

import numpy as np
from matplotlib.figure import Figure

from memplan.arrays import Float64Array
from memplan.plotting.timeline import Failure, timeline
from memplan.trace.lives import lives_of
from memplan.trace.sites import first_of_user
from memplan.trace.steps import outlives
from memplan.trace.trace import Action, Trace


def memory(trace: Trace, title: str = "") -> Figure:
    """The picture of a trace: live bytes over seconds, with its steps.

    Raises InputError if the trace holds no allocation.
    """
    lives = lives_of(trace)
    # Threads may read the clock out of turn by some nanoseconds.
    time = np.maximum.accumulate(trace.events.time_ns) / 1e9
    persistent = None
    if lives.steps > 1:
        kept = lives.live_of(np.where(outlives(lives), lives.size, 0))
        persistent = kept[lives.tick_row]
    return timeline(
        time[lives.tick_row],
        lives.live_bytes[lives.tick_row],
        time[lives.bounds],
        title or trace.info.program.script,
        persistent=persistent,
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
