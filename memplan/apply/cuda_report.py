"""What applying a plan to CUDA memory did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from memplan.core.plan import Plan, RunStats
from memplan.record.session import run_stats

SCHEMA = "memplan.apply-report"
VERSION = 1
_COUNTS = ("requests", "planned", "unplanned", "conflicts", "online", "fallback")


@dataclass(frozen=True)
class CudaReport:
    """One run under a plan. Requests and bytes are those of the hot steps.

    The fields mean what they mean in `memplan.apply.report.Report`, on all devices
    together; "the default allocator" is cudaMalloc here, and what it gave is kept for
    reuse. devices: the statistics of each, as `memplan.apply.cuda.stats` gives them.
    """

    requests: int
    planned_requests: int
    unplanned_requests: int
    online_requests: int
    online_bytes: int
    fallback_requests: int
    fallback_bytes: int
    conflicts: int
    arena_bytes: int
    lower_bound_bytes: int
    steps: int
    warmup: dict[str, int]
    run: RunStats
    recorded: RunStats
    device: str = "cuda"
    devices: dict[int, dict[str, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """The report as plain data, with `schema` and `version`."""
        entries = {"schema": SCHEMA, "version": VERSION, **asdict(self)}
        return {**entries, **entries.pop("run")}


def make_cuda_report(
    plan: Plan,
    devices: dict[int, dict[str, int]],
    marks: list[tuple[int, int, int]],
) -> CudaReport:
    """The report of a run: its statistics, and its boundaries (ns, faults, Mark)."""
    total: dict[str, int] = {}
    for stats in devices.values():
        for name, value in stats.items():
            total[name] = total.get(name, 0) + value
    hot = {name: total.get(f"hot_{name}", 0) for name in _COUNTS}
    return CudaReport(
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
        devices=devices,
    )
