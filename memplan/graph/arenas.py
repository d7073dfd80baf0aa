"""Memory of arenas and packed weights, on large pages where the system gives them."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

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


HELD = 1  # arenas with results in use that a pool keeps
ARENAS = 8  # of a module, for calls at the same time; further ones wait


class Slab:
    """Some bytes, and what is bound to their addresses.

    given: references to storages over them, of the results of the last call.
    """

    def __init__(self, count: int) -> None:
        self.memory = arena(count)
        self.bytes = count
        self.given: list[StorageWeakRef] = []
        self._bound: weakref.WeakKeyDictionary[object, dict[Any, Any]] = (
            weakref.WeakKeyDictionary()
        )

    def bound(self, program: object) -> dict[Any, Any]:
        """What a program keeps for this memory, by keys of its own, while it lives."""
        found = self._bound.get(program)
        return self._bound.setdefault(program, {}) if found is None else found

    @property
    def held(self) -> bool:
        """Whether anything of the caller's refers to results in it."""
        return bool(self.given) and not all(each.expired() for each in self.given)


class Lease:
    """A slab of a pool for the time of a `with` statement: a class, for speed."""

    def __init__(self, pool: ArenaPool, count: int) -> None:
        self._pool, self._count = pool, count
        self._slab: Slab | None = None

    def __enter__(self) -> Slab:
        self._slab = self._pool._take()
        if self._slab is None or self._slab.bytes < self._count:
            self._slab = None  # freed before the larger one is made
            try:
                self._slab = Slab(self._count)
            except BaseException:
                self._pool._give(None)
                raise
        return self._slab

    def __exit__(self, kind: object, *_: object) -> None:
        self._pool._give(self._slab if kind is None else None)


class ArenaPool:
    """The arena memory of a module, shared by its programs for all input shapes.

    limit: slabs in use at the same time; further calls wait. A slab that is too small
    is freed and replaced by a larger one. One with results that a caller holds is not
    used; of these the pool keeps one. left: how many others it left to the callers.
    """

    def __init__(self, limit: int = ARENAS) -> None:
        self._idle: list[Slab] = []
        self._limit, self.left = limit, 0
        self.reset()
        _pools.add(self)

    def reset(self) -> None:
        """Count no slab as in use."""
        self._room, self._turn = self._limit, threading.Condition()

    def slab(self, count: int) -> Lease:
        """A slab of at least so many bytes for one caller. One whose use fails is
        dropped."""
        return Lease(self, count)

    def _take(self) -> Slab | None:
        """An idle slab that no caller holds results in, if there is one."""
        with self._turn:
            while not self._room:
                self._turn.wait()
            self._room -= 1
            idle = self._idle
            for at in reversed(range(len(idle))):  # the last used is in the cache
                if not idle[at].held:
                    return idle.pop(at)
            if len(idle) > HELD:
                self.left += 1
                del idle[0]
        return None

    def _give(self, slab: Slab | None) -> None:
        """Let another caller in, who may use this slab."""
        with self._turn:
            if slab is not None:
                self._idle.append(slab)
            self._room += 1
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
