"""What a trace says at a glance: the peak, who makes it, a leak, a failed request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memplan.reporting.attribution import Buffers, Site, buffers_of, site_of
from memplan.reporting.leak import Leak, find_leak, outliving
from memplan.reporting.live import Live, live_after, live_at
from memplan.trace.category import Category
from memplan.trace.trace import Action, Trace


@dataclass(frozen=True)
class OutOfMemory:
    """The last request that failed: its bytes, who asked, and what was live then.

    count: of requests that failed in all; seconds: since the first event.
    """

    requested_bytes: int
    site: Site
    live: Live
    seconds: float
    count: int


@dataclass(frozen=True)
class Stats:
    """A trace's peak and what it is made of.

    peak, at: what is live at the peak, and at the moment that was asked for. steps:
    that were begun after the first boundary. kept_at_end_bytes: alive at the end of the
    last whole step and made two steps before, or earlier, what leaks with what is
    persistent; 0 without steps.
    """

    trace: Trace
    buffers: Buffers
    peak: Live
    at: Live
    leak: Leak | None
    oom: OutOfMemory | None
    kept_at_end_bytes: int

    @property
    def steps(self) -> int:
        """Boundaries of the strongest kind of mark."""
        return len(self.buffers.bounds)

    @property
    def has_sites(self) -> bool:
        """Whether the trace says who asked for anything."""
        return self.buffers.sites != (Site(),)

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><td>{escape(share.name)}</td><td>{share.bytes:,}</td>"
            f"<td>{share.share:.1%}</td></tr>"
            for share in self.at.by("line")[:10]
        )
        head = "<tr><th>line</th><th>bytes</th><th>share</th></tr>"
        return f"<p>{escape(repr(self))}</p><table>{head}{rows}</table>"

    def __repr__(self) -> str:
        return f"Stats(peak={self.peak.bytes:,} bytes, steps={self.steps})"


def summarize(trace: Trace, at: str = "peak") -> Stats:
    """What `memplan stats` says of a trace.

    at: as `live_at` takes it. Raises UsageError for a moment that is not in it.
    """
    buffers = buffers_of(trace)
    level = outliving(buffers)
    return Stats(
        trace,
        buffers,
        peak=live_at(buffers),
        at=live_at(buffers, at),
        leak=find_leak(buffers),
        oom=_out_of_memory(trace, buffers),
        kept_at_end_bytes=int(level[-1]) if len(level) else 0,
    )


def _out_of_memory(trace: Trace, buffers: Buffers) -> OutOfMemory | None:
    events = trace.events
    rows = np.flatnonzero(events.action == Action.OOM)
    if not len(rows):
        return None
    row = int(rows[-1])
    return OutOfMemory(
        int(events.requested_size[row]),
        site_of(trace.stacks, int(events.stack[row])),
        live_after(buffers, row),
        float(buffers.time_s[row]),
        len(rows),
    )


def entries(stats: Stats) -> dict[str, object]:
    """`stats` as `memplan stats --json` prints it; the sites' bytes sum to `at`'s."""
    at, info = stats.at, stats.trace.info
    return {
        "schema": "memplan.stats",
        "version": 1,
        "script": info.program.script,
        "device": info.device,
        "rank": info.rank,
        "events": len(stats.trace),
        "steps": stats.steps,
        "peak_bytes": stats.peak.bytes,
        "peak_time": stats.peak.seconds,
        "kept_at_end_bytes": stats.kept_at_end_bytes,
        "at": {"bytes": at.bytes, "seconds": at.seconds, "step": at.step},
        "sites": _site_entries(at),
        "categories": category_entries(at),
        "leak": None if stats.leak is None else leak_entries(stats.leak),
        "dropped_events": info.dropped_events,
        "complete": info.complete,
        "oom": None if stats.oom is None else _oom_entries(stats.oom),
    }


def site_entries(site: Site) -> dict[str, object]:
    """A site as JSON has it; what is not known is empty, a line 0."""
    return {
        "file": site.file,
        "line": site.line,
        "function": site.function,
        "module": site.module,
        "operator": site.operator,
    }


def category_entries(live: Live) -> dict[str, int]:
    """Bytes by category, all of them; they sum to what is live."""
    return {category.name.lower(): live.categories[category] for category in Category}


def leak_entries(leak: Leak) -> dict[str, object]:
    """A leak as JSON has it."""
    return {
        "bytes_per_step": leak.bytes_per_step,
        "steps": leak.steps,
        "site": site_entries(leak.site),
    }


def _oom_entries(oom: OutOfMemory) -> dict[str, object]:
    return {
        "requested_bytes": oom.requested_bytes,
        "site": site_entries(oom.site),
        "live_bytes": oom.live.bytes,
        "seconds": oom.seconds,
        "count": oom.count,
    }


def _site_entries(live: Live) -> list[dict[str, object]]:
    return [
        {**site_entries(site), "bytes": size, "share": size / live.bytes}
        for site, size in live.sites().items()
    ]
