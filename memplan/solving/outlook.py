"""What a plan will bring: resident memory without it, with it, and out of its reach.

Without a plan, torch's CPU allocator asks the C library, which hands out the smallest
hole that fits and keeps what is freed in between. The recorded requests are served so
once more, in one heap for each thread, without touching any memory; what is resident
beyond those heaps (the interpreter, libraries, operators' scratch, parameters made
before recording began) a plan leaves as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memplan.core.plan import UNMARKED, Plan
from memplan.levels import levels
from memplan.trace.lives import NEVER, lives_of
from memplan.trace.steps import outlive_steps, outlives, unmarked_steps
from memplan.trace.trace import Action, Trace

if TYPE_CHECKING:
    from memplan.native._alloc import Ranges

PAYS = 0.02  # of the peak: a plan that saves less does not
MOST_EVENTS = 300_000  # of a trace that are looked at
MAPPED = 32 << 20  # bytes: the C library maps larger blocks, and returns them at once
HEADER = 64  # bytes that a block takes up beside its own: its header, and alignment
HEAP = 1 << 46  # bytes; none is there
# What heaps are taken to waste at most, of what was live at once. What a run added
# beyond that is no tensor's, but modules that were imported, and data.
MOST_WASTED = 1.0


@dataclass(frozen=True)
class Outlook:
    """Bytes. peak_now: resident at most, as recorded; under the plan, from
    peak_planned_least, if all that the run added were tensors and what their heaps
    waste (as much again as was live, at most), to peak_planned, if those heaps had
    wasted as little as can be; out_of_reach: of the latter and of peak_now, what no
    plan of this program changes.

    most_live: of tensors, at the trace's peak; persistent: of those that outlive their
    step and the next, and that no plan holds. peak_now is 0 where nothing was
    measured; then the others are of tensors alone.
    """

    peak_now: int
    peak_planned: int
    peak_planned_least: int
    out_of_reach: int
    most_live: int
    persistent: int

    @property
    def saved(self) -> float:
        """The part of the peak that the plan saves at least; 0.0 where it adds to it,
        or nothing was measured."""
        return self._saved(self.peak_planned)

    @property
    def saved_most(self) -> float:
        """The same, at most."""
        return self._saved(self.peak_planned_least)

    @property
    def pays(self) -> bool:
        """Whether that may be worth while; True where nothing was measured."""
        return not self.peak_now or self.saved_most >= PAYS

    def _saved(self, planned: int) -> float:
        return max(1 - planned / self.peak_now, 0.0) if self.peak_now else 0.0


def outlook(trace: Trace, plan: Plan) -> Outlook | None:
    """What `plan`, made from `trace`, will bring; None but for a CPU's program."""
    if trace.info.device != "cpu" or plan.hot.requests is None:
        return None
    heaps, most_live = default_heaps(trace)
    made = plan.provenance
    left = unplanned_bytes(trace, made.program.marks, made.source.step)
    planned = left + plan.arena_bytes
    measured = trace.info.run.peak_rss_bytes
    # An estimate that is more than was measured is wrong, not the measurement.
    heaps = min(heaps, measured) if measured else heaps
    beyond = max(measured - heaps, 0)
    added = min(trace.info.added_bytes, int((1 + MOST_WASTED) * most_live))
    least = measured - max(added, heaps) + planned
    return Outlook(
        measured, beyond + planned, max(least, 0), beyond + left, most_live, left
    )


def unplanned_bytes(trace: Trace, marks: str = "", step: str = "hot") -> int:
    """The most bytes alive in the recording's second half of blocks that outlive their
    step and the next: no plan holds them.

    marks: what cuts the plan's steps. step: "all" where the plan is of the whole
    recording: it holds all but what is never freed.
    """
    line = lives_of(trace)
    if step == "all":
        stay = line.freed == NEVER
    elif marks == UNMARKED:
        stay = outlive_steps(unmarked_steps(line) or line)
    else:
        stay = outlives(line)
    half = line.ticks // 2  # what came with the program's start is over by then
    lower, end = line.lower[stay], np.minimum(line.upper[stay], line.ticks)
    _, live = levels(np.maximum(lower, half), np.maximum(end, half), line.size[stay])
    return int(live.max(initial=0))


def default_heaps(trace: Trace) -> tuple[int, int]:
    """Bytes that the C library's heaps come to for a recording, and its live peak.

    Of its first MOST_EVENTS events: a heap has taken its shape by then.
    """
    from memplan.native._alloc import Ranges

    events, lives = trace.events, lives_of(trace)
    alloc, free = lives.pairs
    block_of = np.full(len(events), -1, dtype=np.int64)
    block_of[free] = alloc
    heaps: dict[int, Ranges] = {}
    tops: dict[int, int] = {}
    where: dict[int, tuple[Ranges | None, int, int]] = {}
    most = mapped = total = 0
    rows = zip(
        events.action[:MOST_EVENTS].tolist(),
        events.requested_size[:MOST_EVENTS].tolist(),
        events.thread[:MOST_EVENTS].tolist(),
        block_of[:MOST_EVENTS].tolist(),
        strict=True,
    )
    for row, (action, size, thread, block) in enumerate(rows):
        if action == Action.ALLOC and size:
            if size > MAPPED:
                mapped += size
                where[row] = None, 0, size
            else:
                if thread not in heaps:
                    heaps[thread] = Ranges(HEAP, HEADER)
                    tops[thread] = 0
                heap = heaps[thread]
                offset = heap.take_anywhere(size + HEADER)
                where[row] = heap, offset, size
                top = offset + size + HEADER
                total += max(top - tops[thread], 0)
                tops[thread] = max(top, tops[thread])
            most = max(most, total + mapped)
        elif block in where:
            owner, offset, bytes_ = where.pop(block)
            if owner is None:
                mapped -= bytes_
            else:
                owner.give_back(offset)
    return most, int(lives.live_bytes[:MOST_EVENTS].max(initial=0))
