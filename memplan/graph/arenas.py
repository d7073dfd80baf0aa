"""Memory of arenas and packed weights, on large pages where the system gives them."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

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


ARENAS = 8  # of a module, for calls at the same time; further ones wait


class Slab:
    """Some bytes, and what is bound to their addresses."""

    def __init__(self, count: int) -> None:
        self.memory = arena(count)
        self.bytes = count
        self._bound: weakref.WeakKeyDictionary[object, dict[Any, Any]] = (
            weakref.WeakKeyDictionary()
        )

    def bound(self, program: object) -> dict[Any, Any]:
        """What a program keeps for this memory, by keys of its own, while it lives."""
        return self._bound.setdefault(program, {})


class ArenaPool:
    """The arena memory of a module, shared by its programs for all input shapes.

    limit: slabs in use at the same time; further calls wait. A slab that is too small
    is freed and replaced by a larger one.
    """

    def __init__(self, limit: int = ARENAS) -> None:
        self._idle: list[Slab] = []
        self._limit = limit
        self.reset()
        _pools.add(self)

    def reset(self) -> None:
        """Count no slab as in use."""
        self._left, self._turn = self._limit, threading.Condition()

    @contextmanager
    def slab(self, count: int) -> Iterator[Slab]:
        """A slab of at least so many bytes for one caller. One whose use fails is
        dropped."""
        found: Slab | None = None
        with self._turn:
            while not self._left:
                self._turn.wait()
            self._left -= 1
            if self._idle:
                found = self._idle.pop()  # the last used, which is in the cache
        try:
            if found is None or found.bytes < count:
                found = None  # freed before the larger one is made
                found = Slab(count)
            yield found
            self._idle.append(found)
        finally:
            with self._turn:
                self._left += 1
                self._turn.notify()

    def trim(self, most: int) -> None:
        """Free idle slabs that are larger than `most` bytes, as those of trials."""
        with self._turn:
            self._idle = [slab for slab in self._idle if slab.bytes <= most]

    @property
    def bytes(self) -> int:
        """Bytes of idle slabs."""
        return sum(slab.bytes for slab in list(self._idle))


_pools: weakref.WeakSet[ArenaPool] = weakref.WeakSet()


def _after_fork() -> None:
    """Other threads' calls do not go on in a child."""
    for pool in _pools:
        pool.reset()


os.register_at_fork(after_in_child=_after_fork)
