"""memplan stats"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, get_args

import click

from memplan.cli import (
    arguments,
    memory_rows,
    plan_rows,
    show,
    site_table,
    sources,
    stats_many,
)
from memplan.core.plan import Plan
from memplan.errors import UsageError
from memplan.reporting.check import described
from memplan.reporting.leak import told
from memplan.reporting.live import By, Live
from memplan.reporting.saving import MOST_EVENTS, saving
from memplan.reporting.stats import Stats, entries, summarize
from memplan.trace.category import Category
from memplan.units import format_bytes, format_gap, format_seconds, format_share

_SAVED_OF = {
    "resident": "resident",
    "reserved": "reserved",
    "heaps": "of the C library's heaps",
}
_OF_ONE = {"kind": "--by", "at": "--at"}
_UNKNOWN_SITES = (
    "the trace does not say who asked: record again with --stacks site, the default"
)


@click.command("stats")
@click.argument("source", nargs=-1, required=True, metavar="TRACE|SNAPSHOT|PLAN...")
@click.option(
    "--at",
    default="peak",
    show_default=True,
    metavar="peak|SECONDS|STEP",
    help="Moment to show: the peak, a time such as 1.5s, or a step's number for its "
    "largest moment.",
)
@click.option(
    "--by",
    "kind",
    type=click.Choice(get_args(By)),
    default="line",
    show_default=True,
    help="Property to group buffers by.",
)
@arguments.rows
@arguments.device
@arguments.ray("read many traces")
@arguments.json_
def command(
    source: tuple[str, ...],
    at: str,
    kind: By,
    most: int,
    device: int | None,
    ray: str | None,
    json_: bool,
) -> None:
    """Show which lines, modules and operators make the peak, and whether memory leaks.

    A SNAPSHOT is a memory snapshot of PyTorch. For many traces, such as
    'trace.*.parquet', memplan prints one row each; the traces farthest from the
    median come first. With --ray, all nodes must see the traces under the same
    paths.

    \b
    Example: memplan stats train.parquet --by module
    """
    paths = sources.expanded(source)
    if len(paths) > 1:
        arguments.refuse(_OF_ONE, f"of one trace, not of {len(paths)}")
        stats_many.command(paths, most, device, ray, json_)
        return
    if ray is not None:
        raise UsageError("--ray is for many traces; leave it out")
    given = sources.trace_or_plan(paths[0], device)
    if isinstance(given, Plan):
        arguments.refuse(
            {**_OF_ONE, "most": "-n"},
            f"for traces: {paths[0]} is a plan, of sizes and offsets alone; name the "
            "trace that it was made from",
        )
        _of_plan(given, paths[0], json_)
        return
    found = summarize(given, at)
    if json_:
        saved = saving(given)
        told = {"saving": None if saved is None else saved.entries()}
        show.as_json(entries(found) | told)
        return
    show.facts(f"memplan: {paths[0]}", _rows(found, at))
    if len(found.at.chosen):
        title = f"live {_moment(found.at, at)}, {format_bytes(found.at.bytes)}"
        site_table.shown(f"{title}, by {kind}", kind, found.at.by(kind), most)
    if (
        len(given)
        and not found.has_sites
        and kind in ("line", "function", "module", "op")
    ):
        show.note(_UNKNOWN_SITES)
    if not show.is_hushed():
        named = [str(paths[0]), *([] if device is None else ["--device", str(device)])]
        show.line(f"  {_next(found, shlex.join(named))}")


def _rows(found: Stats, at: str) -> list[tuple[str, str]]:
    info = found.trace.info
    peak = found.peak
    rows = [("peak live", f"{format_bytes(peak.bytes)} {_moment(peak, 'peak')}")]
    known = [
        f"{category.label} {format_bytes(size)}"
        for category, size in found.peak.categories.items()
        if size
    ]
    if found.has_sites and found.peak.categories[Category.UNKNOWN] < found.peak.bytes:
        rows += show.listed("of it", known)
    rows += memory_rows.reserved(found)
    steps = f"{found.steps:,}" if found.steps else "no"
    words = "step" if found.steps == 1 else "steps"
    rows.append(("events", f"{len(found.trace):,}, {steps} {words}"))
    if found.steps > 2:
        rows.append(("kept at end", format_bytes(found.kept_at_end_bytes)))
        rows.append(("leak", _leak(found)))
    if found.oom is not None:
        rows += memory_rows.oom(found)
    if info.dropped_events:
        rows.append(
            ("dropped", f"{info.dropped_events:,} events: the peak may be higher")
        )
    if not info.complete:
        missing = "its end was cut off, or its beginning: more may have been live"
        rows.append(("incomplete", missing))
    return rows


def _leak(found: Stats) -> str:
    leak = found.leak
    if leak is None:
        return "none seen" if told(found.buffers) else "too few steps to tell"
    grows = f"{format_bytes(leak.bytes_per_step)} a step over {leak.steps} steps"
    if not leak.site.file:
        return f"grows by {grows}"
    return f"grows by {grows}; most made at {described(leak.site)}"


def _moment(live: Live, at: str) -> str:
    when = f"after {format_seconds(live.seconds)}"
    if at == "peak":
        when = f"at the peak, {when}"
    return f"{when}, in step {live.step}" if len(live.buffers.bounds) else when


def _next(found: Stats, name: str) -> str:
    """What to do next, and what a plan would save; name: the trace's, for a shell."""
    if found.leak is not None:
        return f"next: memplan stats {name} --at {found.steps - 1}"
    if len(found.trace) > MOST_EVENTS:
        return f"next: memplan solve {name} says what a plan would save"
    saved = saving(found.trace)
    if saved is None:
        told = found.trace.info.device == "cpu" or found.reserved is not None
        why = (
            "no step repeats that frees what it asks for"
            if told
            else "the recording tells of no segments"
        )
        return f"a plan would save nothing that is known: {why}"
    now = f"{format_bytes(saved.now)} {_SAVED_OF[saved.of]}"
    share = format_share(saved.share)
    if not saved.pays:
        return f"a plan would not pay: it saves {share} of {now} at most"
    most = format_bytes(saved.now - saved.planned_least)
    least = format_bytes(max(saved.now - saved.planned, 0))
    span = most if least == most else f"{least} to {most}"
    if saved.of == "reserved":  # what stays outside the arena is in whole segments
        return f"next: memplan solve {name} may save up to {most} of {now}"
    verb = "would" if saved.pays_surely else "may"
    return f"next: memplan solve {name} {verb} save {span} of {now}"


def _of_plan(plan: Plan, path: Path, json_: bool) -> None:
    values: dict[str, Any] = {
        "schema": "memplan.stats",
        "version": 1,
        "script": plan.provenance.program.script,
        "peak_bytes": plan.peak,
        "lower_bound": plan.lower_bound,
        "arena_bytes": plan.arena_bytes,
        "buffers": len(plan.problem),
    }
    if json_:
        show.as_json(values)
        return
    bound = format_bytes(plan.lower_bound)
    rows = [
        ("planned peak", format_bytes(plan.peak)),
        ("lower bound", f"{bound}, gap {format_gap(plan.gap)}"),
        ("buffers", f"{len(plan.problem):,}"),
        *plan_rows.by_lifespan(plan),
    ]
    show.facts(f"memplan: {path}", rows)
    show.line(f"  next: memplan plot {shlex.quote(str(path))} -o packing.png")
