"""Memory of arenas and weights, on large pages where the system gives them."""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from memplan.fusing.engine.steps import Runner


LARGE = 2 << 20  # bytes of a large page
ADVICE = 14  # MADV_HUGEPAGE of Linux
LINE = 64  # bytes of a cache line, and of the widest vector
BLOCK = 16 * LARGE  # bytes that are asked for at a time


def arena(size: int) -> torch.Tensor:
    """A uint8 tensor of `size` bytes, not initialised.

    The first touch of a 4 KiB page costs more than a kernel's work on it; large pages
    need one touch in 512.
    """
    memory = torch.empty(size, dtype=torch.uint8, device="cpu")
    first = -(-memory.data_ptr() // LARGE) * LARGE
    pages = (memory.data_ptr() + size - first) // LARGE
    if pages > 0 and sys.platform == "linux":
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        advise(first, pages * LARGE, ADVICE)  # it is advice: whatever it answers
    return memory


class PageAllocator:
    """Hands out consecutive pieces of large pages, so that many small tensors share
    them."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._at = self._end = 0  # bytes into the block

    def floats(self, count: int) -> torch.Tensor:
        """`count` float32, not initialised, that begin on a cache line."""
        size = -(-count * 4 // LINE) * LINE
        if self._at + size > self._end:
            whole = max(BLOCK, -(-size // LARGE) * LARGE)
            self._block = arena(whole + LARGE)  # what is not touched is not taken
            self._at = -self._block.data_ptr() % LARGE
            self._end = self._at + whole
        piece = self._block[self._at : self._at + count * 4]
        self._at += size
        return piece.view(torch.float32)


Runners = dict[tuple[int, int], "Runner"]  # by images and packing

MOST_IDLE = 4  # kept for calls at once, of several threads


class Slab:
    """Some bytes, and the runners that are bound to them, by engine and images."""

    def __init__(self, count: int) -> None:
        self.memory = arena(count)
        self.bytes = count
        self._runners: weakref.WeakKeyDictionary[object, Runners] = (
            weakref.WeakKeyDictionary()
        )

    def runners(self, engine: object) -> Runners:
        """The runners of an engine that are bound to this memory."""
        return self._runners.setdefault(engine, {})


class ArenaPool:
    """The arena memory of a fused module, shared by its programs for all shapes.

    A call acquires one slab. A slab that is too small is freed and replaced by a larger
    one.
    """

    def __init__(self) -> None:
        self._idle: list[Slab] = []

    def acquire(self, count: int) -> Slab:
        """A slab of at least so many bytes, for one caller."""
        try:
            slab = self._idle.pop()  # atomic, and what was used last is in the cache
        except IndexError:
            return Slab(count)
        if slab.bytes >= count:
            return slab
        del slab  # before the larger one is made
        return Slab(count)

    def release(self, slab: Slab) -> None:
        """Return a slab to the pool."""
        if len(self._idle) < MOST_IDLE:
            self._idle.append(slab)

    def trim(self, most: int) -> None:
        """Free idle slabs that are larger than `most` bytes, as those of trials."""
        self._idle = [slab for slab in self._idle if slab.bytes <= most]

    @property
    def bytes(self) -> int:
        """Bytes of idle slabs."""
        return sum(slab.bytes for slab in list(self._idle))
