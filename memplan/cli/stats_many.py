"""memplan stats, of many traces: a row a rank, what differs most first."""

from __future__ import annotations

import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from memplan.cli import show, site_table, sources
from memplan.core.plan import Plan
from memplan.errors import UsageError
from memplan.reporting.attribution import Site
from memplan.reporting.stats import entries, summarize
from memplan.units import format_bytes

_ALONE = 4  # so few are read faster than processes start


def command(paths: list[Path], most: int, device: int | None, json_: bool) -> None:
    """Print a row for each trace. Raises what reading them does."""
    found = _all_entries(paths, device)
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


def _all_entries(paths: list[Path], device: int | None) -> list[dict[str, Any]]:
    if len(paths) < _ALONE:
        return [_entries(path, device) for path in paths]
    workers = min(len(paths), len(os.sched_getaffinity(0)))
    if workers == 1:
        return [_entries(path, device) for path in paths]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(_entries, paths, repeat(device)))


def _entries(path: Path, device: int | None = None) -> dict[str, Any]:
    given = sources.trace_or_plan(path, device)
    if isinstance(given, Plan):
        raise UsageError(f"{path} is a plan; of many files, name traces only")
    return dict(entries(summarize(given)))


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
