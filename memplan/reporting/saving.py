"""What a plan would save: the peak now, and with a best-fit plan and all outside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memplan.errors import NoPlanError, UsageError
from memplan.solving.capacity import room_for
from memplan.solving.outlook import PAYS, default_heaps, outlook
from memplan.solving.solve import solve
from memplan.trace.reserved import most_reserved
from memplan.trace.trace import Trace

MOST_EVENTS = 100_000  # of a trace that is planned just to tell


@dataclass(frozen=True)
class Saving:
    """Bytes. now: at most, as recorded, of what `of` says: "resident", measured of a
    process; "reserved" by CUDA's allocator; or the "heaps" that the C library's
    allocator would come to, where nothing was measured; now_least: of a process, with
    heaps that waste as little as can be. planned, planned_least: of the same under a
    plan, at most and at least, with all that lies outside it.
    """

    of: Literal["resident", "reserved", "heaps"]
    now: int
    now_least: int
    planned: int
    planned_least: int

    @property
    def least(self) -> int:
        """Bytes that are saved where heaps waste as little as they can."""
        return max(self.now_least - self.planned, 0)

    @property
    def share(self) -> float:
        """The part of now that is saved at most; 0.0 where a plan adds to it."""
        return max(1 - self.planned_least / self.now, 0.0) if self.now else 0.0

    @property
    def pays(self) -> bool:
        """Whether that may be worth while."""
        return self.share >= PAYS

    @property
    def pays_surely(self) -> bool:
        """Whether as much is saved where heaps waste as little as they can."""
        return self.now_least - self.planned >= PAYS * self.now_least


def saving(trace: Trace) -> Saving | None:
    """What a best-fit plan of the hot step would save.

    None where that is not known: no step repeats that frees what it asks for, nothing
    is reserved on CUDA, or the trace has more than MOST_EVENTS events, so that telling
    would take its time.
    """
    if not 0 < len(trace) <= MOST_EVENTS:
        return None
    try:
        plan = solve(trace, "bestfit")
    except (NoPlanError, UsageError):
        return None
    if not len(plan.problem):
        return None
    if (found := outlook(trace, plan)) is not None and found.peak_now:
        planned, least = found.peak_planned, found.peak_planned_least
        now, now_least = found.peak_now, found.peak_now_least
        return Saving("resident", now, now_least, planned, min(planned, least))
    predicted = plan.provenance.recorded_device.planned_bytes
    planned = predicted or room_for(trace, 0, "live").needed(plan)
    if trace.info.device == "cpu":
        now = default_heaps(trace)[0]
        return Saving("heaps", now, now, planned, planned)
    now = most_reserved(trace.events)
    return Saving("reserved", now, now, planned, planned) if now else None
