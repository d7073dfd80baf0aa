"""memplan diff"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import click

from memplan.cli import arguments, show, site_table
from memplan.cli.stats import MOMENTS, OF_SITES, UNKNOWN_SITES, category_entries
from memplan.formats.plain import plain
from memplan.reporting.align import Function, Pair
from memplan.reporting.diff import By, Change, Diff, diff, responsible
from memplan.reporting.stats import Stats
from memplan.trace.read import read_trace
from memplan.trace.sites import Site
from memplan.units import format_bytes


@click.command("diff")
@arguments.existing("before", metavar="BEFORE")
@arguments.existing("after", metavar="AFTER")
@arguments.moment
@arguments.by(get_args(By))
@arguments.rows
@arguments.device
@arguments.json_
def command(
    before: Path,
    after: Path,
    at: str,
    kind: By,
    most: int,
    device: int | None,
    json_: bool,
) -> None:
    """Compare the live bytes of two recordings, at their peaks or another moment.

    Lines are matched by their function, module, operator and order. The folder and
    shifted lines do not matter; renamed and moved functions are matched, too. BEFORE
    and AFTER are traces or memory snapshots of PyTorch.

    \b
    Example: memplan diff main.parquet branch.parquet
    """
    one, other = (read_trace(path, device=device) for path in (before, after))
    found = diff(one, other, at)
    rows = found.by(kind)
    if json_:
        show.as_json(_entries(found, kind, rows), "memplan.diff")
        return
    show.facts(f"memplan: {before} -> {after}", _facts(found, at, kind, most))
    if rows:
        _table(f"{_moment(found, at)}, by {kind}", kind, rows, most)
    most_grown = responsible(rows)
    if most_grown is not None:
        row, share = most_grown
        name = (
            f"{kind} {row.name}"
            if kind != "line"
            else site_table.place(_shown(row.pairs[0]))
        )
        percent = math.floor(100 * share)
        show.line(f"  {name} is responsible for {percent} % of the growth")
    _notes(found, kind)


def _notes(found: Diff, kind: By) -> None:
    """What makes the comparison less than it may seem."""
    one, other = found.devices
    if one != other:
        show.note(
            f"BEFORE is of {one} memory, AFTER of {other}: kernels, scratch and "
            "rounding differ, and some sites may differ only in name"
        )
    for side, stats in (("BEFORE", found.before), ("AFTER", found.after)):
        if kind in OF_SITES and len(stats.trace) and not stats.has_sites:
            show.note(f"{side}: {UNKNOWN_SITES}")


def _entries(found: Diff, kind: By, rows: tuple[Change, ...]) -> dict[str, Any]:
    def side(stats: Stats) -> dict[str, object]:
        known = stats.trace.info.history  # or else moments have no times
        at = show.picked(stats.at, "bytes", "step")
        return {
            "device": stats.trace.info.device,
            "peak_bytes": stats.peak.bytes,
            "peak_time": stats.peak.seconds if known else None,
            "at": at | {"seconds": stats.at.seconds if known else None},
            "categories": category_entries(stats.at),
        }

    most_grown = responsible(rows)
    return {
        "before": side(found.before),
        "after": side(found.after),
        "same_device": found.devices[0] == found.devices[1],
        "delta_bytes": found.delta,
        "sites": [
            plain(one.site)
            | show.picked(one, "before", "after", "delta")
            | {"before_site": plain(pair.before), "after_site": plain(pair.after)}
            | {"move": pair.move}
            for one in found.sites
            for pair in one.pairs
        ],
        "moves": [
            {
                "move": each.move,
                "before": show.picked(each.before, "file", function="name"),
                "after": show.picked(each.after, "file", function="name"),
            }
            for each in found.moves
        ],
        "by": kind,
        "rows": [show.picked(row, "name", "before", "after", "delta") for row in rows],
        "responsible": most_grown
        and {"name": most_grown[0].name, "share": most_grown[1]},
    }


def _facts(found: Diff, at: str, kind: By, most: int) -> list[tuple[str, str]]:
    before, after = found.before.at.bytes, found.after.at.bytes
    share = f" ({100 * found.delta / before:+.2f} %)" if before else ""
    change = f"{_signed(found.delta)}{share}" if found.delta else "no change"
    name = "peak live" if _moment(found, at) == MOMENTS["peak"] else "live"
    sizes = [(name, before, after, change)]
    for each in found.categories if kind != "category" else ():  # those are the table
        sizes.append((each.name, each.before, each.after, _signed(each.delta)))
    rows = [
        (name, f"{format_bytes(before)} -> {format_bytes(after)}: {change}")
        for name, before, after, change in sizes
    ]
    for move in ("moved", "renamed"):
        texts = [
            f"{_named(each.before)} -> {_named(each.after)}"
            for each in found.moves
            if each.move == move
        ]
        if len(texts) > most:
            texts[most:] = [f"{len(texts) - most:,} others"]
        rows += [(move if not i else "", text) for i, text in enumerate(texts)]
    return rows


def _named(function: Function) -> str:
    return f"{site_table.short_file(function.file)} {function.name}".strip()


def _table(title: str, kind: By, rows: tuple[Change, ...], most: int) -> None:
    columns = [*(["where", "module", "operator"] if kind == "line" else [kind])]
    texts = [
        site_table.names(kind, row.name, [*map(_shown, row.pairs)])
        for row in rows[:most]
    ]
    was = [_was(kind, row) for row in rows[:most]]
    if any(was):
        columns.insert(1, "was")
        for names, text in zip(texts, was, strict=True):
            names.insert(1, text)
    cells = [
        [*names, *map(format_bytes, (row.before, row.after)), _signed(row.delta)]
        for names, row in zip(texts, rows, strict=False)
    ]
    if left := rows[most:]:
        blank = [""] * (len(columns) + 1)
        delta = sum(change.delta for change in left)
        cells.append([f"{len(left):,} others", *blank, _signed(delta)])
    show.table(title, [*columns, "before", "after", "change"], cells, len(columns))


def _shown(pair: Pair) -> Site:
    """What a row is named after: the line in AFTER, or the one that is gone."""
    return pair.site if pair.line_gone else pair.place


def _was(kind: By, row: Change) -> str:
    """Where a row's code was before, if elsewhere; "new" or "gone" if it is in one
    recording only."""
    old = [pair for pair in row.pairs if pair.before]
    if not old:
        return "new" if row.pairs else ""
    if not any(pair.after for pair in row.pairs):
        return "gone"
    old.sort(key=lambda pair: pair.after is None)  # what is matched tells more
    first, *others = dict.fromkeys(_origin(kind, pair) for pair in old)
    return f"{first} +{len(others)}" if first and others else first


def _origin(kind: By, pair: Pair) -> str:
    before = pair.before or Site()
    if kind == "line" and pair.move:
        return f"{pair.move} from {site_table.place(before)}"
    if kind == "line" and before.line != pair.place.line:
        return f"line {before.line}"
    if kind == "function" and pair.move:
        return f"{pair.move} from {_named(Function.of(before))}"
    if kind == "module" and before.module != pair.place.module:
        return f"renamed from {before.module}"
    return ""


def _moment(found: Diff, at: str) -> str:
    if not all(each.trace.info.history for each in (found.before, found.after)):
        return "live"
    step = f"at the largest moment of step {at}" if at.isdigit() else f"at {at}"
    return MOMENTS.get(at, step)


def _signed(delta: int) -> str:
    return ("+" if delta > 0 else "") + format_bytes(delta)
