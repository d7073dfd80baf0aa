"""The counter of a heap's bytes, in a process that knows what it asks for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ASKS = """
import ctypes, mmap
heap = ctypes.CDLL(None)
heap.malloc.restype = heap.calloc.restype = heap.realloc.restype = ctypes.c_void_p
heap.heap_live.restype = heap.heap_peak.restype = ctypes.c_long
before = heap.heap_live()
one = heap.malloc(1 << 24)
two = heap.calloc(1 << 12, 1 << 12)
two = heap.realloc(ctypes.c_void_p(two), 1 << 25)
pages = mmap.mmap(-1, 1 << 26)
pages.close()
heap.free(ctypes.c_void_p(one))
live, peak = heap.heap_live() - before, heap.heap_peak() - before
heap.free(ctypes.c_void_p(two))
heap.heap_reset()
print(live >> 20, peak >> 20, (heap.heap_peak() - before) >> 20)
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_bytes_of_all_kinds_are_counted(tmp_path: Path) -> None:
    from bench.planned import counter

    preload = {"LD_PRELOAD": str(counter(tmp_path)), "PYTHONMALLOC": "malloc"}
    done = subprocess.run(
        [sys.executable, "-c", ASKS],
        env={**os.environ, **preload},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["32", "112", "0"]
