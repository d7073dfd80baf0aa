"""The CPU's caches, and what of them a stack may take up."""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path

from memplan.fusing.patches import Device
from memplan.units import parse_bytes

_L1, _L2 = 32 << 10, 512 << 10  # bytes, where the system does not tell
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # Linux


@cache
def cache_sizes() -> tuple[int, int]:
    """Bytes of a core's first data cache, and of its second."""
    found = {1: _L1, 2: _L2}
    for folder in sorted(_CACHES.glob("index*")):
        with contextlib.suppress(OSError, ValueError):
            level, kind, size = (
                (folder / name).read_text(encoding="ascii").strip()
                for name in ("level", "type", "size")
            )
            if kind != "Instruction":
                found[int(level)] = parse_bytes(size)
    return found[1], found[2]


def band_bytes() -> int:
    """What the buffers of one thread may take up: most of the first cache."""
    return cache_sizes()[0] * 7 // 8


def cpu_device(layout: str) -> Device:
    """This CPU as `collapse` wants it, for one of `generate.LAYOUTS`.

    A sequence may have half of the second cache: while two steps' bands are in the
    first, the rows that other steps carry on wait in the second.
    """
    lanes = 16 if layout == "channels_last" else 1
    return Device(cache_sizes()[1] // 2, lanes=lanes, carries=True)
