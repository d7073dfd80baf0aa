"""Resident memory of this process, as Linux tells it."""

from __future__ import annotations

import contextlib
from pathlib import Path


def resident_bytes() -> int:
    """Bytes that are resident now; 0 if unknown."""
    return _status("VmRSS:")


def peak_resident_bytes() -> int:
    """Bytes that were resident when most were; 0 if unknown."""
    return _status("VmHWM:")


def anonymous_bytes() -> int:
    """Bytes that are resident now and no file's: heaps, stacks; 0 if unknown."""
    return _status("RssAnon:")


def file_bytes() -> int:
    """Bytes of files that are resident now: libraries, mostly; 0 if unknown."""
    return _status("RssFile:")


def _status(name: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0
