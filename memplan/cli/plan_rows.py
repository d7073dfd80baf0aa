"""Rows about a plan, in the words of more than one command."""

from __future__ import annotations

from memplan.core.plan import Plan
from memplan.units import format_bytes


def by_lifespan(plan: Plan) -> list[tuple[str, str]]:
    """The arena that is another than its offsets reach; no row where there is none."""
    if not plan.lifespan_bytes:
        return []
    arena = format_bytes(plan.arena_bytes)
    return [("arena", f"{arena}, where blocks lie by how long they live")]
