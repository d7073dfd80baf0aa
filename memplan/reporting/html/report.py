"""The report of a trace, and of a plan made from it: one HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from memplan.core.plan import Plan
from memplan.reporting.html.scene import SceneMaker
from memplan.reporting.live import live_at
from memplan.reporting.stats import Stats, has_cycles, summarize
from memplan.text import printable
from memplan.trace.sites import Site
from memplan.trace.trace import Action, Trace
from memplan.units import format_bytes, format_gap, format_seconds
from memplan.version import __version__

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = (
    *("decode", "words", "range", "canvas", "page", "timeline", "boxes"),
    *("liveset", "flame", "tooltip", "planned", "main"),
)
_NO_STACKS = (
    "The trace does not say who asked. Record it again: sites are noted by default, "
    "whole stacks with --stacks python."
)


def report(
    trace: Trace, plan: Plan | None = None, title: str = "", *, paths: bool = True
) -> str:
    """The report as HTML: one page without any address in it, that a browser draws
    from a file.

    plan: one made from the trace, to be shown beside what was recorded. title: the
    program's name unless given. paths: whether files keep their folders. Raises
    InputError where the plan was made from another trace.
    """
    import jinja2

    maker = SceneMaker(trace, paths)
    empty = not len(maker.lives)
    scene = maker.made(plan) if not empty else None
    by = printable(trace.info.producer)
    style = (_ASSETS / "report.css").read_text(encoding="utf-8")
    script = _script()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html.j2").render(
        title=printable(title or trace.info.program.script or "a recorded run"),
        policy=_policy(style, script),
        style=_trusted(style),
        script=_trusted(script),
        scene="" if scene is None else _trusted(_json(scene)),
        columns="" if empty else maker.columns.encoded(),
        facts=[printable(fact) for fact in _facts(maker)],
        figures=_figures(summarize(trace), plan),
        history=trace.info.history,
        warnings=_warnings(trace),
        empty=empty,
        flame_hint="" if any(s != Site() for s in maker.lives.sites) else _NO_STACKS,
        producer=f"memplan {__version__}",
        notes=[f"recorded by {by}"] if by else [],
    )


def _script() -> str:
    """All of the page's script, as one function that leaves no names behind."""
    files = [(_ASSETS / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS]
    return '"use strict";\n{\n' + "\n".join(files) + "}\n"


def _policy(style: str, script: str) -> str:
    """What the page may do: run this script, use this style, and reach nobody."""
    return (
        f"default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _json(entries: Mapping[str, object]) -> str:
    """JSON that ends no element of HTML, whatever the names in it."""
    text = json.dumps(entries, separators=(",", ":"))  # ASCII
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _trusted(text: str) -> object:
    """Text of ours that stands in the page as it is."""
    import markupsafe

    return markupsafe.Markup(text)


def _facts(maker: SceneMaker) -> list[str]:
    info = maker.trace.info
    facts = [f"{len(maker.lives):,} buffer{'s' * (len(maker.lives) != 1)}"]
    if info.history:
        facts.append(f"{maker.lives.ticks:,} allocations and frees")
    else:
        facts.append("a snapshot without a history")
    if len(maker.lives.bounds):
        facts.append(f"steps begun: {len(maker.lives.bounds):,}")
    if len(maker.lives.time_s) and info.history:
        facts.append(format_seconds(float(maker.lives.time_s[-1])))
    facts.append(info.device)
    if info.program.torch:
        facts.append(f"PyTorch {info.program.torch}")
    if info.ranks > 1:
        facts.append(f"rank {info.rank} of {info.ranks}")
    if info.started:
        facts.append(info.started)
    return facts


def _figure(
    name: str, value: str, note: str = "", strong: bool = False
) -> dict[str, object]:
    return {"name": name, "value": value, "note": note, "strong": strong}


def _not_let_go(stats: Stats) -> Iterator[tuple[str, str, str]]:
    """What grows, and what waited for Python's cycle collector."""
    if (leak := stats.leak) is not None:
        note = f"made at {os.path.basename(leak.site.place)}"
        if leak.holder is not None:
            note = f"held by {leak.holder.name}"
        yield "grows", f"{format_bytes(leak.bytes_per_step)} a step", note
    if stats.cycles is not None and has_cycles(stats):
        kept = stats.cycles.shares[0].cycle or "by Python's collector alone"
        yield "freed in cycles", format_bytes(stats.cycles.bytes), kept


def _figures(stats: Stats, plan: Plan | None) -> list[dict[str, object]]:
    """The numbers at the top: those of `memplan stats`, by their names there."""
    info, peak = stats.trace.info, stats.peak
    found: list[dict[str, object]] = []

    def add(name: str, value: str, note: str = "", strong: bool = False) -> None:
        found.append(_figure(name, value, note, strong))

    if not info.history:
        add("live", format_bytes(peak.bytes), strong=True)
    elif stats.buffers.ticks:
        when = f"after {format_seconds(peak.seconds)}"
        add("peak live", format_bytes(peak.bytes), when, True)
        if stats.steps > 2:
            kept = format_bytes(stats.kept_at_end_bytes)
            add("kept at end", kept, "made two steps before")
        else:
            add("live at the end", format_bytes(live_at(stats.buffers, "end").bytes))
        found += [_figure(*each) for each in _not_let_go(stats)]
    if info.device == "cuda":  # where a host's figure says nothing
        if stats.reserved is not None:
            note = "at most, by torch" if info.history else "by torch"
            add("reserved", format_bytes(stats.reserved.bytes), note)
    elif info.run.peak_rss_bytes:
        add("process, resident", format_bytes(info.run.peak_rss_bytes))
    if plan is not None:
        hot = format_bytes(plan.peak)
        if plan.lanes:
            lane = format_bytes(plan.lane_bytes)
            note, of = f"{plan.lanes:,} lanes of {lane}", "a thread's step: "
        elif plan.arena_bytes > plan.peak:
            note, of = f"of transient tensors, hot step {hot}", "the hot step: "
        else:
            note, of = "of transient tensors", ""
        add("plan's arena", format_bytes(plan.arena_bytes), note, True)
        gap = "proved optimal" if plan.proved_optimal else f"gap {format_gap(plan.gap)}"
        if plan.lifespan_bytes:
            gap = "all of the largest sizes"
        add("lower bound", format_bytes(plan.lower_bound), of + gap)
    return found


def _warnings(trace: Trace) -> list[str]:
    found = []
    failed = trace.events.requested_size[trace.events.action == Action.OOM].tolist()
    if failed:
        sizes = ", ".join(format_bytes(size) for size in failed[:3])
        more = f" and {len(failed) - 3:,} more" if len(failed) > 3 else ""
        found.append(f"Out of memory: a request for {sizes}{more} failed.")
    if not trace.info.complete:
        why = "it was cut off, or its oldest events were pushed out"
        found.append(f"The recording is not complete: {why}.")
    if trace.info.dropped_events:
        count = trace.info.dropped_events
        missing = f"{count:,} events are missing from the trace"
        found.append(f"{missing}: live bytes are understated.")
    return found
