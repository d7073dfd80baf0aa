"""memplan diff"""

from __future__ import annotations

from pathlib import Path

import click

from memplan.cli import arguments, show, site_table
from memplan.cli.stats import category_entries
from memplan.formats.plain import plain
from memplan.reporting.diff import Diff, diff
from memplan.reporting.stats import Stats
from memplan.trace.read import read_trace
from memplan.units import format_bytes


@click.command("diff")
@arguments.existing("before", metavar="BEFORE")
@arguments.existing("after", metavar="AFTER")
@arguments.rows
@arguments.device
@arguments.json_
def command(
    before: Path, after: Path, most: int, device: int | None, json_: bool
) -> None:
    """Compare the live bytes at the peaks of two recordings.

    Rows are functions with their module and operator, so moved lines do not matter.
    BEFORE and AFTER are traces or memory snapshots of PyTorch.

    \b
    Example: memplan diff main.parquet branch.parquet
    """
    found = diff(read_trace(before, device=device), read_trace(after, device=device))
    if json_:
        show.as_json(_entries(found), "memplan.diff")
        return
    show.facts(f"memplan: {before} -> {after}", _rows(found))
    one, other = found.devices
    if one != other:
        show.note(
            f"BEFORE is of {one} memory, AFTER of {other}: kernels, scratch and "
            "rounding differ, and some sites may differ only in name"
        )
    if found.sites:
        rows = [
            [
                site_table.place(change.site),
                *(change.site.module, change.site.operator),
                *map(format_bytes, (change.before, change.after)),
                _signed(change.delta),
            ]
            for change in found.sites[:most]
        ]
        left = found.sites[most:]
        if left:
            delta = sum(change.delta for change in left)
            rows.append([f"{len(left):,} others", "", "", "", "", _signed(delta)])
        columns = ["where", "module", "operator", "before", "after", "change"]
        show.table("at the peak, by function, module and operator", columns, rows, 3)


def _entries(found: Diff) -> dict[str, object]:
    def side(stats: Stats) -> dict[str, object]:
        return {
            "device": stats.trace.info.device,
            **show.picked(stats.peak, peak_bytes="bytes", peak_time="seconds"),
            "categories": category_entries(stats.peak),
        }

    return {
        "before": side(found.before),
        "after": side(found.after),
        "same_device": found.devices[0] == found.devices[1],
        "delta_bytes": found.delta,
        "sites": [
            plain(one.site) | show.picked(one, "before", "after", "delta")
            for one in found.sites
        ],
    }


def _rows(found: Diff) -> list[tuple[str, str]]:
    before, after = found.before.peak.bytes, found.after.peak.bytes
    share = f" ({100 * found.delta / before:+.2f} %)" if before else ""
    change = f"{_signed(found.delta)}{share}" if found.delta else "no change"
    rows = [("peak live", before, after, change)]
    for each in found.categories:
        rows.append((each.name, each.before, each.after, _signed(each.delta)))
    return [
        (name, f"{format_bytes(before)} -> {format_bytes(after)}: {change}")
        for name, before, after, change in rows
    ]


def _signed(delta: int) -> str:
    return ("+" if delta > 0 else "") + format_bytes(delta)
