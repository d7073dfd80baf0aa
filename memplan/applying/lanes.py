"""A plan for threads that make steps side by side: an arena for each, a lane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memplan.applying.guard import Guard
from memplan.applying.payoff import GivenUp
from memplan.applying.tables import ReplayArrays
from memplan.core.plan import RunStats

if TYPE_CHECKING:
    from memplan.native._alloc import Replay


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
