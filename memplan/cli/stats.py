"""memplan stats"""

from __future__ import annotations

import shlex
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import click

from memplan.cli import arguments, show, site_table
from memplan.cli.solve import arena_rows
from memplan.core.plan import Plan
from memplan.errors import UsageError
from memplan.formats.plain import plain
from memplan.reporting.check import described
from memplan.reporting.cycles import Collected
from memplan.reporting.leak import Leak, told
from memplan.reporting.live import UNKNOWN, By, Live
from memplan.reporting.saving import MOST_EVENTS, saving
from memplan.reporting.stats import Stats, has_cycles, summarize
from memplan.sweep import sweep
from memplan.trace.modelled import EXPANDABLE
from memplan.trace.reserved import Reserved
from memplan.trace.trace import NO_HISTORY, Category, Trace
from memplan.units import format_bytes, format_gap, format_seconds, format_share

_ALONE = 4  # so few traces are read faster than processes start
_SAVED_OF = {
    "resident": "resident",
    "reserved": "reserved",
    "heaps": "of the C library's heaps",
}
OF_SITES = ("line", "function", "module", "op")
_OF_ONE = {"kind": "--by", "at": "--at"}
MOMENTS = {
    "peak": "at the peak",
    "oom": "at the first failed request",
    "end": "at the end",
}
UNKNOWN_SITES = (
    "the trace does not say who asked: record again with --stacks site, the default"
)
_UNKNOWN_FRAMES = (
    "the snapshot does not say who asked: call "
    'torch.cuda.memory._record_memory_history(enabled="state") at the program\'s start'
)


@click.command("stats")
@click.argument("source", nargs=-1, required=True, metavar="TRACE|SNAPSHOT|PLAN...")
@arguments.moment
@arguments.by(get_args(By))
@click.option(
    "--cycles",
    is_flag=True,
    help="Show what Python's cycle collector freed, and by which cycle it was held.",
)
@arguments.rows
@arguments.device
@arguments.ray("read many traces")
@arguments.json_
def command(
    source: tuple[str, ...],
    at: str,
    kind: By,
    cycles: bool,
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
        arguments.refuse({"cycles": "--cycles"}, "for one trace; leave it out")
        _of_many([_Reading(path, device, at, kind) for path in paths], most, ray, json_)
        return
    if ray is not None:
        raise UsageError("--ray is for many traces; leave it out")
    if cycles:
        arguments.refuse(_OF_ONE, "for the table of what is live; leave --cycles out")
    given = arguments.trace_or_plan(paths[0], device)
    if isinstance(given, Plan):
        arguments.refuse(
            {**_OF_ONE, "cycles": "--cycles", "most": "-n"},
            f"for traces: {paths[0]} is a plan, of sizes and offsets alone; name the "
            "trace that it was made from",
        )
        _of_plan(given, paths[0], json_)
        return
    found = summarize(given, at)
    _check_kind(found, kind)
    if json_:
        entries = _entries(found) | {"saving": _saving_entries(given)}
        show.as_json(entries, "memplan.stats")
        return
    show.facts(f"memplan: {paths[0]}", _rows(found, at))
    if cycles:
        _show_cycles(found.cycles, most)
    elif len(found.at.chosen):
        title = f"live {_moment(found, at)}, {format_bytes(found.at.bytes)}"
        site_table.shown(f"{title}, by {kind}", kind, found.at.by(kind), most)
    if len(found.buffers) and not found.has_sites and kind in OF_SITES:
        show.note(UNKNOWN_SITES if given.info.history else _UNKNOWN_FRAMES)
    if not show.is_hushed() and (given.info.history or len(found.buffers)):
        named = [str(paths[0]), *([] if device is None else ["--device", str(device)])]
        show.line(f"  {_next(found, at, shlex.join(named))}")


def _show_cycles(found: Collected | None, most: int) -> None:
    """What the collector freed, by cycle and site."""
    if found is None:
        show.line("Python's cycle collector freed nothing that is recorded")
        return
    title = f"freed by Python's cycle collector, {format_bytes(found.bytes)}"
    if len(found.shares) > most:
        title += f"; the {most:,} largest (-n shows more)"
    columns = ["cycle", "closed at", "made at", "bytes", "buffers"]
    rows = [
        [
            each.cycle or UNKNOWN,
            each.place or UNKNOWN,
            site_table.place(each.site),
            format_bytes(each.bytes),
            f"{each.buffers:,}",
        ]
        for each in found.shares[:most]
    ]
    show.table(title, columns, rows, 3)


def _check_kind(found: Stats, kind: By) -> None:
    """Raise UsageError where the trace cannot tell what buffers are summed by."""
    if kind == "holder" and not found.trace.info.holders:
        raise UsageError(
            "--by holder: the trace names no holders; a recording without --stacks "
            "none does, if variables hold tensors when it ends"
        )
    if kind == "step" and not found.trace.info.history:
        raise UsageError(f"--by step: {NO_HISTORY}; choose another --by")


def _entries(found: Stats) -> dict[str, Any]:
    """The result as JSON has it; the sites' bytes sum to those of `at`."""
    info, at, oom, reserved = found.trace.info, found.at, found.oom, found.reserved
    entries = {
        **show.picked(info, "device", "rank", "dropped_events", "complete", "history"),
        **show.picked(found, "steps", "kept_at_end_bytes", "leak", "cycles"),
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
    if not info.history:  # its moments have no times
        entries["peak_time"] = entries["at"]["seconds"] = None
        if reserved:
            entries["reserved"]["peak_time"] = None
    return entries


def category_entries(live: Live) -> dict[str, int]:
    """Bytes by category, all of them; they sum to what is live."""
    return {category.name.lower(): live.categories[category] for category in Category}


def _reserved_entries(held: Reserved | None) -> dict[str, Any] | None:
    sizes = {"allocated_bytes": "allocated", "split_bytes": "split"}
    sizes |= {"empty_bytes": "empty", "largest_free_bytes": "largest_free"}
    return None if held is None else show.picked(held, bytes="reserved", **sizes)


def _saving_entries(trace: Trace) -> dict[str, Any] | None:
    found = saving(trace)
    sizes = {
        f"{name}_bytes": name
        for name in ("now", "now_least", "planned", "planned_least")
    }
    return None if found is None else show.picked(found, "of", "pays", **sizes)


def _rows(found: Stats, at: str) -> list[tuple[str, str]]:
    info = found.trace.info
    if not info.history:
        return _held_rows(found)
    rows = [("peak live", f"{format_bytes(found.peak.bytes)} {_moment(found, 'peak')}")]
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
        if found.leak is not None and found.leak.holder is not None:
            rows.append(("", f"held by {found.leak.holder.text}"))
        elif found.leak is not None and _collected_later(found, found.leak):
            rows.append(("", "the cycle collector freed buffers of this line later"))
    rows += _cycle_rows(found)
    if found.oom is not None:
        rows += oom_rows(found)
    if count := info.dropped_events:
        rows.append(("dropped", f"{count:,} events: the peak may be higher"))
    if not info.complete:
        missing = "its end was cut off, or its beginning: more may have been live"
        rows.append(("incomplete", missing))
    return rows


def _held_rows(found: Stats) -> list[tuple[str, str]]:
    """Of a snapshot without a history."""
    count = len(found.at.chosen)
    many = f"{count:,} block{'s' * (count != 1)}"
    rows = [("live", f"{format_bytes(found.at.bytes)} in {many}")]
    if found.reserved is not None:
        held = found.reserved.at
        part, whole = map(format_bytes, (held.allocated, held.reserved))
        rows.append(("allocated", f"{part} of {whole} reserved"))
        rows += _idle("fragmented", held)
    return [*rows, ("history", "none: peaks, lifetimes and leaks are not known")]


def oom_rows(found: Stats) -> list[tuple[str, str]]:
    """The first request that failed, which there is: what was live, and had."""
    failed = found.oom
    assert failed is not None
    asked = f"{format_bytes(failed.requested_bytes)} could not be had"
    live = format_bytes(failed.live.bytes)
    when = f"after {format_seconds(failed.seconds)}, {live} live"
    if failed.count > 1:
        when += f"; {failed.count - 1:,} more failed later"
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


def _collected_later(found: Stats, leak: Leak) -> bool:
    cycles = found.cycles
    return cycles is not None and leak.site in {each.site for each in cycles.shares}


def _cycle_rows(found: Stats) -> list[tuple[str, str]]:
    """What waited for Python's collector, where it is not little."""
    cycles = found.cycles
    if cycles is None or not has_cycles(found):
        return []
    most = cycles.shares[0]
    many = f"{format_bytes(cycles.bytes)} in {cycles.buffers:,} buffers"
    rows = [("cycles", f"{many} were freed by Python's cycle collector alone")]
    if most.site.file:
        rows.append(("", f"most made at {described(most.site)}"))
    if most.cycle:
        closed = f", closed at {most.place}" if most.place else ""
        rows.append(("", f"kept by {most.cycle}{closed}"))
    return rows


def _moment(found: Stats, at: str) -> str:
    live = found.peak if at == "peak" else found.at
    if not found.trace.info.history:
        return "when the snapshot was taken"
    when = f"after {format_seconds(live.seconds)}"
    if at == "end" and found.steps:
        return f"at the end of step {live.step - 1}, {when}"
    if at in MOMENTS:
        when = f"{MOMENTS[at]}, {when}"
    return f"{when}, in step {live.step}" if found.steps else when


def _next(found: Stats, at: str, name: str) -> str:
    """What to do next; at: the moment shown; name: the trace's, for a shell."""
    if found.oom is not None and at != "oom":
        return f"next: memplan stats {name} --at oom shows what was live then"
    if found.leak is not None and at != "end":
        by = " --by holder" if found.trace.info.holders else ""
        return f"next: memplan stats {name} --at end{by} shows what was kept"
    if found.leak is not None or not found.trace.info.history:
        return f"next: memplan report {name} shows every block"
    return _plan_saves(found, name)


def _plan_saves(found: Stats, name: str) -> str:
    """What a plan would save."""
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
    least = format_bytes(saved.least)
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
    at: str
    kind: By

    def run(self) -> _Found:
        given = arguments.trace_or_plan(self.path, self.device)
        if isinstance(given, Plan):
            raise UsageError(f"{self.path} is a plan; of many files, name traces only")
        try:
            found = summarize(given, self.at)
            _check_kind(found, self.kind)
        except UsageError as error:
            raise UsageError(f"{self.path}: {error.shell}") from None
        head = {"path": str(self.path), "schema": "memplan.stats", "version": 1}
        entries = head | _entries(found)
        if not len(found.at.chosen):
            return _Found(entries, "", found.has_sites)
        top = found.at.by(self.kind)[0]
        name = site_table.names(self.kind, top.name, top.sites)[0]
        return _Found(entries, name, found.has_sites)


@dataclass(frozen=True)
class _Found:
    """What is in a trace, as JSON has it; the part with most bytes, as people read it,
    or "" where nothing is live."""

    entries: dict[str, Any]
    most: str
    has_sites: bool


def _of_many(readings: list[_Reading], most: int, ray: str | None, json_: bool) -> None:
    """Print a row for each trace, what differs most first.

    ray: the address of a cluster that reads them; its nodes must see the files.
    """
    at, kind = readings[0].at, readings[0].kind
    if ray is not None:  # nodes work in folders of theirs
        readings = [replace(each, path=each.path.absolute()) for each in readings]
    alone = ray is None and len(readings) < _ALONE
    found = sweep(readings, processes=1 if alone else None, address=ray)
    middle = statistics.median(map(_size, found))
    found = sorted(found, key=lambda each: -abs(_size(each) - middle))
    if json_:
        peaks = statistics.median(each.entries["peak_bytes"] for each in found)
        entries = {"median_peak_bytes": peaks, "median_at_bytes": middle}
        entries["traces"] = [each.entries for each in found]
        show.as_json(entries, "memplan.stats-many")
        return
    name = "peak" if at == "peak" else "live"
    title = f"{len(found):,} traces, median {name} {format_bytes(middle)}"
    if at != "peak":
        when = f"in step {at}" if at.isdecimal() else f"at {at}"
        title += f" {MOMENTS.get(at, when)}"
    if len(found) > most:
        title += f"; the {most:,} that differ most (-n shows more)"
    held = "most at" if kind == "line" else f"most, by {kind}"
    columns = ["trace", held, "rank", name, "from median", "leak a step"]
    show.table(title, columns, [_row(each, middle) for each in found[:most]], 2)
    if kind in OF_SITES and not any(each.has_sites for each in found):
        show.note(UNKNOWN_SITES)


def _size(each: _Found) -> int:
    """Bytes that are live at the moment that was asked for."""
    size: int = each.entries["at"]["bytes"]
    return size


def _row(each: _Found, middle: float) -> list[str]:
    size, leak = _size(each), each.entries["leak"]
    away = size - middle
    share = f" ({100 * away / middle:+.1f} %)" if middle else ""
    sign = "+" if away > 0 else ""
    return [
        each.entries["path"],
        each.most,
        str(each.entries["rank"]),
        format_bytes(size),
        f"{sign}{format_bytes(away)}{share}" if away else "0 B",
        format_bytes(leak["bytes_per_step"]) if leak else "",
    ]
