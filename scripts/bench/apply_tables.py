"""What the benchmark of apply prints beside each program's figures, and at the end."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from bench import ratios
from bench.child import Run
from bench.programs import DEFAULT, FIXED, MEMPLAN


def show(runs: dict[str, list[Run]], others: dict[str, str]) -> None:
    """Print a program's table, and what its plan did. others: as
    `ratios.require_equal_losses` gives them."""
    print(ratios.table(runs))
    equal = "losses, equal bit for bit"
    if others:
        equal += f" but for {', '.join(others)}"
    print(f"{equal}: {runs[DEFAULT.name][0].digest[:16]}")
    for name, reason in others.items():
        print(f"{name} computed {reason}")
    for line in plan_facts(runs.get(MEMPLAN.name, [])):
        print(line)
    sys.stdout.flush()


def plan_facts(runs: list[Run]) -> list[str]:
    """What the reports of the planned runs say: their worst counts, and the arena."""
    reports = [run.report for run in runs if run.report is not None]
    if not reports:
        return []
    fewest = min(report["planned_requests"] for report in reports)
    share = min(
        report["planned_requests"] / max(report["requests"], 1) for report in reports
    )
    fallback, size, conflicts = (
        max(report[key] for report in reports)
        for key in ("fallback_requests", "fallback_bytes", "conflicts")
    )
    arena, bound = (
        max(report[key] for report in reports) / (1 << 20)
        for key in ("arena_bytes", "lower_bound_bytes")
    )
    most_live, top = (
        max(report["memory"][key] for report in reports) / (1 << 20)
        for key in ("most_live_in_arena", "arena_top")
    )
    replans = [[replan["step"] for replan in report["replans"]] for report in reports]
    return [
        f"arena used up to {top:,.1f} MiB, most live in it {most_live:,.1f} MiB",
        f"planned anew after steps {replans[-1] or 'none'}",
        f"memory: {reports[-1]['memory']}",
        f"requests: {share:.1%} planned ({fewest:,}), {fallback:,} fallback "
        f"({size:,} bytes), {conflicts:,} conflicts",
        f"arena: {arena:,.1f} MiB, lower bound {bound:,.1f} MiB",
    ]


def means(programs: Mapping[str, ratios.Runs]) -> str:
    """The geometric means of the median ratios, over all programs, over those of fixed
    steps and over the others; nothing where there was one program only."""
    if len(programs) < 2:
        return ""
    parts = {
        "all programs": dict(programs),
        "of fixed steps": {n: programs[n] for n in programs if n in FIXED},
        "the others": {n: programs[n] for n in programs if n not in FIXED},
    }
    lines = ["\ngeometric means of the median ratios"]
    for title, some in parts.items():
        if not some or (len(some) == len(programs) and title != "all programs"):
            continue
        lines.append(f"{title} ({len(some)}: {', '.join(some)})")
        for pair, fields in ratios.geometric_means(some).items():
            figures = (
                f"{field} {'-' if value is None else f'{value:.3f}'}"
                for field, value in fields.items()
            )
            lines.append(f"  {pair}: {', '.join(figures)}")
    return "\n".join(lines)
