"""What `memplan solve` says of what a plan will bring."""

from __future__ import annotations

from memplan.cli import show
from memplan.core.plan import Plan
from memplan.solving.outlook import Outlook
from memplan.units import format_bytes

COVERED = 0.5  # of a trace's peak: a hot step that holds less of it is worth a word


def entries(found: Outlook | None) -> dict[str, object]:
    """Of the JSON result; none where nothing was recorded."""
    if found is None:
        return {}
    return {
        "outlook": {
            "most_live": found.most_live,
            "out_of_reach": found.out_of_reach,
            "persistent": found.persistent,
            "pays": found.pays,
            "peak_now": found.peak_now,
            "peak_planned": found.peak_planned,
            "peak_planned_least": found.peak_planned_least,
        }
    }


def rows(found: Outlook | None) -> list[tuple[str, str]]:
    """What the plan will bring, of the program as it was recorded."""
    if found is None or not found.peak_now:
        return []
    now, planned = format_bytes(found.peak_now), format_bytes(found.peak_planned)
    least = format_bytes(found.peak_planned_least)
    reach = format_bytes(found.out_of_reach)
    return [
        ("resident", f"{now} at its most, {least} to {planned} under the plan"),
        ("out of reach", f"{reach}, which no plan can change"),
    ]


def warn(plan: Plan, found: Outlook) -> None:
    """Say so where the plan is of little, or of no use."""
    held = plan.lower_bound * max(plan.lanes, 1)
    if not len(plan.problem):
        show.complaint(
            "the hot step asks for nothing that it frees: the plan serves none of its "
            "requests; mark the top of the loop with memplan.step() and record again"
        )
    elif not found.pays:
        show.complaint(
            f"the plan does not pay in memory: it saves {found.saved_most:.1%} of the "
            "peak at most; it may still save page faults, and time"
        )
    in_steps = found.most_live - found.persistent
    if len(plan.problem) and held < COVERED * in_steps:
        show.complaint(
            f"the plan is for {format_bytes(held)} of the {format_bytes(in_steps)} of "
            "passing blocks at the trace's peak: most of it lies outside the hot step; "
            "if that is the loop's, mark its top with memplan.step()"
        )
