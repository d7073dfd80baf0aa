"""memplan stats, of many traces: a row a rank, what differs most first."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memplan.cli import show, site_table, sources
from memplan.core.plan import Plan
from memplan.errors import UsageError
from memplan.reporting.stats import entries, summarize
from memplan.sweep import sweep
from memplan.trace.sites import Site
from memplan.units import format_bytes

_ALONE = 4  # so few are read faster than processes start


@dataclass(frozen=True)
class _Reading:
    """One trace to be read, here or where another process runs: what is in it."""

    path: Path
    device: int | None

    def run(self) -> dict[str, Any]:
        given = sources.trace_or_plan(self.path, self.device)
        if isinstance(given, Plan):
            raise UsageError(f"{self.path} is a plan; of many files, name traces only")
        return dict(entries(summarize(given)))


def command(
    paths: list[Path], most: int, device: int | None, ray: str | None, json_: bool
) -> None:
    """Print a row for each trace. Raises what reading them does.

    ray: the address of a cluster that reads them; its nodes must see the files.
    """
    if ray is not None:
        paths = [path.absolute() for path in paths]  # nodes work in folders of theirs
    readings = [_Reading(path, device) for path in paths]
    alone = ray is None and len(paths) < _ALONE
    found = sweep(readings, processes=1 if alone else None, address=ray)
    middle = statistics.median(each["peak_bytes"] for each in found)
    order = sorted(
        zip(paths, found, strict=True),
        key=lambda pair: -abs(pair[1]["peak_bytes"] - middle),
    )
    if json_:
        traces = [{"path": str(path), **each} for path, each in order]
        show.as_json(
            {
                "schema": "memplan.stats-many",
                "version": 1,
                "median_peak_bytes": middle,
                "traces": traces,
            }
        )
        return
    rows = [_row(path, each, middle) for path, each in order]
    title = f"{len(rows):,} traces, median peak {format_bytes(middle)}"
    columns = ["trace", "most at", "rank", "peak", "from median", "leak a step"]
    if len(rows) > most:
        title += f"; the {most:,} that differ most (-n shows more)"
    show.table(title, columns, rows[:most], 2)


def _row(path: Path, each: dict[str, Any], middle: float) -> list[str]:
    peak, leak = each["peak_bytes"], each["leak"]
    away = peak - middle
    share = f" ({100 * away / middle:+.1f} %)" if middle else ""
    top = each["sites"][0] if each["sites"] else {}
    site = Site(*(top.get(key, "") for key in ("file", "line", "function")))
    sign = "+" if away > 0 else ""
    return [
        str(path),
        site_table.place(site) if site.file else "",
        str(each["rank"]),
        format_bytes(peak),
        f"{sign}{format_bytes(away)}{share}" if away else "0 B",
        format_bytes(leak["bytes_per_step"]) if leak else "",
    ]
