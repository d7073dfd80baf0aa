"""Traces and problems for other programs: one format per module, and a row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True)
class Exporter:
    """A format that `convert` writes.

    ends: of the names of its files. function: of `memplan.trace`, takes a Trace and a
    path, or, `of_problem`, a Problem, a path, and a plan's offsets or None. what: it
    holds, for the help.
    """

    ends: tuple[str, ...]
    function: str
    what: str
    of_problem: bool = False

    @property
    def write(self) -> Callable[..., Any]:
        """The function itself, its module loaded."""
        found: Callable[..., Any] = resolve_name(f"memplan.trace.{self.function}")
        return found


EXPORTERS = {
    "parquet": Exporter(
        (".parquet",), "parquet:write_parquet", "memplan's trace, the smallest"
    ),
    "json": Exporter(
        (".json", ".json.gz"),
        "columnar_json:write_json",
        "the same as JSON; .json.gz is compressed",
    ),
    "csv": Exporter(
        (".csv",),
        "exporters.minimalloc:write_minimalloc",
        "a MiniMalloc problem of one step; with offsets for a PLAN",
        of_problem=True,
    ),
    "memory_viz": Exporter(
        (".pickle", ".pkl"),
        "exporters.memory_viz:write_memory_viz",
        "a memory snapshot for torch.cuda._memory_viz",
    ),
    "perfetto": Exporter(
        (".perfetto.json", ".chrome.json"),
        "exporters.perfetto:write_perfetto",
        "Chrome trace events for ui.perfetto.dev",
    ),
    "speedscope": Exporter(
        (".speedscope.json",),
        "exporters.speedscope:write_speedscope",
        "bytes by stack for speedscope.app",
    ),
}
