"""What a trace says at a glance: the peak, who makes it, a leak, a failed request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memplan.files import PathLike
from memplan.reporting.cycles import LEAST_CYCLES, Collected, collected
from memplan.reporting.leak import Leak, find_leak, outliving
from memplan.reporting.live import Live, live_at, no_moment
from memplan.trace.lives import Lives, lives_of
from memplan.trace.modelled import expandable_bytes
from memplan.trace.read import as_trace
from memplan.trace.reserved import Reserved, reserved_at, reserved_bytes
from memplan.trace.sites import Site, site_of
from memplan.trace.trace import NO_HISTORY, Action, Trace


@dataclass(frozen=True)
class OutOfMemory:
    """The first request that failed: its bytes, who asked, and what was live then.

    count: of requests that failed in all; seconds: since the first event. free: bytes
    that the device had left, and reserved: what the allocator held, both of CUDA alone,
    else 0 and None.
    """

    requested_bytes: int
    site: Site
    live: Live
    seconds: float
    count: int
    free: int = 0
    reserved: Reserved | None = None


@dataclass(frozen=True)
class MostReserved:
    """The most that an allocator reserved, in bytes, and when, since the first event;
    at: what was reserved at the moment that was asked for; expandable: bytes with
    torch's expandable_segments, 0 where that is not known."""

    bytes: int
    seconds: float
    at: Reserved
    expandable: int = 0


@dataclass(frozen=True)
class Stats:
    """A trace's peak and what it is made of.

    peak, at: what is live at the peak, and at the moment that was asked for. steps:
    that were begun after the first boundary. kept_at_end_bytes: alive at the end of the
    last whole step and made two steps before, or earlier, what leaks with what is
    persistent; 0 without steps. reserved: None where the trace tells of no segments.
    Of a snapshot without a history peak and at are what it holds, at time 0.
    """

    trace: Trace
    buffers: Lives
    peak: Live
    at: Live
    leak: Leak | None
    oom: OutOfMemory | None
    kept_at_end_bytes: int
    reserved: MostReserved | None = None
    cycles: Collected | None = None

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


def has_cycles(found: Stats) -> bool:
    """Whether what the cycle collector freed is not little."""
    least = LEAST_CYCLES * found.peak.bytes
    return found.cycles is not None and found.cycles.bytes > least


def summarize(trace: Trace | PathLike, at: str = "peak") -> Stats:
    """What `memplan stats` says of a trace, or of that in a file.

    at: as `live_at` takes it. Raises UsageError for a moment that is not in it, as all
    but "peak" of a snapshot without a history, which is one moment itself.
    """
    trace = as_trace(trace)
    if at != "peak" and not trace.info.history:
        raise no_moment(at, f"{NO_HISTORY}; leave it out")
    buffers = lives_of(trace)
    level = outliving(buffers)
    chosen = live_at(buffers, at)
    return Stats(
        trace,
        buffers,
        peak=live_at(buffers),
        at=chosen,
        leak=find_leak(buffers),
        oom=_out_of_memory(trace, buffers),
        kept_at_end_bytes=int(level[-1]) if len(level) else 0,
        reserved=_most_reserved(trace, chosen),
        cycles=collected(trace, buffers),
    )


def _most_reserved(trace: Trace, at: Live) -> MostReserved | None:
    reserved = reserved_bytes(trace.events)
    if not reserved.any():
        return None
    row = int(np.argmax(reserved))
    when = float(at.buffers.time_s[row])
    held = reserved_at(trace.events, at.row, at.buffers.row[at.chosen])
    return MostReserved(int(reserved[row]), when, held, expandable_bytes(trace))


def _out_of_memory(trace: Trace, buffers: Lives) -> OutOfMemory | None:
    events = trace.events
    count = int((events.action == Action.OOM).sum())
    if not count:
        return None
    on_gpu = trace.info.device == "cuda"
    live, held = live_at(buffers, "oom"), None
    row = live.row
    if on_gpu and reserved_bytes(events).any():
        held = reserved_at(events, row, buffers.row[live.chosen])
    return OutOfMemory(
        int(events.requested_size[row]),
        site_of(trace.stacks, int(events.stack[row])),
        live,
        live.seconds,
        count,
        free=int(events.address[row]) if on_gpu else 0,
        reserved=held,
    )
