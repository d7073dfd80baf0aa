"""Print the report of a run under a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from memplan.applying.replan import Replan
from memplan.applying.report import Memory, Report
from memplan.cli import show
from memplan.core.plan import DeviceRun
from memplan.recording.usage import Spread
from memplan.units import format_bytes, format_seconds

MOST_REPLANS = 6  # listed one by one
_WHY_DROPPED = {
    "different": "the program's requests differ from the plan",
    "faults": "its pages cost more faults than the default allocator's",
}


def show_report(report: Report) -> None:
    """Print `report` on standard error: facts, then both runs in a table."""
    share = report.planned_requests / report.requests if report.requests else 0.0
    arena, bound = map(format_bytes, (report.arena_bytes, report.lower_bound_bytes))
    rows = [
        ("requests", f"{report.requests:,} in hot steps, {share:.1%} planned"),
        ("conflicts", f"{report.conflicts:,}"),
        ("plan", f"{arena}, lower bound {bound}"),
    ]
    if count := report.unplanned_requests:
        rows.append(("unplanned", f"{count:,} that outlive their steps"))
    departures = report.online_requests + report.fallback_requests
    if departures:
        where = f"{report.online_requests:,} placed in the arena"
        outside = f"{report.fallback_requests:,} outside it"
        size = format_bytes(report.fallback_bytes)
        rows.append(("departures", f"{departures:,}: {where}, {outside} ({size})"))
    if count := report.interrupted_requests:
        rows.append(("interrupted", f"{count:,} requests passed through"))
    if (again := report.recompute) is not None:
        found = "" if again.bound >= again.units else f", {again.bound:,} found"
        many = f"{again.recomputations:,} calls in {format_seconds(again.seconds)}"
        budget, expected = map(format_bytes, (again.budget, again.predicted))
        if again.units:
            rows.append(("recomputed", f"{_units(again.units)}{found}: {many}"))
        rows.append(("budget", f"{budget}, {expected} of tensors expected"))
        if again.left_out:
            many = f"{again.left_out:,} calls of units that have hooks by now"
            rows.append(("not recomputed", many))
        if report.memory is not None:
            live = report.memory.most_live
            over = ", more than the budget" if live > again.budget else ""
            rows.append(("live", f"{format_bytes(live)} at the most{over}"))
    if report.fault:
        rows.append(("not applied", report.fault))
    rows += _cuda_arenas(report)
    if report.replans:
        rows += _replans(report.replans)
    rows += [
        ("dropped", f"after step {one.step:,}: {_WHY_DROPPED[one.reason]}")
        for one in report.given_up[:MOST_REPLANS]
    ]
    if report.memory is not None:
        rows += _residency(report.memory, report.arena_bytes)
    none = report.fault and not report.requests  # of several plans, some may serve
    under = "without the plan" if none else "under the plan"
    title = f"memplan: {report.steps:,} steps {under}"
    if report.rank is not None:
        title += f", rank {report.rank}"
    show.facts(title, rows, err=True)
    figures = _device_figures if report.device == "cuda" else _host_figures
    columns = ("", "while recorded", under)
    show.table("", columns, figures(report), err=True)
    if report.recorded.peak_rss_bytes and report.device != "cuda":
        show.note(
            "recording adds overhead, so its figures do not show what the plan saves; "
            "compare with a run without memplan"
        )


def _host_figures(report: Report) -> list[tuple[str, str, str]]:
    """Both runs: their conditions, then their figures. There is no ratio, because the
    conditions differ."""
    then, now = report.recorded, report.run

    def both(
        title: str, name: str, shown: Callable[[Any], str]
    ) -> tuple[str, str, str]:
        values = (getattr(run, name) for run in (then, now))
        before, after = (shown(value) if value else "-" for value in values)
        return title, before, after

    faults = "{:,.0f}".format
    before = faults(then.page_faults_per_step) if then.peak_rss_bytes else "-"
    rows = [
        both("steps", "steps", "{:,}".format),
        ("threads", f"{report.recorded_threads or '-'}", f"{report.threads or '-'}"),
        both("machine's load", "load", "{:.1f}".format),
        both("peak resident", "peak_rss_bytes", format_bytes),
        ("page faults per step", before, faults(now.page_faults_per_step)),
        both("time per step", "step_seconds", format_seconds),
        both("CPU time per step", "cpu_seconds", format_seconds),
    ]
    if report.spread.counted > 1:
        rows.insert(6, _middle_half(report.spread.seconds))
        rows.append(_middle_half(report.spread.cpu_seconds))
    return rows


def _device_figures(report: Report) -> list[tuple[str, str, str]]:
    """Both runs on their GPUs."""
    rows = [("steps", f"{report.recorded.steps or '-'}", f"{report.steps:,}")]
    for device, memory in report.device_memory.items():
        name = f"GPU {device}: " if len(report.device_memory) > 1 else ""
        then = report.recorded_devices.get(device, DeviceRun())
        before = ["-"] * 3
        if then.reserved_bytes:
            sizes = then.reserved_bytes, then.allocated_bytes
            before = [*map(format_bytes, sizes), f"{then.mallocs:,}, {then.frees:,}"]
        sizes = memory.reserved_peak, memory.allocated_peak
        reserved, allocated = map(format_bytes, sizes)
        calls = f"{memory.mallocs:,}, {memory.frees:,}"
        natively = report.devices.get(device, {}).get("native_bytes_peak", 0)
        modelled = format_bytes(natively) if natively else "-"
        rows += [
            (f"{name}peak reserved by torch", before[0], reserved),
            (f"{name}  without a plan, by a model", "-", modelled),
            (f"{name}peak allocated", before[1], allocated),
            (f"{name}used on the device now", "-", format_bytes(memory.driver_used)),
            (f"{name}cudaMalloc, cudaFree", before[2], calls),
        ]
    if report.device_seconds.mean:
        seconds = report.device_seconds
        rows.append(("GPU time per step", "-", format_seconds(seconds.median)))
        rows.append(_middle_half(seconds))
    return rows


def _middle_half(spread: Spread) -> tuple[str, str, str]:
    low, high = map(format_seconds, (spread.quarter, spread.three_quarters))
    return "  half of the steps within", "", f"{low} - {high}"


def _cuda_arenas(report: Report) -> list[tuple[str, str]]:
    """Why arenas of CUDA plans were not made, or did not stay."""
    total: Counter[str] = Counter()
    for each in report.devices.values():
        total.update(each)
    none = total["requests"] and not total["arena_bytes_peak"]
    deferred, refused = total["arenas_deferred"], total["arenas_refused"]
    rows = []
    if none and deferred:
        rows.append(("no arena", "torch would have reserved more with it"))
    elif none and not refused:
        rows.append(("no arena", "the program never made the planned requests"))
    elif deferred:
        why = "torch would have reserved more with it then"
        rows.append(("arena", f"deferred {_times(deferred)}: {why}"))
    if refused:
        rows.append(("no arena", f"torch had no memory for it, {_times(refused)}"))
    if total["arenas_given_back"]:
        count = _times(total["arenas_given_back"])
        why = "no memory, empty_cache(), or torch needed it"
        rows.append(("arena", f"released {count}: {why}"))
    return rows


def _units(count: int) -> str:
    return "1 unit" if count == 1 else f"{count:,} units"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _replans(replans: tuple[Replan, ...]) -> list[tuple[str, str]]:
    """How often and how long, then when and why."""
    longest = format_seconds(max(replan.seconds for replan in replans))
    rows = [("replanned", f"{_times(len(replans))}, in at most {longest}")]
    for first in range(0, min(len(replans), MOST_REPLANS), 3):
        some = replans[first : min(first + 3, MOST_REPLANS)]
        shown = ", ".join(f"after step {r.step:,} ({r.reason})" for r in some)
        rows.append(("", shown))
    if len(replans) > MOST_REPLANS:
        rows.append(("", f"and {len(replans) - MOST_REPLANS:,} times more"))
    return rows


def _residency(memory: Memory, planned: int) -> list[tuple[str, str]]:
    """Resident memory by part, the largest first, and what the arena holds.

    planned: bytes of the plan's arena; departures and earlier plans may lie beyond it.
    """
    arena = "arena"
    beyond = memory.arena - planned
    if beyond > planned // 50:
        arena += f" (its plan and {format_bytes(beyond)} beyond)"
    parts = {
        arena: memory.arena,
        "tensors outside it": memory.tensors_outside,
        "process before": memory.before,
        "other native": memory.other,
    }
    ranked = sorted(parts.items(), key=lambda part: -part[1])
    texts = [f"{name} {format_bytes(size)}" for name, size in ranked]
    live = format_bytes(memory.most_live_in_arena)
    reach = "resident before the program, or not requested by torch"
    return [
        ("resident", ", ".join(texts[:2])),
        ("", ", ".join(texts[2:])),
        ("most live", f"{live} of tensors in the arena"),
        ("out of reach", f"{memory.out_of_reach:.0%} of the peak: {reach}"),
    ]
