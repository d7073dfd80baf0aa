"""Patches of planes: what they need of the planes before, and what they take.

A patch is a band of whole rows. Bands follow each other from top to bottom, and each
pool keeps what the next band needs of its last rows: nothing is computed twice, and one
thread works on a plane.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import mul
from pathlib import Path
from typing import NamedTuple

from memplan.fusing.operators import Pool
from memplan.units import parse_bytes

# Rows of a band that the rows carried from band to band are cheap for: with values of
# one channel side by side, and of several.
_SHORT, _SHORT_LANES = 8, 4


class Patch(NamedTuple):
    """Rows and columns of a plane."""

    rows: int
    columns: int


@dataclass(frozen=True)
class Device:
    """What patches have to fit.

    limit: bytes of cache for the working set of one patch.
    lanes: values that lie at each point of a plane (channels last: its channels).
    """

    limit: int
    lanes: int = 1

    @property
    def value_bytes(self) -> int:
        """Bytes of one point of a plane in a buffer: buffers are of float32."""
        return 4 * self.lanes


def held(
    pools: Sequence[Pool], axis: int, start: int, stop: int, size: int
) -> list[int]:
    """How many rows (axis 0) or columns (1) outputs [start, stop) need of every plane
    but the output's own, the input's first, with padding around.

    size: of the input along that axis.
    """
    along = [size]
    for pool in pools:
        along.append(pool.size(along[-1], along[-1])[axis])
    found: list[int] = []
    for pool, extent in zip(reversed(pools), reversed(along[:-1]), strict=True):
        first, last = pool.window(axis, start, stop)
        found.insert(0, last - first)
        start = min(max(first, 0), extent)
        stop = max(min(last, extent), start)
    return found


@lru_cache(maxsize=4096)
def fit(
    pools: tuple[Pool, ...], plane: tuple[int, int], device: Device
) -> tuple[Patch, int]:
    """The highest patch within the device's limit, and the bytes of its working set.

    If none is, the smallest there is, whose bytes say so. Without pools any patch
    will do, for values pass from one operation to the next in registers. The pools
    must leave something of the plane.
    """
    if not pools:
        return Patch(*plane), 0
    out = plane
    for pool in pools:
        out = pool.size(*out)
    least = min(_SHORT if device.lanes == 1 else _SHORT_LANES, out[0])
    found = [
        (Patch(rows, out[1]), _working_set(pools, rows, out, plane, device))
        for rows in _parts(out[0])
        if rows >= least
    ]
    fitting = [each for each in found if each[1] <= device.limit]
    return fitting[-1] if fitting else min(found, key=lambda each: each[1])


def _parts(size: int) -> list[int]:
    """The rows of a plane in 1, 2, 3, 4, 6, 8 … even parts, the fewest first."""
    counts = [1, 3, *(1 << n for n in range(1, 15)), *(3 << n for n in range(1, 14))]
    return sorted({-(-size // count) for count in counts if count <= size})


def _working_set(
    pools: Sequence[Pool],
    patch: int,
    out: tuple[int, int],
    plane: tuple[int, int],
    device: Device,
) -> int:
    """Bytes of two buffers that patches of so many rows of every second plane fit, and
    rows carried.

    The patch is from the middle of the plane, where its borders are largest. What comes
    out of the last pool goes to memory, and to no buffer.
    """
    columns = held(pools, 1, 0, out[1], plane[1])
    start = (out[0] - patch) // 2
    rows = held(pools, 0, start, start + patch, plane[0])
    carried = 0
    if rows[0] < plane[0]:  # else one band is all
        rows = _band(pools, patch, out[0], plane[0])
        keep = [max(pool.reach(0) - pool.stride[0], 0) for pool in pools]
        carried = sum(map(mul, keep, columns))
    areas = list(map(mul, rows, columns))
    buffers: int = max(areas[::2]) + max(areas[1::2], default=0)
    return device.value_bytes * (buffers + carried)


def _band(pools: Sequence[Pool], rows: int, out: int, height: int) -> list[int]:
    """Rows of each plane but the last that a band of `rows` outputs takes up: those
    that are new, or for the first band all that its first output needs."""
    middle = (out - 1) // 2
    first = held(pools, 0, middle, middle + 1, height)
    found: list[int] = []
    for pool, least in zip(reversed(pools), reversed(first), strict=True):
        rows = rows * pool.stride[0]
        found.insert(0, max(rows, least))
    return found


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
    return Device(cache_sizes()[1] // 2, lanes=lanes)
