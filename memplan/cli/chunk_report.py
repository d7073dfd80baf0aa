"""The result of `memplan chunk`: its table, its JSON and its picture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan.chunking.curve import Curve, curve
from memplan.chunking.options import BudgetError
from memplan.chunking.plan import ChunkPlan, Peak, RegionRow
from memplan.chunking.planfile import to_json
from memplan.cli import show
from memplan.plotting.activations import Activations, activations
from memplan.units import format_bytes, format_seconds, format_share

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from memplan.chunking.module import Chunked

MOST_OF_LINE = 34  # characters of a source line's place
MOST_LEFT_ALONE = 8  # listed one by one
COLUMNS = ("operators", "line", "dimension", "chunks")


@dataclass(frozen=True)
class ChunkResult:
    """What chunking found.

    module: the chunked model, or the closest if `refused`. output: the plan's file.
    """

    module: Chunked
    output: Path | None
    refused: BudgetError | None

    @property
    def plan(self) -> ChunkPlan:
        """The module's plan."""
        return self.module.memplan

    @property
    def reusable(self) -> ChunkPlan:
        """The plan to write: the closest one has the budget that it fits."""
        fits = max(self.plan.budget_bytes, self.plan.measured_bytes_after)
        return replace(self.plan, budget_bytes=fits)

    @property
    def name(self) -> str:
        """The name of the model's class."""
        return type(self.module.model).__name__

    def entries(self) -> dict[str, object]:
        """The result as JSON: the plan, its file, and the refusal."""
        entries = to_json(self.plan)
        entries["plan"] = None if self.output is None else str(self.output)
        if self.refused is not None:
            entries |= {"status": "refused", "reason": str(self.refused)}
        return entries

    def show(self) -> None:
        """Print facts, then the loops."""
        plan = self.plan
        chunked = plan.status == "chunked"
        title = "runs in chunks" if chunked else f"stays unchanged: {plan.reason}"
        show.facts(f"memplan: {self.name} {title}", self._facts())
        if plan.regions:
            show.line("")
            rows = [_region(each) for each in plan.regions]
            show.table("Loops, those inside others indented", COLUMNS, rows)
        if plan.reason and chunked:
            show.note(plan.reason)

    def _facts(self) -> list[tuple[str, str]]:
        plan = self.plan
        chunked = plan.status == "chunked"
        over = plan.measured_bytes_after > plan.budget_bytes
        measured = format_bytes(plan.measured_bytes_before)
        if chunked:
            after = format_bytes(plan.measured_bytes_after)
            saved = format_share(plan.saved)
            measured = f"{measured} before, {after} after, {saved} saved"
        rows = [
            ("step" if plan.loss_rows else "activations", measured),
            ("budget", format_bytes(plan.budget_bytes) + ", not kept" * over),
        ]
        if chunked:
            if plan.peak_bytes_after:
                after = format_bytes(plan.peak_bytes_after)
                rows.insert(1, ("estimated", f"{after} after"))
            error = plan.max_relative_error
            same = "none, the same bits" if error == 0 else f"at most {error:.1e}"
            rows.append(("time", f"{plan.slowdown:.2f} times the original"))
            rows.append(("relative error", same))
        if plan.peak_before:
            rows.append(("peak was", _peak(plan.peak_before)))
        if plan.peak_after and chunked:
            rows.append(("peak is", _peak(plan.peak_after)))
        if again := [name for part in plan.parts for name in part.again]:
            rows += show.unkept(again)
        rows.append(("search", format_seconds(plan.search_seconds)))
        for defect, count in plan.internal_errors.items():
            rows.append(("internal error", f"dropped {count} regions: {defect}"))
        left = list(plan.left_alone.items())
        for i, (path, reason) in enumerate(left[:MOST_LEFT_ALONE]):
            whole = path or "the model as a whole"
            rows.append(("" if i else "unchanged", f"{whole}: {reason}"))
        if len(left) > MOST_LEFT_ALONE:
            rows.append(("", f"and {len(left) - MOST_LEFT_ALONE:,} more"))
        return rows

    def picture(self) -> Figure:
        """The activations before and after, of the part with the highest peak."""
        chunks = self.module.chunks
        curves = {path: curve(each.original) for path, each in chunks.items()}
        path = max(curves, key=lambda path: max(curves[path].live))
        after = curve(chunks[path].program)
        name = self.name + (f", {path}" if path else "")
        return activations(
            _drawn(curves[path]), _drawn(after), self.plan.budget_bytes, name
        )


def _region(region: RegionRow) -> tuple[str, ...]:
    module = f"{region['module']}: " if region["module"] else ""
    indent = "  " * region["depth"]
    step, chunks = region["step"], region["chunks"]
    return (
        f"{indent}{module}{region['first']} .. {region['last']}",
        place(region["line"]),
        f"{region['dimension']} of {region['extent']}",
        f"{chunks} of {step}" + (", the last shorter" * bool(region["extent"] % step)),
    )


def _peak(peak: Peak) -> str:
    """Where a peak is, and the two largest storages that are live there."""
    largest = [
        f"{each['name']} {format_bytes(each['bytes'])}" for each in peak["live"][:2]
    ]
    live = f": {', '.join(largest)}" if largest else ""
    at = f" at {place(peak['line'])}" if peak["line"] else ""
    beyond = ""
    if "beyond" in peak:
        beyond = f", {format_bytes(peak['beyond'])} beyond what operators need"
    return f"{peak['operator'].removeprefix('aten.')}{at}{live}{beyond}"


def _drawn(found: Curve) -> Activations:
    operator = found.operators[found.at].removeprefix("aten.")
    line = found.lines[found.at]
    return Activations(
        found.live,
        f"{operator}, {place(line)}" if line else operator,
        [(band.start, band.stop, band.times) for band in found.bands],
    )


def place(line: str) -> str:
    """A `file:line` shortened from the left to what a table has room for."""
    return line if len(line) <= MOST_OF_LINE else f"…{line[1 - MOST_OF_LINE :]}"
