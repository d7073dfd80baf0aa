"""What applying a plan to CUDA memory did."""

from __future__ import annotations

from memplan.applying.report import Report
from memplan.core.plan import Plan
from memplan.recording.stats import run_stats

_COUNTS = ("requests", "planned", "unplanned", "conflicts", "online", "fallback")


def make_cuda_report(
    plan: Plan,
    devices: dict[int, dict[str, int]],
    marks: list[tuple[int, int, int]],
) -> Report:
    """The report of a run: its statistics, and its boundaries (ns, faults, Mark)."""
    total: dict[str, int] = {}
    for stats in devices.values():
        for name, value in stats.items():
            total[name] = total.get(name, 0) + value
    hot = {name: total.get(f"hot_{name}", 0) for name in _COUNTS}
    return Report(
        requests=hot["requests"],
        planned_requests=hot["planned"],
        unplanned_requests=hot["unplanned"],
        online_requests=hot["online"],
        online_bytes=total.get("hot_online_bytes", 0),
        fallback_requests=hot["fallback"],
        fallback_bytes=total.get("hot_fallback_bytes", 0),
        conflicts=hot["conflicts"],
        arena_bytes=total.get("arena_bytes", 0),
        lower_bound_bytes=plan.lower_bound,
        steps=len(marks),
        warmup={name: total.get(name, 0) - hot[name] for name in _COUNTS},
        run=run_stats(marks),
        recorded=plan.recorded,
        device="cuda",
        devices=devices,
    )
