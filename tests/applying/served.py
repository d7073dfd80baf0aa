"""Synthetic programs served by the native Replay, which has no torch in it."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from memplan.core.plan import Plan
from memplan.core.tables import replay_arrays, room_for_departures
from memplan.native import _alloc
from memplan.trace.trace import Action, Mark, Trace

RESERVE = 1 << 24

Counts = dict[str, int]


def replay_of(plan: Plan, reserve: int = RESERVE, cold: int = 0) -> _alloc.Replay:
    arena = plan.arena_bytes
    online = room_for_departures(plan, arena, reserve)
    table = replay_arrays(plan).table(arena, online)
    return _alloc.make_replay(table, max(reserve, arena), cold)


def table_of(
    requests: list[tuple[int, int]],
    starts: tuple[int, ...] = (0,),
    loop: tuple[int, int] | None = None,
    *,
    arena: int = 1 << 16,
    online: int | None = None,
    elastic: bool = False,
    sparse: tuple[int, ...] = (),
) -> _alloc.Table:
    """Of (size, offset) requests; loop: the steps that repeat, all by default; online:
    where departures may lie, below the arena's end by default."""
    count = len(starts)
    begin, end = loop or (0, count)
    return _alloc.table(
        column(size for size, _ in requests),
        column(offset for _, offset in requests),
        column(starts),
        begin,
        end,
        flags(elastic and begin <= i < end for i in range(count)),
        flags(i in sparse for i in range(len(requests))),
        arena,
        arena if online is None else online,
    )


def column(values: object) -> npt.NDArray[np.int64]:
    return np.array(list(values), dtype=np.int64)  # type: ignore[call-overload]


def flags(values: object) -> npt.NDArray[np.bool_]:
    return np.array(list(values), dtype=np.bool_)  # type: ignore[call-overload]


@dataclass
class Served:
    """A program under a plan: whatever it is given, no two live blocks may overlap."""

    replay: _alloc.Replay
    live: list[tuple[int, int]] = field(default_factory=list)

    def ask(self, size: int) -> int | None:
        """The block's offset in the arena, or None outside it."""
        address = self.replay.allocate(size)
        if not address:
            return None
        end = address + size
        place = bisect(self.live, (address, end))
        assert place == 0 or self.live[place - 1][1] <= address
        assert place == len(self.live) or end <= self.live[place][0]
        self.live.insert(place, (address, end))
        return address - self.replay.base

    def drop(self, offset: int | None) -> None:
        if offset is None:
            return
        address = offset + self.replay.base
        del self.live[bisect(self.live, (address,))]
        self.replay.release(address)

    def use(self, *sizes: int) -> list[int | None]:
        """Blocks that live side by side; where they were."""
        found = [self.ask(size) for size in sizes]
        for offset in found:
            self.drop(offset)
        return found

    def step(self, *sizes: int) -> list[int | None]:
        """A boundary, then `use`."""
        self.replay.next_step()
        return self.use(*sizes)

    def run(self, trace: Trace) -> list[Counts]:
        """The recorded program; the counts of its hot steps, one by one."""
        blocks: dict[int, int | None] = {}
        events = trace.events
        for action, mark, name, size in zip(
            events.action.tolist(),
            events.mark.tolist(),
            events.address.tolist(),
            events.requested_size.tolist(),
            strict=True,
        ):
            if action == Action.STEP:
                assert mark == Mark.OPTIMIZER
                self.replay.next_step()
            elif action == Action.ALLOC:
                blocks[name] = self.ask(size)
            else:
                self.drop(blocks.pop(name))
        self.replay.next_step()
        return [counts for _, counts in self.replay.take_steps()]


def add_up(counts: Counts) -> bool:
    parts = ("planned", "unplanned", "online", "fallback")
    return counts["requests"] == sum(counts[part] for part in parts)
