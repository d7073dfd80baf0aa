"""What `memplan solve --capacity` says: what was compared, and what was left out."""

from __future__ import annotations

from collections.abc import Mapping

from memplan.cli import show
from memplan.core.plan import Plan
from memplan.errors import InfeasibleError, NoPlanError
from memplan.solving.capacity import Room
from memplan.units import format_bytes

_LEFT_OUT = {
    "arena": "all that is not in the plan",
    "live": "the rest of the process: libraries, kernels' workspaces, fragmentation",
    "process": "nothing that the recording measured",
}


def entries(room: Room) -> dict[str, object]:
    """Of the JSON result: what was compared."""
    return {
        "capacity": room.capacity,
        "capacity_of": room.of,
        "outside_bytes": room.outside,
    }


def no_plan_entries(
    error: NoPlanError, method: str, compared: Mapping[str, object], seconds: float
) -> dict[str, object]:
    """The JSON result where it does not fit, or that is not known.

    compared: with what, as `entries` has it.
    """
    return {
        "schema": "memplan.solve-result",
        "version": 1,
        "method": method,
        "lower_bound": error.lower_bound,
        "peak": error.peak,
        "status": "infeasible" if isinstance(error, InfeasibleError) else "unknown",
        "seconds": seconds,
        "plan": None,
        **compared,
    }


def rows(room: Room | None, plan: Plan) -> list[tuple[str, str]]:
    """What takes up how much of the capacity, and what is not counted."""
    if room is None:
        return []
    parts = [
        (plan.arena_bytes, "planned arena"),
        (room.outliving, "outlives its steps"),
        (room.other_streams, "on other streams"),
        (room.beyond, "of the process beside its tensors"),
    ]
    needed, total = room.needed(plan), sum(size for size, _ in parts)
    named = [f"{format_bytes(size)} {what}" for size, what in parts if size]
    if needed > total:  # in the warm-up, or at the end
        named = [f"{format_bytes(room.live)} live at once in the recording"]
        named += [f"{format_bytes(size)} {what}" for size, what in parts[3:] if size]
    fits = f"{format_bytes(needed)} of {format_bytes(room.capacity)}: it fits"
    return [
        ("capacity", fits),
        ("counted", ", ".join(named) or "nothing"),
        ("not counted", _LEFT_OUT[room.of]),
        *([] if room.whole else [("", "what the recording lacks: it is not whole")]),
    ]


def tell_unwritten() -> None:
    """That there is no plan's file, and how to get one."""
    show.line("  no plan was written; -o FILE writes it")
