"""What a plan will bring: resident memory without it, with it, and out of its reach.

Without a plan, torch's CPU allocator asks the C library, which hands out the smallest
hole that fits and keeps what is freed in between. The recorded requests are served so
once more, in one heap for each thread, without touching any memory. That is the least
that its heaps come to: what they waste beside differs from run to run, and recording
adds to it. So what is resident beside tensors (the interpreter, libraries, parameters
made before recording began), which a plan leaves as it is, is measured when recording
ends: with what the heaps kept free given back. Of a trace that lacks the measurement it
is taken to be what is resident beyond the simulated heaps.
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
# The same where what is beside tensors was measured, and operators' scratch is waste,
# too: of a dozen programs, 2.1 was the most.
MOST_WASTED_MEASURED = 3.0


@dataclass(frozen=True)
class Outlook:
    """Bytes. peak_now: resident at most, as recorded; peak_now_least: with heaps that
    waste as little as can be, which those of a run without the recorder may. Under the
    plan, from peak_planned_least, if all of peak_now that is not known to be something
    else were tensors and what heaps waste, to peak_planned; out_of_reach: of the latter
    and of peak_now, what no plan of this program changes.

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
    peak_now_least: int

    @property
    def saved(self) -> float:
        """The part of the peak that the plan saves at least; 0.0 where it adds to it,
        or nothing was measured."""
        return _saved(self.peak_now_least, self.peak_planned)

    @property
    def saved_most(self) -> float:
        """The same, at most."""
        return _saved(self.peak_now, self.peak_planned_least)

    @property
    def pays(self) -> bool:
        """Whether that may be worth while; True where nothing was measured."""
        return not self.peak_now or self.saved_most >= PAYS


def _saved(now: int, planned: int) -> float:
    return max(1 - planned / now, 0.0) if now else 0.0


def outlook(trace: Trace, plan: Plan) -> Outlook | None:
    """What `plan`, made from `trace`, will bring; None but for a CPU's program."""
    if trace.info.device != "cpu" or plan.hot.requests is None:
        return None
    heaps, most_live = default_heaps(trace)
    made = plan.provenance
    left = unplanned_bytes(trace, made.program.marks, made.source.step)
    planned = left + plan.arena_bytes
    measured = trace.info.run.peak_rss_bytes
    least, beyond = beside_tensors(trace, heaps, most_live)
    floor, now_least = 0, measured
    if trace.info.used_bytes:
        floor = _of_no_heap(trace, most_live)
        now_least = min(max(least + heaps, floor), measured)
    return Outlook(
        measured,
        beyond + planned,
        max(least + planned, floor) if measured else 0,
        beyond + left,
        most_live,
        left,
        now_least,
    )


def _of_no_heap(trace: Trace, most_live: int) -> int:
    """Bytes of the measured peak that no heap of tensors can have come to."""
    most = int((1 + MOST_WASTED_MEASURED) * most_live)
    return max(trace.info.run.peak_rss_bytes - most, 0)


def beside_tensors(trace: Trace, heaps: int, most_live: int) -> tuple[int, int]:
    """Resident bytes of the recorded process beside its tensors and what their heaps
    waste, at least and at most; 0, 0 where nothing was measured.

    heaps, most_live: of `default_heaps`. The two differ where the peak has more than
    any heap can have wasted, such as data that the program dropped later.
    """
    measured, used = trace.info.run.peak_rss_bytes, trace.info.used_bytes
    if not measured:
        return 0, 0
    if used:
        beside = max(used - int(lives_of(trace).live_bytes[-1:].sum()), 0)
        explained = beside >= _of_no_heap(trace, most_live)
        return beside, beside if explained else max(beside, measured - heaps)
    # An estimate that is more than was measured is wrong, not the measurement.
    heaps = min(heaps, measured)
    added = min(trace.info.added_bytes, int((1 + MOST_WASTED) * most_live))
    return max(measured - max(added, heaps), 0), measured - heaps


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
