"""Whether a plan pays, watched step by step while a program runs under it.

The arena never holds much more than was alive at once (native `Replay`), so an ill plan
costs time: pages that go back and are touched again. Where that is more than the
default allocator's faults would be, some more pages may stay; where that does not help
either, or the program asks for something else than planned, the plan is given up.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.core.plan import RunStats

if TYPE_CHECKING:
    from memplan.applying.cuda_library import CudaReplay
    from memplan.native._alloc import Replay

PAGE = 4096
FAULT_SECONDS = 1.5e-6  # what a page takes to come back, zeroed
FAULTS_SHARE = 0.01  # of the program's CPU time may go into that
WINDOW = 8  # steps over which faults are counted
# What was not used of the faults allowed is saved, for so many windows, and is there at
# first for so many: programs of long rounds (a prompt, then its words) fault at the
# beginning of each.
SAVED_WINDOWS = 8
SAVED_AT_FIRST = 2
SLACK_PARTS = (8, 6)  # of the most live bytes, one part in so many may stay as well
DEPARTED = 0.05  # of a step's requests: more than that, and the plan does not fit it
LOST = 0.5  # and more than that, it is of no use to the step
UNPROVEN = 2  # lost steps before a plan is given up that never fitted any


@dataclass(frozen=True)
class GivenUp:
    """One time the plan was given up; from then on requests were the default
    allocator's, on CUDA but for those that an arena still kept had room for.

    step: hot steps before; reason: "different" (the program asks for something else)
    or "faults" (returning pages cost more than the default allocator does).
    """

    step: int
    reason: str


class Payoff:
    """Watches what the arena's pages cost, and has more of them stay, or none.

    recorded: how the program went under the default allocator, whose page faults are
    free; so are as many as take a small part of the time. share: of that, where other
    arenas have theirs.
    """

    def __init__(
        self, replay: Replay | CudaReplay, recorded: RunStats, share: float = 1.0
    ) -> None:
        self._replay = replay
        self._share = share
        self._default = recorded.page_faults_per_step
        self._slacks = list(SLACK_PARTS)
        self._steps = self._refaulted = 0
        self._saved: float | None = None  # faults
        self._begun = time.process_time()

    def pays(self, steps: int) -> bool:
        """Whether it still does, after so many more steps."""
        self._steps += steps
        if self._steps < WINDOW:
            return True
        now, refaulted = time.process_time(), self._replay.refaulted_bytes
        faults = (refaulted - self._refaulted) / PAGE
        free = self._share * FAULTS_SHARE * (now - self._begun) / FAULT_SECONDS
        allowed = self._default * self._steps + free
        if self._saved is None:
            self._saved = SAVED_AT_FIRST * allowed
        left = self._saved + allowed - faults
        pays = left >= 0
        self._saved = min(max(left, 0.0), SAVED_WINDOWS * allowed)
        self._steps, self._refaulted, self._begun = 0, refaulted, now
        if pays or not self._slacks:
            return pays
        self._replay.allow(self._replay.most_live // self._slacks.pop(0))
        return True
