"""The tables of bench_paper, none wider than 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from bench.paper import Device, Result

WIDTH = 100
_MIB = 1 << 20
# What the default allocator is called, and what it holds, on either device.
HELD = {
    "cpu": "resident at most after the warm-up, but for what a tiny ResNet run in the "
    "same way has resident ({base}): scratch of operators and what the C library keeps "
    "are part of it, in both runs.",
    "cuda": "reserved at most: by torch's own allocator (default), by it with "
    "expandable_segments (expand.), and by memplan with arena and cache (planned).",
}


def memory_table(results: Sequence[Result], device: Device) -> str:
    """The paper's Figure 2 in figures, MiB."""
    cuda = device.kind == "cuda"
    names = ["default", *(["expandable"] if cuda else []), "planned"]
    widths = (16, 5, 8, *(8,) * len(names), 6, 8, 8, 8, 6)
    held = [{"expandable": "expand."}.get(name, name) for name in names]
    head = ("program", "batch", "retained", *held, "ratio")
    groups = _row(
        ("", "", "", "held", *[""] * len(names), "released", "", "", ""), widths
    )
    lines = [
        f"Memory held (Figure 2), {device.title}, MiB",
        groups,
        _row((*head, "default", "arena", "bound", "ratio"), widths),
    ]
    for one in results:
        default, arena = one.released("default"), int(one.solved["arena_bytes"])
        cells = (
            one.case.network,
            one.case.batch,
            _mib(one.retained),
            *(_mib(one.held.get(name)) for name in names),
            _ratio(one.held.get("planned"), one.held.get("default")),
            _mib(default),
            _mib(arena),
            _mib(int(one.solved["lower_bound"])),
            _ratio(arena, default),
        )
        lines.append(_row(cells, widths))
    bases = {one.case.mode: f"{one.case.mode} {_mib(one.base)} MiB" for one in results}
    held_means = HELD[device.kind].format(base=", ".join(bases.values()))
    ran = any(one.held for one in results)
    notes = (
        "retained: bytes that live on from step to step, as recorded (the paper's red "
        "bars); no plan changes them.",
        f"held: {held_means}" if ran else "",
        "released: gone by the end of each step (blue bars): what default holds beside "
        "the retained; the arena of the plan; the lower bound of any plan.",
        _elastic(results),
        f"I: inference, batch 1. {_served(results)}",
    )
    return "\n".join([*lines, *_notes(notes)])


def solve_table(results: Sequence[Result]) -> str:
    """The paper's Figure 4 in figures: best fit's time; and what `auto` proves."""
    widths = (16, 5, 8, 10, 10, 10, 10, 10, 10)
    head = ("program", "batch", "buffers", "best fit", "peak", "auto", "peak")
    lines = [
        "Planning (Figure 4): milliseconds, and peaks in MiB",
        _row((*head, "bound", "status"), widths),
    ]
    notes: dict[str, list[str]] = {}
    for one in results:
        fit, auto = one.solved["bestfit"], one.solved["auto"]
        cells = (
            one.case.network,
            one.case.batch,
            f"{one.solved['buffers']:,}",
            _milliseconds(fit["seconds"]),
            _mib(fit["peak"]),
            _milliseconds(auto["seconds"]),
            _mib(auto["peak"]),
            _mib(auto["lower_bound"]),
            auto["status"],
        )
        lines.append(_row(cells, widths))
        label = f"{one.case.network} {one.case.batch}"
        notes.setdefault(auto["note"], []).append(label)
    how = (f"auto, {', '.join(labels)}: {note}" for note, labels in notes.items())
    return "\n".join([*lines, *_notes(how)])


def proof_table(results: Sequence[Result]) -> str:
    """The paper's section 5.2: what is proved of inference; "" if nothing was asked."""
    widths = (12, 10, 8, 11, 12, 12, 9, 10)
    head = ("program", "problem", "buffers", "method", "peak", "bound", "status", "s")
    lines = ["Inference proved optimal (section 5.2): bytes", _row(head, widths)]
    notes: dict[str, list[str]] = {}
    for one in results:
        for proof in one.solved.get("proofs", ()):
            cells = (
                one.case.network,
                proof["problem"],
                f"{proof['buffers']:,}",
                proof["method"],
                f"{proof['peak']:,}",
                f"{proof['lower_bound']:,}",
                proof["status"],
                f"{proof['seconds']:.4f}",
            )
            lines.append(_row(cells, widths))
            if proof["note"]:
                label = f"{one.case.network} {proof['problem']}"
                key = f"{proof['method']}: {proof['note']}"
                notes.setdefault(key, []).append(label)
    if len(lines) == 2:
        return ""
    how = (f"{note} ({', '.join(labels)})" for note, labels in notes.items())
    return "\n".join([*lines, *_notes(how)])


def _elastic(results: Sequence[Result]) -> str:
    """What arena and bound mean where steps differ in their sizes; "" if none do."""
    names = {one.case.network: None for one in results if one.solved["elastic"]}
    if not names:
        return ""
    return (
        f"{', '.join(names)}: steps differ in their sizes; arena and bound are for one "
        "in which every request is as large as it ever was while recording, which may "
        "be more than any step measured needs."
    )


def _served(results: Sequence[Result]) -> str:
    """How the plans served the runs under them."""
    reports = [one.runs["planned"]["report"] for one in results if one.runs]
    if not reports:
        return "Nothing was run."
    keys = (
        "requests",
        "planned_requests",
        "online_requests",
        "fallback_requests",
        "conflicts",
    )
    total, planned, online, outside, conflicts = (
        f"{sum(of[key] for of in reports):,}" for key in keys
    )
    anew = sum(len(report["replans"]) for report in reports)
    return (
        f"Under the plans: {total} requests in hot steps, {planned} served as planned, "
        f"{online} elsewhere in the arena, {outside} outside it; {conflicts} "
        f"conflicts; planned anew {anew:,} times, which the arena column leaves out."
    )


def _notes(notes: Iterable[str]) -> list[str]:
    return [
        line
        for note in notes
        for line in textwrap.wrap(note, WIDTH, subsequent_indent="  ")
    ]


def _mib(count: int | None) -> str:
    return "-" if count is None else f"{count / _MIB:,.1f}"


def _ratio(above: int | None, below: int | None) -> str:
    if above is None or below is None or below <= 0:
        return "-"
    return f"{above / below:.3f}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = cells
    body = "".join(f" {c:>{w}}" for c, w in zip(rest, widths[1:], strict=True))
    return f"{first:{widths[0]}}{body}".rstrip()
