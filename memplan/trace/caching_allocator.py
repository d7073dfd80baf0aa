"""A model of torch's CUDA caching allocator: what it reserves for given requests.

Requests are rounded up to 512 bytes; those of up to 1 MiB are served from segments of
2 MiB, those below 10 MiB from segments of 20 MiB, larger ones from segments of their
own in multiples of 2 MiB. A request takes the smallest free block that holds it, which
is split where enough is left; a freed block joins its free neighbours. Segments that
are wholly free are given back only when a request would not fit the device otherwise.
One stream, and the default settings: no expandable segments, no roundup divisions.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from memplan.trace.importers.snapshot_history import GRANULARITY, rounded

SMALL_REQUEST = 1 << 20  # the largest that is served from small segments
SMALL_SEGMENT = 2 << 20
MEDIUM_REQUEST = 10 << 20  # from here on a request has a segment of its own
MEDIUM_SEGMENT = 20 << 20
LARGE_ROUNDING = 2 << 20
_BASE = 0x7F00_0000_0000  # where addresses begin


class DeviceFullError(Exception):
    """A request that does not fit the device; requested: its rounded bytes."""

    def __init__(self, requested: int) -> None:
        super().__init__(requested)
        self.requested = requested


@dataclass
class _Block:
    """A part of a segment; free ones are in their pool's list."""

    address: int
    size: int
    segment: int  # its address
    free: bool = True
    before: _Block | None = None
    after: _Block | None = None


class CachingAllocator:
    """The allocator of one device with `capacity` bytes, None: without a limit.

    reserved, allocated: bytes of segments and of blocks in use now; most_reserved,
    most_allocated: the most so far.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.reserved = self.allocated = 0
        self.most_reserved = self.most_allocated = 0
        self._next = _BASE
        # Free blocks by size and then address, of the small and of the large pool.
        self._free: tuple[list[tuple[int, int]], ...] = ([], [])
        self._blocks: dict[int, _Block] = {}  # those free and in use, by address
        self._segments: dict[int, int] = {}  # address -> bytes
        self._requested: dict[int, int] = {}  # address of a used block -> rounded bytes
        self._changes: list[tuple[bool, int, int]] = []

    def allocate(self, size: int) -> tuple[int, int]:
        """The address and the size of a block for `size` bytes, at least 1.

        The size is the rounded request, as in torch's own history. Raises
        DeviceFullError.
        """
        wanted = rounded(size)
        small = wanted <= SMALL_REQUEST
        block = self._best(wanted, small) or self._segment(wanted, small)
        self._split(block, wanted, small)
        block.free = False
        self.allocated += block.size
        self.most_allocated = max(self.most_allocated, self.allocated)
        self._requested[block.address] = wanted
        return block.address, wanted

    def free(self, address: int) -> int:
        """Free the block at `address`; returns the size that `allocate` returned."""
        block = self._blocks[address]
        size = self._requested.pop(address)
        self.allocated -= block.size
        block.free = True
        pool = self._pool(block)
        before, after = block.before, block.after
        if after is not None and after.free:
            self._unlist(after, pool)
            self._join(block, after)
        if before is not None and before.free:
            self._unlist(before, pool)
            self._join(before, block)
            block = before
        insort(pool, (block.size, block.address))
        return size

    def empty_cache(self) -> None:
        """Release every segment that is entirely free."""
        for pool in self._free:
            for size, address in list(pool):
                if self._segments.get(address) == size:
                    pool.remove((size, address))
                    del self._segments[address], self._blocks[address]
                    self.reserved -= size
                    self._changes.append((False, address, size))

    def take_changes(self) -> list[tuple[bool, int, int]]:
        """Segments made (True) and released since the last call: address, bytes."""
        changes, self._changes = self._changes, []
        return changes

    @property
    def largest_free(self) -> int:
        """Bytes of the largest free block."""
        return max((pool[-1][0] for pool in self._free if pool), default=0)

    def _best(self, wanted: int, small: bool) -> _Block | None:
        pool = self._free[0 if small else 1]
        place = bisect_left(pool, (wanted, 0))
        if place == len(pool):
            return None
        _, address = pool.pop(place)
        return self._blocks[address]

    def _segment(self, wanted: int, small: bool) -> _Block:
        size = segment_size(wanted)
        if not self._fits(size):
            self.empty_cache()
            if not self._fits(size):
                raise DeviceFullError(wanted)
        address, self._next = self._next, self._next + size + LARGE_ROUNDING
        self._segments[address] = size
        self._changes.append((True, address, size))
        self.reserved += size
        self.most_reserved = max(self.most_reserved, self.reserved)
        block = self._blocks[address] = _Block(address, size, address)
        return block

    def _fits(self, size: int) -> bool:
        return self.capacity is None or self.reserved + size <= self.capacity

    def _split(self, block: _Block, wanted: int, small: bool) -> None:
        left = block.size - wanted
        if left < GRANULARITY if small else left <= SMALL_REQUEST:
            return
        block.size = wanted
        rest = _Block(block.address + wanted, left, block.segment)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        self._blocks[rest.address] = rest
        insort(self._pool(rest), (left, rest.address))

    def _join(self, first: _Block, second: _Block) -> None:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        del self._blocks[second.address]

    def _pool(self, block: _Block) -> list[tuple[int, int]]:
        small = self._segments[block.segment] == SMALL_SEGMENT
        return self._free[0 if small else 1]

    @staticmethod
    def _unlist(block: _Block, pool: list[tuple[int, int]]) -> None:
        place = bisect_left(pool, (block.size, block.address))
        del pool[place]


def segment_size(wanted: int) -> int:
    """Bytes of the segment that is made for a rounded request."""
    if wanted <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if wanted < MEDIUM_REQUEST:
        return MEDIUM_SEGMENT
    return -(-wanted // LARGE_ROUNDING) * LARGE_ROUNDING
