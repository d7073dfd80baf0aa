"""How the report of a run under a plan is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from memplan.applying.payoff import GivenUp
from memplan.applying.preload import LargeRequests
from memplan.applying.replan import Replan
from memplan.applying.report import Report
from memplan.applying.residency import Memory
from memplan.cli import show
from memplan.core.plan import DeviceRun, RunStats
from memplan.recording.stats import Spread
from memplan.units import format_bytes, format_seconds

MOST_REPLANS = 6  # listed one by one


def show_report(report: Report) -> None:
    """Print it on standard error."""
    share = report.planned_requests / report.requests if report.requests else 0.0
    bound = format_bytes(report.lower_bound_bytes)
    rows = [
        ("requests", f"{report.requests:,} in hot steps, {share:.1%} planned"),
        ("conflicts", f"{report.conflicts:,}"),
        ("plan", f"{format_bytes(report.arena_bytes)}, lower bound {bound}"),
    ]
    if report.unplanned_requests:
        rows.append(
            ("unplanned", f"{report.unplanned_requests:,} that outlive their steps")
        )
    departures = report.online_requests + report.fallback_requests
    if departures:
        where = f"{report.online_requests:,} placed in the arena"
        outside = f"{report.fallback_requests:,} outside it"
        size = format_bytes(report.fallback_bytes)
        rows.append(("departures", f"{departures:,}: {where}, {outside} ({size})"))
    if report.interrupted_requests:
        rows.append(
            ("interrupted", f"{report.interrupted_requests:,} requests passed through")
        )
    if report.fault:
        rows.append(("not applied", report.fault))
    rows += _arenas(report)
    if report.replans:
        rows += _replans(report.replans)
    if report.given_up:
        rows += _given_up(report.given_up)
    if report.memory is not None:
        rows += _lives(report.memory, report.arena_bytes)
    if report.malloc is not None:
        rows.append(("malloc", _large(report.malloc)))
    title = f"memplan: {report.steps:,} steps under the plan"
    if report.rank is not None:
        title += f", rank {report.rank}"
    show.facts(title, rows, err=True)
    columns = ("", "while recorded", "under the plan")
    show.table("", columns, _figures(report), err=True)
    if report.recorded.peak_rss_bytes and report.device != "cuda":
        show.note(
            "what was recorded ran under the recorder, and is no measure of what the "
            "plan saves: for that, run the program without memplan, as long and as busy"
        )


def _large(served: LargeRequests) -> str:
    return (
        f"{served.requests:,} large requests beside tensors', at most "
        f"{format_bytes(served.most_live)} alive"
    )


def _figures(report: Report) -> list[tuple[str, str, str]]:
    """Both runs: their conditions, then what they took; no ratios, as the conditions
    differ."""
    then, now = report.recorded, report.run
    seconds, cpu = report.spread.seconds, report.spread.cpu_seconds

    def both(title: str, shown: Callable[[RunStats], str]) -> tuple[str, str, str]:
        return title, shown(then), shown(now)

    if report.device == "cuda":
        return _device_figures(report)
    rows = [
        both("steps", lambda run: f"{run.steps:,}" if run.steps else "-"),
        ("threads", f"{report.recorded_threads or '-'}", f"{report.threads or '-'}"),
        both("machine's load", lambda run: f"{run.load:.1f}" if run.load else "-"),
        both("peak resident", lambda run: _or_none(run.peak_rss_bytes, format_bytes)),
        (
            "page faults per step",
            f"{then.page_faults_per_step:,.0f}" if then.peak_rss_bytes else "-",
            f"{now.page_faults_per_step:,.0f}",
        ),
        both("time per step", lambda run: _or_none(run.step_seconds, format_seconds)),
    ]
    if report.spread.counted > 1:
        rows.append(("  half of the steps within", "", _half(seconds)))
    rows.append(
        both("CPU time per step", lambda run: _or_none(run.cpu_seconds, format_seconds))
    )
    if report.spread.counted > 1:
        rows.append(("  half of the steps within", "", _half(cpu)))
    return rows


def _arenas(report: Report) -> list[tuple[str, str]]:
    """What became of a CUDA plan's arenas, but for one that was made and stayed."""
    total: Counter[str] = Counter()
    for each in report.devices.values():
        total.update(each)
    rows = []
    none = total["requests"] and not total["arena_bytes_peak"]
    if none and total["arenas_deferred"]:
        why = "torch's allocator kept as much memory free"
        rows.append(("no arena", f"none was made: {why}"))
    elif none and not total["arenas_refused"]:
        why = "the program did not ask for what was planned"
        rows.append(("no arena", f"none was made: {why}"))
    elif total["arenas_deferred"]:
        count = total["arenas_deferred"]
        why = "torch kept as much memory free"
        rows.append(("arena", f"put off {_times(count)}: {why}"))
    if total["arenas_refused"]:
        count = total["arenas_refused"]
        rows.append(("no arena", f"torch had no memory for it, {_times(count)}"))
    if total["arenas_given_back"]:
        count = total["arenas_given_back"]
        rows.append(("arena", f"given back {_times(count)}, when memory ran out"))
    return rows


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _device_figures(report: Report) -> list[tuple[str, str, str]]:
    """Of the devices: the host's figures say nothing of them."""
    rows = [("steps", f"{report.recorded.steps or '-'}", f"{report.steps:,}")]
    for device, memory in report.device_memory.items():
        name = f"GPU {device}: " if len(report.device_memory) > 1 else ""
        then = report.recorded_devices.get(device, DeviceRun())
        calls = f"{then.mallocs:,}, {then.frees:,}" if then.reserved_bytes else "-"
        rows += [
            (
                f"{name}reserved by torch, at most",
                _or_none(then.reserved_bytes, format_bytes),
                format_bytes(memory.reserved_peak),
            ),
            (
                f"{name}allocated, at most",
                _or_none(then.allocated_bytes, format_bytes),
                format_bytes(memory.allocated_peak),
            ),
            (f"{name}used, says the driver", "-", format_bytes(memory.driver_used)),
            (
                f"{name}cudaMalloc, cudaFree",
                calls,
                f"{memory.mallocs:,}, {memory.frees:,}",
            ),
        ]
    if report.device_seconds.mean:
        seconds = report.device_seconds
        rows.append(("time per step on it", "-", format_seconds(seconds.median)))
        rows.append(("  half of the steps within", "", _half(seconds)))
    return rows


def _or_none(value: float, shown: Callable[[float], str]) -> str:
    return shown(value) if value else "-"


def _half(spread: Spread) -> str:
    low, high = map(format_seconds, (spread.quarter, spread.three_quarters))
    return f"{low} - {high}"


def _replans(replans: tuple[Replan, ...]) -> list[tuple[str, str]]:
    """How often and how long, and when and why."""
    longest = max(replan.seconds for replan in replans)
    times = "once" if len(replans) == 1 else f"{len(replans):,} times"
    rows = [("planned anew", f"{times}, in at most {format_seconds(longest)}")]
    for first in range(0, min(len(replans), MOST_REPLANS), 3):
        some = replans[first : min(first + 3, MOST_REPLANS)]
        shown = ", ".join(f"after step {r.step:,} ({r.reason})" for r in some)
        rows.append(("", shown))
    if len(replans) > MOST_REPLANS:
        rows.append(("", f"and {len(replans) - MOST_REPLANS:,} times more"))
    return rows


def _given_up(times: tuple[GivenUp, ...]) -> list[tuple[str, str]]:
    """When and why."""
    why = {
        "different": "the program asked for something else than planned",
        "faults": "its pages cost more faults than the default allocator's",
    }
    return [
        ("given up", f"after step {one.step:,}: {why[one.reason]}")
        for one in times[:MOST_REPLANS]
    ]


def _lives(memory: Memory, planned: int) -> list[tuple[str, str]]:
    """Where resident memory lives, the largest part first, and what the arena holds.

    planned: bytes of the plan's arena; departures, and plans before, may lie beyond.
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
    return [
        ("resident", ", ".join(texts[:2])),
        ("", ", ".join(texts[2:])),
        ("most live", f"{live} of tensors in the arena"),
        (
            "out of reach",
            f"{memory.out_of_reach:.0%} of the peak: resident before the program, or "
            "not asked of torch",
        ),
    ]
