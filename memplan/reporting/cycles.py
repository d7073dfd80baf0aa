"""What Python's cycle collector freed: buffers that reference counts kept too long."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from memplan.trace.lives import Lives
from memplan.trace.sites import Site
from memplan.trace.trace import Trace

LEAST_CYCLES = 0.01  # of the peak; ordinary programs have some small cycles


@dataclass(frozen=True)
class CycleShare:
    """Buffers that one site asked for and one cycle kept.

    cycle: as the objects refer to each other, "Node.children[*].parent", and place: the
    line that closes it; "" where that is not known.
    """

    cycle: str
    place: str
    site: Site
    bytes: int
    buffers: int


@dataclass(frozen=True)
class Collected:
    """Buffers that the collector freed, in `runs` of it; shares: the largest first."""

    bytes: int
    buffers: int
    runs: int
    shares: tuple[CycleShare, ...]


def collected(trace: Trace, buffers: Lives) -> Collected | None:
    """None if the collector freed nothing, or the trace does not tell."""
    runs = trace.info.collections
    freed = np.flatnonzero(buffers.end < len(buffers.events))
    if not runs or not len(freed):
        return None
    when = buffers.events.time_ns[buffers.end[freed]]
    thread = buffers.events.thread[buffers.end[freed]]
    # One run at a time: Python runs them under its lock.
    begins, ends, by = np.array(
        [(run.begin_ns, run.end_ns, run.thread) for run in runs], dtype=np.int64
    ).T
    run = np.searchsorted(begins, when, side="right") - 1
    inside = (run >= 0) & (when < ends[run])
    if thread.any():
        inside &= thread == by[run]
    sums: Counter[tuple[str, str, int]] = Counter()
    counts: Counter[tuple[str, str, int]] = Counter()
    for i, at in zip(freed[inside].tolist(), run[inside].tolist(), strict=True):
        key = runs[at].cycle, runs[at].place, int(buffers.site[i])
        sums[key] += int(buffers.size[i])
        counts[key] += 1
    shares = tuple(
        CycleShare(cycle, place, buffers.sites[site], size, counts[cycle, place, site])
        for (cycle, place, site), size in sums.most_common()
    )
    total = sum(sums.values())
    used = len(np.unique(run[inside]))
    return Collected(total, sum(counts.values()), used, shares) if shares else None
