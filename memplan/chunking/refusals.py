"""What is said where a budget of bytes, or of time, is not kept."""

from __future__ import annotations

from typing import Any

from memplan.chunking.options import BudgetError
from memplan.units import format_bytes


def too_slow(module: Any, most: float, but: str, instead: str) -> BudgetError:
    """Of a module that takes more than `most` times as long; `but` says what it keeps
    to, `instead` what else would help."""
    plan = module.memplan
    return BudgetError(
        f"{but}, but takes {plan.slowdown:.2f} times as long, above {most:.2f}; allow "
        "more (--max-slowdown, or max_slowdown in ChunkOptions) or "
        f"{instead}",
        plan.measured_bytes_after,
        plan.regions[0]["line"] if plan.regions else "",
        module,
    )


def too_large(nearest: Any, limit: int, before: int) -> BudgetError:
    """Of a search that found nothing within `limit` bytes, and `nearest` as the module
    that needs least; before: bytes that the model takes as it is."""
    plan = nearest.memplan
    floor, line = plan.measured_bytes_after, plan.peak_after.get("line", "")
    where = f", at {line}" if line else ""
    whole = plan.left_alone.get("")
    which = "nothing" if plan.reason.startswith("nothing of it") else "only parts"
    alone = f" ({which} of it can be exported: {whole})" if whole else ""
    if floor >= before:
        return BudgetError(
            f"no plan found within {format_bytes(limit)}: nothing found needs less "
            f"than the {format_bytes(before)} that it takes as it is{where}{alone}; "
            "give at least that (--budget)",
            before,
            line,
            nearest,
        )
    return BudgetError(
        f"no plan found within {format_bytes(limit)}: the lowest found is "
        f"{format_bytes(floor)}{where}{alone}; give at least that (--budget)",
        floor,
        line,
        nearest,
    )
