"""When an arena is made: torch's allocator must not keep as much memory beside it."""

from __future__ import annotations

import contextlib
from typing import Any

SPARE_PART = 64  # one part in so many of the arena may lie idle beside it
SPLIT_PART = 16  # and so many within segments of which a part is in use
LEAST = 32 << 20  # bytes, as little as torch's segments come to


class ArenaMaking:
    """Says, when a program has begun to follow a plan, whether its arena is made.

    What torch's allocator keeps free at that time, it would keep beside the arena, and
    natively the program would use it. So it is given back first; but not for a program
    that runs in a loop and asks the driver for nothing more: that would cost it calls
    and synchronisations that it does not have without a plan.
    """

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._calls: dict[tuple[int, int], int] = {}  # of cudaMalloc, when last asked

    def permits(self, device: int, rank: int, size: int, hot: bool) -> bool:
        """Whether an arena of `size` bytes is made for a stream now.

        hot: the program has run its warm-up. Any thread may ask; False where torch does
        not tell what it keeps.
        """
        with contextlib.suppress(Exception):  # in the midst of somebody's program
            return self._permits(device, rank, size, hot)
        return False

    def _permits(self, device: int, rank: int, size: int, hot: bool) -> bool:
        stats = self._cuda.memory_stats(device)
        split = stats.get("inactive_split_bytes.all.current", 0)
        used = stats.get("active_bytes.all.current", 0)
        idle = stats.get("reserved_bytes.all.current", 0) - used - split
        calls = stats.get("num_device_alloc", 0)
        before = self._calls.get((device, rank))
        self._calls[device, rank] = calls
        if split > size // SPLIT_PART + LEAST:
            return False
        if idle <= size // SPARE_PART:
            return True
        if hot and (before is None or calls == before or size > idle):
            return False
        self._cuda.empty_cache()
        return True
