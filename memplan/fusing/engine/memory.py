"""Memory of an arena, by large pages where the system gives them."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

LARGE = 2 << 20  # bytes of a large page
ADVICE = 14  # MADV_HUGEPAGE of Linux


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
