"""A plan for threads that make steps side by side: an arena for each, a lane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memplan.applying.payoff import DEPARTED, LOST, UNPROVEN, GivenUp, Payoff
from memplan.core.plan import RunStats
from memplan.core.tables import ReplayArrays

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


class Lanes:
    """As many arenas as threads may have at one time, each with the same plan.

    Every thread is followed through its own sequence of requests. One that finds all
    lanes taken is served by the default allocator until its next step; so is a thread
    that marks no steps, always.
    """

    def __init__(
        self,
        arrays: ReplayArrays,
        lane_bytes: int,
        count: int,
        cold: int,
        recorded: RunStats,
    ) -> None:
        """`count` lanes of `lane_bytes` each. cold: as the native Replay has it;
        recorded: how the program went under the default allocator.

        Raises MemoryError where the system refuses the address space.
        """
        from memplan.native import _alloc

        table = arrays.table(lane_bytes, lane_bytes)
        self.replays = [
            _alloc.make_replay(table, lane_bytes, cold) for _ in range(count)
        ]
        self._guards = [Guard(one, recorded, 1 / count) for one in self.replays]

    def start(self) -> bool:
        """Begin to serve; False if this process has applied too many plans."""
        from memplan.native import _alloc

        return _alloc.start_lanes(self.replays)

    def step_ended(self) -> None:
        """Look at the steps that ended; one thread at a time."""
        for guard in self._guards:
            guard.step_ended()

    @property
    def given_up(self) -> tuple[GivenUp, ...]:
        """Each time that a lane was, in order; steps are counted in each lane."""
        times = [one for guard in self._guards for one in guard.given_up]
        return tuple(sorted(times, key=lambda one: one.step))

    def hot_counts(self) -> dict[str, int]:
        """The native counts of all lanes, and of what no lane was there for."""
        from memplan.native import _alloc

        return _sum(
            [one.hot_counts() for one in self.replays] + [_alloc.outside_lanes()]
        )

    def warmup_counts(self) -> dict[str, int]:
        """All zero: threads begin where they please, and have no warm-up."""
        return _sum([one.warmup_counts() for one in self.replays])

    @property
    def arena_bytes(self) -> int:
        """Of all lanes together."""
        return sum(one.arena_bytes for one in self.replays)


def replays_of(serving: Replay | Lanes) -> Sequence[Replay]:
    """The arenas that serve: one, or one a lane."""
    return serving.replays if isinstance(serving, Lanes) else (serving,)


def _sum(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    """The counts by name, added up; every name of the first is in it."""
    total: Counter[str] = Counter(dict.fromkeys(counts[0], 0))
    for each in counts:
        total.update(each)
    return dict(total)
