"""What an allocator reserved, and what of it lies idle, where a trace tells of it."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memplan.arrays import Int64Array
from memplan.core.plan import DeviceRun
from memplan.trace.trace import Action, Columns


@dataclass(frozen=True)
class Reserved:
    """An allocator's segments after one event. Bytes, all of them.

    reserved: of segments; allocated: of blocks in use, as the allocator rounds them.
    split: of segments in use what no block holds: lost to fragmentation, since it can
    serve requests that fit a hole, and not be given back; empty: of segments without a
    block in use, which can. largest_free: the longest stretch of one segment that no
    block holds. The last three are None where blocks lie in no segment that the trace
    tells of.
    """

    reserved: int
    allocated: int
    split: int | None
    empty: int | None
    largest_free: int | None


def reserved_bytes(events: Columns) -> Int64Array:
    """Bytes of segments after each event, shape (m,); all 0 if none are recorded."""
    return _balance(events, Action.SEGMENT_ALLOC, Action.SEGMENT_FREE)


def _balance(events: Columns, taken: Action, given_back: Action) -> Int64Array:
    """Bytes after each event of what events of one kind took, and of another gave."""
    change = np.where(events.action == taken, events.size, 0)
    change -= np.where(events.action == given_back, events.size, 0)
    total: Int64Array = np.cumsum(change)
    return total


def most_reserved(events: Columns) -> int:
    """The most bytes of segments at any moment; 0 where none is told of."""
    return int(reserved_bytes(events).max(initial=0))


def device_run(events: Columns) -> DeviceRun:
    """What the recorded run took of its GPU: all 0 where no segment is told of."""
    most = most_reserved(events)
    if not most:
        return DeviceRun()
    allocated = _balance(events, Action.ALLOC, Action.FREE_COMPLETED)
    return DeviceRun(
        most,
        int(allocated.max(initial=0)),
        int((events.action == Action.SEGMENT_ALLOC).sum()),
        int((events.action == Action.SEGMENT_FREE).sum()),
    )


def ran_out(events: Columns) -> bool:
    """Whether a request failed."""
    return bool((events.action == Action.OOM).any())


def reserved_at(events: Columns, row: int, live: Int64Array) -> Reserved:
    """What is reserved after event `row`, and how much of it no block holds.

    live: the rows of the blocks in use then. Of segments that grow
    (`expandable_segments`) every mapped piece counts as a segment of its own.
    """
    reserved = int(reserved_bytes(events)[row]) if 0 <= row < len(events) else 0
    size = events.size[live]
    begin, finish = _segments(events, row)
    where = np.searchsorted(begin, events.address[live], side="right") - 1
    allocated = int(size.sum())
    # A block may reach over the pieces of a segment that grew; it must begin in one.
    if (where < 0).any() or (events.address[live] >= finish[where]).any():
        return Reserved(reserved, allocated, None, None, None)
    gaps, empty = _gaps(events.address[live], size, begin, finish)
    return Reserved(
        reserved,
        allocated,
        split=max(reserved - allocated - empty, 0),
        empty=empty,
        largest_free=gaps,
    )


_MAX_ADDRESS = (1 << 64) - 1
_Addresses = npt.NDArray[np.uint64]


def _gaps(
    address: _Addresses, size: Int64Array, begin: _Addresses, finish: _Addresses
) -> tuple[int, int]:
    """The longest gap between blocks in segments, and bytes of segments without any.

    address, size: of the blocks in use; begin, finish: of the segments, ascending.
    """
    if not len(begin):
        return 0, 0
    # Walls: where no gap can be before, or behind. Blocks end where they say.
    ends = address + size.astype(np.uint64)
    starts = np.concatenate([address, finish])
    stops = np.concatenate([ends, begin])
    starts, stops = np.sort(starts), np.sort(stops)
    # As many gaps begin as end, and no two overlap: in order they belong together.
    lengths = np.where(starts > stops, starts - stops, np.uint64(0))
    first = np.searchsorted(begin, address, side="right") - 1
    last = np.searchsorted(begin, ends, side="left") - 1
    change = np.zeros(len(begin) + 1, dtype=np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, np.maximum(first, last) + 1, -1)
    held = np.cumsum(change[:-1]) > 0
    empty = int((finish - begin)[~held].sum())
    return int(lengths.max(initial=np.uint64(0))), empty


def _segments(events: Columns, row: int) -> tuple[_Addresses, _Addresses]:
    """Where the segments after event `row` begin and end, ascending, shape (k,)."""
    changes = np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE))
    rows = np.flatnonzero(changes[: row + 1])
    segments = Segments()
    columns = (events.action[rows], events.address[rows], events.size[rows])
    for action, address, size in zip(*(c.tolist() for c in columns), strict=True):
        change = segments.add if action == Action.SEGMENT_ALLOC else segments.cut
        change(address, min(address + size, _MAX_ADDRESS))
    begin, finish = np.array(segments.spans(), dtype=np.uint64).reshape(-1, 2).T
    return begin, finish


class Segments:
    """The stretches of addresses that an allocator holds, as they change."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: dict[int, int] = {}

    def spans(self) -> list[tuple[int, int]]:
        """Where each begins and ends, ascending."""
        return [(begin, self._ends[begin]) for begin in self._begins]

    def add(self, low: int, high: int) -> None:
        """[low, high) is a segment, and no part of another one."""
        if self._ends.get(low) != high:
            self.cut(low, high)
            insort(self._begins, low)
            self._ends[low] = high

    def cut(self, low: int, high: int) -> None:
        """Take [low, high) out of the segments that reach into it."""
        begins, ends = self._begins, self._ends
        at = max(bisect_right(begins, low) - 1, 0)
        while at < len(begins) and begins[at] < high:
            begin, end = begins[at], ends[begins[at]]
            if end <= low:
                at += 1
                continue
            del begins[at], ends[begin]
            for left, right in ((begin, min(end, low)), (max(begin, high), end)):
                if left < right:
                    insort(begins, left)
                    ends[left] = right
                    at += left < low
