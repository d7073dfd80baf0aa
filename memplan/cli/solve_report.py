"""How memplan solve prints what it found."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

from memplan.cli import capacities, outlooks, plan_rows, show
from memplan.core.plan import UNMARKED, Plan
from memplan.core.problem import Problem
from memplan.files import STDOUT
from memplan.solving.capacity import Room
from memplan.solving.outlook import outlook
from memplan.trace.trace import Trace
from memplan.units import format_bytes, format_gap, format_seconds


def tell(
    plan: Plan,
    given: Trace | Problem,
    path: Path | None,
    room: Room | None,
    json_: bool,
) -> None:
    """What was found, what it will bring, and what to do next; path: of the plan."""
    found = None
    with contextlib.suppress(KeyboardInterrupt):  # the plan is there all the same
        found = outlook(given, plan) if isinstance(given, Trace) else None
    if json_:
        compared = {} if room is None else capacities.entries(room)
        show.as_json(_entries(plan, path) | compared | outlooks.entries(found))
    else:
        title = "it fits" if path is None else f"planned {path}"
        rows = _rows(plan) + capacities.rows(room, plan) + outlooks.rows(found)
        show.facts(f"memplan: {title}", rows)
    if found is not None:
        outlooks.warn(plan, found)
    if json_ or path == STDOUT:
        return
    if path is None:
        capacities.tell_unwritten()
    else:
        show.line(f"  next: memplan {_next(given, path)}")


def _entries(plan: Plan, path: Path | None) -> dict[str, object]:
    return {
        "schema": "memplan.solve-result",
        "version": 1,
        "method": plan.provenance.method,
        "buffers": len(plan.problem),
        "lower_bound": plan.lower_bound,
        "peak": plan.peak,
        "gap": plan.gap,
        "status": plan.status,
        "seconds": plan.provenance.seconds,
        "seed": plan.provenance.seed,
        "elastic": plan.elastic,
        "kinds": len(plan.kinds),
        "arena_bytes": plan.arena_bytes,
        "plan": None if path is None else str(path),
    }


def _rows(plan: Plan) -> list[tuple[str, str]]:
    rows = [
        (
            "method",
            f"{plan.provenance.method}, {format_seconds(plan.provenance.seconds)}",
        ),
        ("buffers", f"{len(plan.problem):,}"),
        ("peak", format_bytes(plan.peak)),
        ("lower bound", format_bytes(plan.lower_bound)),
        ("gap", format_gap(plan.gap) + plan_rows.proof(plan)),
    ]
    if plan.elastic:
        rows.insert(1, ("steps", "alike but for their sizes: planned for the largest"))
    rows += plan_rows.by_lifespan(plan)
    if plan.lanes:
        arena = format_bytes(plan.arena_bytes)
        many = f"{plan.lanes:,} at a time, each in an arena of its own"
        rows.append(("threads", f"{many}: {arena} together"))
    if plan.provenance.program.marks == UNMARKED:
        rows.append(("loop", "not marked: found in the sequence of requests"))
    if plan.kinds:
        steps = sum(kind.seen for kind in plan.kinds)
        arena = format_bytes(plan.arena_bytes)
        rows.append(
            ("other steps", f"{steps:,} of {len(plan.kinds):,} kinds, arena {arena}")
        )
    if plan.warmup is not None and plan.hot.requests is not None:
        rows.append(
            ("warm-up", f"{len(plan.warmup.problem):,} buffers in the same arena")
        )
    return rows


def _next(given: Trace | Problem, plan: Path) -> str:
    """What a user will want to do with the plan."""
    if isinstance(given, Problem):
        return f"plot {shlex.quote(str(plan))} -o packing.png"
    return shlex.join(["apply", str(plan), *(given.info.argv or ("SCRIPT",))])
