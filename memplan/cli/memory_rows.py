"""What stats and record say of a failed request, and of what was reserved."""

from __future__ import annotations

from memplan.reporting.check import described
from memplan.reporting.stats import Stats
from memplan.trace.reserved import Reserved
from memplan.units import format_bytes, format_seconds


def oom(found: Stats) -> list[tuple[str, str]]:
    """The last request that failed, which there is: what was live, and had."""
    failed = found.oom
    assert failed is not None
    asked = f"{format_bytes(failed.requested_bytes)} could not be had"
    live = format_bytes(failed.live.bytes)
    when = f"after {format_seconds(failed.seconds)}, {live} live"
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


def reserved(found: Stats) -> list[tuple[str, str]]:
    """What an allocator of segments held, and what of it was of no use."""
    if found.reserved is None:
        return []
    most, at = found.reserved, found.reserved.at
    rows = [
        (
            "reserved",
            f"{format_bytes(most.bytes)} at most, after {format_seconds(most.seconds)}",
        ),
        (
            "allocated",
            f"{format_bytes(at.allocated)} of {format_bytes(at.reserved)} reserved, "
            f"after {format_seconds(found.at.seconds)}",
        ),
    ]
    return rows + _idle("fragmented", at)


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
