"""What chunking a model was worth, for people."""

from __future__ import annotations

from typing import Any

from memplan.chunking.plan import ChunkPlan
from memplan.cli import show
from memplan.units import format_bytes, format_seconds, format_share

MOST_OF_LINE = 34  # characters of a source line's place
MOST_LEFT_ALONE = 8  # listed one by one


def report(plan: ChunkPlan, name: str) -> None:
    """Print a plan of the model called `name`: facts, then its loops."""
    stays = f"stays as it is: {plan.reason}"
    title = "runs in chunks" if plan.status == "chunked" else stays
    show.facts(f"memplan: {name} {title}", _facts(plan))
    if plan.regions:
        show.line("")
        rows = [_region(each) for each in plan.regions]
        show.table("Loops, those inside others indented", _COLUMNS, rows)
    if plan.reason and plan.status == "chunked":
        show.note(plan.reason)


_COLUMNS = ("operators", "line", "dimension", "chunks")


def _region(region: dict[str, Any]) -> tuple[str, ...]:
    module = f"{region['module']}: " if region["module"] else ""
    indent = "  " * region["depth"]
    step, chunks = region["step"], region["chunks"]
    return (
        f"{indent}{module}{region['first']} .. {region['last']}",
        place(region["line"]),
        f"{region['dimension']} of {region['extent']}",
        f"{chunks} of {step}" + (", the last shorter" * bool(region["extent"] % step)),
    )


def _facts(plan: ChunkPlan) -> list[tuple[str, str]]:
    rows = [
        ("activations", _compared(plan.measured_bytes_before, plan, "measured")),
        ("estimated", _compared(plan.peak_bytes_before, plan, "peak")),
        ("budget", format_bytes(plan.budget_bytes)),
    ]
    if plan.status == "chunked":
        error = plan.max_relative_error
        same = "none, the same bits" if error == 0 else f"{error:.1e} at most, relative"
        rows += [
            ("time", f"{plan.slowdown:.2f} times what it took"),
            ("difference", same),
        ]
    rows += [
        (name, _peak(peak))
        for name, peak in (("peak was", plan.peak_before), ("peak is", plan.peak_after))
        if peak and (name == "peak was" or plan.status == "chunked")
    ]
    rows.append(("search", format_seconds(plan.search_seconds)))
    left = list(plan.left_alone.items())
    for i, (path, reason) in enumerate(left[:MOST_LEFT_ALONE]):
        whole = path or "the model as a whole"
        rows.append(("" if i else "left alone", f"{whole}: {reason}"))
    if len(left) > MOST_LEFT_ALONE:
        rows.append(("", f"and {len(left) - MOST_LEFT_ALONE:,} more"))
    return rows


def _compared(before: int, plan: ChunkPlan, kind: str) -> str:
    if plan.status != "chunked":
        return format_bytes(before)
    measured = kind == "measured"
    after = plan.measured_bytes_after if measured else plan.peak_bytes_after
    saved = f", {format_share(plan.saved)} saved" if measured else ""
    return f"{format_bytes(before)} before, {format_bytes(after)} after{saved}"


def _peak(peak: dict[str, Any]) -> str:
    """Where a peak is, and the largest of what is live there."""
    largest = [
        f"{each['name']} {format_bytes(each['bytes'])}" for each in peak["live"][:2]
    ]
    live = f": {', '.join(largest)}" if largest else ""
    at = f" at {place(peak['line'])}" if peak["line"] else ""
    held = f", {format_bytes(peak['held'])} held by variables" if "held" in peak else ""
    return f"{peak['operator'].removeprefix('aten.')}{at}{live}{held}"


def place(line: str) -> str:
    """A `file:line` shortened from the left to what a table has room for."""
    return line if len(line) <= MOST_OF_LINE else f"…{line[1 - MOST_OF_LINE :]}"
