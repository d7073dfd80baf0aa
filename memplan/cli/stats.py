"""memplan stats"""

from __future__ import annotations

import shlex
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click

from memplan.cli import arguments, show, site_table
from memplan.cli.solve import arena_rows
from memplan.core.plan import Plan
from memplan.errors import UsageError
from memplan.formats.plain import plain
from memplan.reporting.check import described
from memplan.reporting.leak import told
from memplan.reporting.live import By, Live
from memplan.reporting.saving import MOST_EVENTS, saving
from memplan.reporting.stats import Stats, summarize
from memplan.sweep import sweep
from memplan.trace.modelled import EXPANDABLE
from memplan.trace.reserved import Reserved
from memplan.trace.sites import Site
from memplan.trace.trace import Category, Trace
from memplan.units import format_bytes, format_gap, format_seconds, format_share

_ALONE = 4  # so few traces are read faster than processes start
_SAVED_OF = {
    "resident": "resident",
    "reserved": "reserved",
    "heaps": "of the C library's heaps",
}
_OF_SITES = ("line", "function", "module", "op")
_OF_ONE = {"kind": "--by", "at": "--at"}
_UNKNOWN_SITES = (
    "the trace does not say who asked: record again with --stacks site, the default"
)


@click.command("stats")
@click.argument("source", nargs=-1, required=True, metavar="TRACE|SNAPSHOT|PLAN...")
@click.option(
    "--at",
    default="peak",
    metavar="peak|SECONDS|STEP",
    help="Moment to show: the peak, a time such as 1.5s, or a step's number for its "
    "largest moment.",
)
@click.option(
    "--by",
    "kind",
    type=click.Choice(get_args(By)),
    default="line",
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
    paths = arguments.expanded(source)
    if len(paths) > 1:
        arguments.refuse(_OF_ONE, f"of one trace, not of {len(paths)}")
        _of_many(paths, most, device, ray, json_)
        return
    if ray is not None:
        raise UsageError("--ray is for many traces; leave it out")
    given = arguments.trace_or_plan(paths[0], device)
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
        entries = _entries(found) | {"saving": _saving_entries(given)}
        show.as_json(entries, "memplan.stats")
        return
    show.facts(f"memplan: {paths[0]}", _rows(found, at))
    if len(found.at.chosen):
        title = f"live {_moment(found.at, at)}, {format_bytes(found.at.bytes)}"
        site_table.shown(f"{title}, by {kind}", kind, found.at.by(kind), most)
    if len(given) and not found.has_sites and kind in _OF_SITES:
        show.note(_UNKNOWN_SITES)
    if not show.is_hushed():
        named = [str(paths[0]), *([] if device is None else ["--device", str(device)])]
        show.line(f"  {_next(found, shlex.join(named))}")


def _entries(found: Stats) -> dict[str, Any]:
    """The result as JSON has it; the sites' bytes sum to those of `at`."""
    info, at, oom, reserved = found.trace.info, found.at, found.oom, found.reserved
    return {
        **show.picked(info, "device", "rank", "dropped_events", "complete"),
        **show.picked(found, "steps", "kept_at_end_bytes", "leak"),
        "script": info.program.script,
        "events": len(found.trace),
        **show.picked(found.peak, peak_bytes="bytes", peak_time="seconds"),
        "at": show.picked(at, "bytes", "seconds", "step"),
        "sites": [
            {**plain(site), "bytes": size, "share": size / at.bytes}
            for site, size in at.sites().items()
        ],
        "categories": category_entries(at),
        "oom": oom
        and {
            **show.picked(oom, "requested_bytes", "site", "seconds", "count"),
            **show.picked(oom, live_bytes="live.bytes", device_free_bytes="free"),
            "reserved": _reserved_entries(oom.reserved),
        },
        "reserved": reserved
        and {
            **show.picked(reserved, peak_bytes="bytes", peak_time="seconds"),
            "expandable_bytes": reserved.expandable,
            "at": _reserved_entries(reserved.at),
        },
    }


def category_entries(live: Live) -> dict[str, int]:
    """Bytes by category, all of them; they sum to what is live."""
    return {category.name.lower(): live.categories[category] for category in Category}


def _reserved_entries(held: Reserved | None) -> dict[str, Any] | None:
    sizes = {"allocated_bytes": "allocated", "split_bytes": "split"}
    sizes |= {"empty_bytes": "empty", "largest_free_bytes": "largest_free"}
    return None if held is None else show.picked(held, bytes="reserved", **sizes)


def _saving_entries(trace: Trace) -> dict[str, Any] | None:
    found = saving(trace)
    sizes = {f"{name}_bytes": name for name in ("now", "planned", "planned_least")}
    return None if found is None else show.picked(found, "of", "pays", **sizes)


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
    rows += _reserved_rows(found)
    steps = f"{found.steps:,}" if found.steps else "no"
    words = "step" if found.steps == 1 else "steps"
    rows.append(("events", f"{len(found.trace):,}, {steps} {words}"))
    if found.steps > 2:
        rows.append(("kept at end", format_bytes(found.kept_at_end_bytes)))
        rows.append(("leak", _leak(found)))
    if found.oom is not None:
        rows += oom_rows(found)
    if count := info.dropped_events:
        rows.append(("dropped", f"{count:,} events: the peak may be higher"))
    if not info.complete:
        missing = "its end was cut off, or its beginning: more may have been live"
        rows.append(("incomplete", missing))
    return rows


def oom_rows(found: Stats) -> list[tuple[str, str]]:
    """The last request that failed, which there is: what was live, and had."""
    failed = found.oom
    assert failed is not None
    asked = f"{format_bytes(failed.requested_bytes)} could not be had"
    live = format_bytes(failed.live.bytes)
    when = f"after {format_seconds(failed.seconds)}, {live} live"
    rows = [("out of memory", f"{asked} {when}")]
    if found.trace.info.device == "cuda":
        rows.append(("", f"{format_bytes(failed.free)} free on the device"))
    held = failed.reserved
    if held is not None:
        rows.append(("", f"{format_bytes(held.reserved)} reserved then"))
        rows += _idle("", held)
    if failed.site.file:
        rows.append(("asked for at", described(failed.site)))
    return rows


def _reserved_rows(found: Stats) -> list[tuple[str, str]]:
    """What an allocator of segments held, and what of it was of no use."""
    if found.reserved is None:
        return []
    most, at = found.reserved, found.reserved.at
    first, when = map(format_seconds, (most.seconds, found.at.seconds))
    part, whole = map(format_bytes, (at.allocated, at.reserved))
    other = f"{format_bytes(most.expandable)} with {EXPANDABLE}"
    return [
        ("reserved", f"{format_bytes(most.bytes)} at most, after {first}"),
        *([("", other)] if most.expandable else []),
        ("allocated", f"{part} of {whole} reserved, after {when}"),
        *_idle("fragmented", at),
    ]


def _idle(name: str, held: Reserved) -> list[tuple[str, str]]:
    """What no block holds of what is reserved, where that is known."""
    if held.split is None:
        return []
    lost = f"{format_bytes(held.split)} lost between blocks"
    if held.largest_free:
        lost += f", largest hole {format_bytes(held.largest_free)}"
    rows = [(name, lost)]
    if held.empty:
        rows.append(("", f"{format_bytes(held.empty)} in segments without a block"))
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
        why = "no step repeats that frees what it asks for"
        if found.trace.info.device != "cpu" and found.reserved is None:
            why = "the recording tells of no segments"
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
    if json_:
        names = {"peak_bytes": "peak", "script": "provenance.program.script"}
        entries = show.picked(plan, "lower_bound", "arena_bytes", **names)
        show.as_json(entries | {"buffers": len(plan.problem)}, "memplan.stats")
        return
    bound = format_bytes(plan.lower_bound)
    rows = [
        ("planned peak", format_bytes(plan.peak)),
        ("lower bound", f"{bound}, gap {format_gap(plan.gap)}"),
        ("buffers", f"{len(plan.problem):,}"),
        *arena_rows(plan),
    ]
    show.facts(f"memplan: {path}", rows)
    show.line(f"  next: memplan plot {shlex.quote(str(path))} -o packing.png")


@dataclass(frozen=True)
class _Reading:
    """One trace to be read, here or where another process runs: what is in it."""

    path: Path
    device: int | None

    def run(self) -> dict[str, Any]:
        given = arguments.trace_or_plan(self.path, self.device)
        if isinstance(given, Plan):
            raise UsageError(f"{self.path} is a plan; of many files, name traces only")
        head = {"path": str(self.path), "schema": "memplan.stats", "version": 1}
        return head | _entries(summarize(given))


def _of_many(
    paths: list[Path], most: int, device: int | None, ray: str | None, json_: bool
) -> None:
    """Print a row for each trace, what differs most first.

    ray: the address of a cluster that reads them; its nodes must see the files.
    """
    if ray is not None:
        paths = [path.absolute() for path in paths]  # nodes work in folders of theirs
    alone = ray is None and len(paths) < _ALONE
    readings = [_Reading(path, device) for path in paths]
    found = sweep(readings, processes=1 if alone else None, address=ray)
    middle = statistics.median(each["peak_bytes"] for each in found)
    found = sorted(found, key=lambda each: -abs(each["peak_bytes"] - middle))
    if json_:
        entries = {"median_peak_bytes": middle, "traces": found}
        show.as_json(entries, "memplan.stats-many")
        return
    title = f"{len(found):,} traces, median peak {format_bytes(middle)}"
    if len(found) > most:
        title += f"; the {most:,} that differ most (-n shows more)"
    columns = ["trace", "most at", "rank", "peak", "from median", "leak a step"]
    show.table(title, columns, [_row(each, middle) for each in found[:most]], 2)


def _row(each: dict[str, Any], middle: float) -> list[str]:
    peak, leak = each["peak_bytes"], each["leak"]
    away = peak - middle
    share = f" ({100 * away / middle:+.1f} %)" if middle else ""
    top = each["sites"][0] if each["sites"] else {}
    site = Site(*(top.get(key, "") for key in ("file", "line", "function")))
    sign = "+" if away > 0 else ""
    return [
        each["path"],
        site_table.place(site) if site.file else "",
        str(each["rank"]),
        format_bytes(peak),
        f"{sign}{format_bytes(away)}{share}" if away else "0 B",
        format_bytes(leak["bytes_per_step"]) if leak else "",
    ]
