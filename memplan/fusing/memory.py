"""Memory of arenas and weights, by large pages where the system gives them."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

LARGE = 2 << 20  # bytes of a large page
ADVICE = 14  # MADV_HUGEPAGE of Linux
LINE = 64  # bytes of a cache line, and of the widest vector
BLOCK = 16 * LARGE  # bytes that are asked for at a time


def arena(size: int) -> Any:
    """A uint8 tensor of `size` bytes, not initialised.

    A first touch of every 4 KiB page costs more than what a kernel does with it; on
    large pages it is one touch in 512.
    """
    import torch

    memory = torch.empty(size, dtype=torch.uint8, device="cpu")
    first = -(-memory.data_ptr() // LARGE) * LARGE
    pages = (memory.data_ptr() + size - first) // LARGE
    if pages > 0 and sys.platform == "linux":
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        advise(first, pages * LARGE, ADVICE)  # it is advice: whatever it answers
    return memory


class Room:
    """Memory for what is kept together, handed out in pieces that follow each other:
    many small tensors share large pages, which each alone would be too small for."""

    def __init__(self) -> None:
        self._block: Any = None
        self._at = self._end = 0  # bytes into the block

    def floats(self, count: int) -> Any:
        """`count` float32, not initialised, that begin on a cache line."""
        import torch

        size = -(-count * 4 // LINE) * LINE
        if self._at + size > self._end:
            whole = max(BLOCK, -(-size // LARGE) * LARGE)
            self._block = arena(whole + LARGE)  # what is not touched is not taken
            self._at = -self._block.data_ptr() % LARGE
            self._end = self._at + whole
        piece = self._block[self._at : self._at + count * 4]
        self._at += size
        return piece.view(torch.float32)
