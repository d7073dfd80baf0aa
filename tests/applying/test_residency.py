"""Where resident memory is said to live."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from memplan.applying.report import Before, where_memory_lives
from memplan.native import _alloc

PART = 1 << 20


@dataclass
class Reserved:
    """An arena's addresses, as the native Replay tells them."""

    base: int
    reserved_bytes: int = PART
    top: int = PART
    returned_bytes: int = 0


@pytest.fixture
def middle() -> Iterator[Reserved]:
    """An arena right between two mappings that are resident."""
    libc = ctypes.CDLL(None, use_errno=True)
    memory = mmap.mmap(-1, 3 * PART)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for start in (begin, begin + 2 * PART):
        ctypes.memset(start, 7, PART)
        # So that the kernel lists it as a mapping of its own.
        address, size = ctypes.c_void_p(start), ctypes.c_size_t(PART)
        assert libc.mprotect(address, size, mmap.PROT_READ) == 0
    yield Reserved(begin + PART)
    memory.close()


def test_only_the_arenas_own_pages_count(middle: Reserved) -> None:
    tensors = _alloc.tensor_bytes()
    empty = where_memory_lives(Before(), [middle], tensors)  # type: ignore[list-item]
    assert empty.arena == 0
    ctypes.memset(middle.base, 7, PART // 2)
    half = where_memory_lives(Before(), [middle], tensors)  # type: ignore[list-item]
    assert half.arena == PART // 2
