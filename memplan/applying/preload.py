"""A library that stands before malloc, and the process started anew with it.

It serves large requests that go by torch's allocator. What is preloaded can only be
chosen when a process begins.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import memplan.native
from memplan.errors import EnvironmentUnfitError

LIBRARY = "libmemplan_malloc.so"
# Set for the new process: what LD_PRELOAD was before.
_BEFORE = "MEMPLAN_LD_PRELOAD_BEFORE"
_COUNTS = "memplan_malloc_counts"


@dataclass(frozen=True)
class LargeRequests:
    """Of the preloaded library: requests so far; bytes of blocks alive, now and at
    most; of freed pages kept for the next block; of pages returned to the system."""

    requests: int
    live: int
    most_live: int
    kept: int
    returned: int


def large_requests() -> LargeRequests | None:
    """What the library has served in this process; None where it is not preloaded."""
    count = getattr(ctypes.CDLL(None), _COUNTS, None)
    if count is None:
        return None
    values = (ctypes.c_uint64 * 5)()
    count(values)
    return LargeRequests(*values)


def library_path() -> Path:
    """Where the library lies. Raises EnvironmentUnfitError where it was not built."""
    for folder in memplan.native.__path__:
        path = Path(folder) / LIBRARY
        if path.is_file():
            return path
    raise EnvironmentUnfitError(
        f"{LIBRARY} is not there: this memplan was built without it; leave out --malloc"
    )


def preload_malloc() -> None:
    """Start this process's command anew with the library preloaded, before others that
    are; nothing where that has been done. What the program starts has it no more.

    Raises EnvironmentUnfitError where it was not built, or the loader refuses it.
    """
    if _BEFORE in os.environ:
        before = os.environ.pop(_BEFORE)
        os.environ.pop("LD_PRELOAD", None)
        if before:
            os.environ["LD_PRELOAD"] = before
        if large_requests() is None:
            raise EnvironmentUnfitError(
                f"the system did not preload {LIBRARY}; leave out --malloc"
            )
        return
    before = os.environ.get("LD_PRELOAD", "")
    preloaded = ":".join(filter(None, (str(library_path()), before)))
    environment = {**os.environ, _BEFORE: before, "LD_PRELOAD": preloaded}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
