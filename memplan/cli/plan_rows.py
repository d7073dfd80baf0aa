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


def proof(plan: Plan) -> str:
    """What is to be said after the gap: nothing, or that the peak is least.

    Of a plan by lifespan it is that of offsets at which no block need come to lie.
    """
    if plan.lifespan_bytes:
        return ", of a step of the largest sizes"
    return ", proved optimal" if plan.proved_optimal and len(plan.problem) else ""
