"""A plan that is not made anew, given up where it does not pay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.applying.payoff import DEPARTED, LOST, UNPROVEN, GivenUp, Payoff
from memplan.core.plan import RunStats

if TYPE_CHECKING:
    from memplan.native._alloc import Replay

AGAIN = 32  # steps after which a plan given up is tried again; twice as many each time


class Guard:
    """Watches the steps that one arena served.

    given_up: what was done so far, in order.
    """

    def __init__(self, replay: Replay, recorded: RunStats, share: float = 1.0) -> None:
        """recorded, share: as Payoff has them."""
        self.given_up: list[GivenUp] = []
        self._replay = replay
        self._payoff = Payoff(replay, recorded, share)
        self._steps = self._aside = self._lost = 0
        self._again = AGAIN
        self._for_good = False
        self._prove(False)

    def step_ended(self) -> None:
        """Look at the steps that ended."""
        steps = self._replay.take_steps()
        if not steps or self._for_good:
            return
        for _, counts in steps:
            self._judge(counts)
        if self._replay.aside:
            self._aside += len(steps)
            if self._aside >= self._again:
                self._again *= 2
                self._lost = 0
                self._prove(False)
                self._replay.stand_aside(False)
        elif self._lost >= UNPROVEN and not self._proven:
            self._give_up("different")
        elif not self._payoff.pays(len(steps)):
            self._give_up("faults")
            self._for_good = True

    def _judge(self, counts: dict[str, int]) -> None:
        self._steps += 1
        departures = counts["online"] + counts["fallback"]
        if departures > LOST * counts["requests"]:
            self._lost += 1
            # Enough of them in a row, and it is another program from here on.
            if self._proven and self._lost >= AGAIN:
                self._prove(False)
        else:
            self._lost = 0
            if counts["requests"] and departures <= DEPARTED * counts["requests"]:
                self._prove(True)

    def _prove(self, proven: bool) -> None:
        """Whether the plan fitted any step; until then departures stay outside."""
        self._proven = proven
        self._replay.place_departures(proven)

    def _give_up(self, reason: str) -> None:
        self._aside = 0
        self._replay.stand_aside(True)
        self.given_up.append(GivenUp(self._steps, reason))
