"""A dry run of a recorded program under its plan: what torch would reserve of a GPU.

The loader's own arenas serve the recorded requests, and a model of torch's allocator
says what that takes.
"""

from __future__ import annotations

from memplan.core.plan import Plan
from memplan.core.tables import replay_arrays
from memplan.trace.importers.snapshot_history import rounded
from memplan.trace.modelled import event_columns, expandable_bytes
from memplan.trace.reserved import most_reserved
from memplan.trace.steps import step_marks
from memplan.trace.streams import one_stream
from memplan.trace.trace import Action, Trace


def forecast(trace: Trace, plan: Plan) -> tuple[int, int]:
    """The most bytes that torch would have reserved in the recorded run: under `plan`,
    and with expandable_segments instead. 0 where `expandable_bytes` is."""
    from memplan.native import _alloc

    if not (expandable := expandable_bytes(trace)):
        return 0, 0
    own = one_stream(trace).events
    stream = int(own.stream[own.action == Action.ALLOC][0])
    arena = rounded(plan.arena_bytes)
    planned = _alloc.dry_run(
        replay_arrays(plan).table(arena, arena, cuda=True),
        0 if plan.varies else most_reserved(trace.events),
        *event_columns(trace, step_marks(plan.provenance.program), stream),
    )
    return planned, expandable
