"""Patches of planes: what borders they need, what they take, what they cost.

Two ways to run pools one behind the other on a part of a plane. With *halos*, each
patch of the last plane is computed from all that it needs of the planes before, and
what two patches both need is computed twice; so do GPUs, whose blocks know nothing of
each other. With rows *carried* on, bands of rows follow each other from top to bottom,
and each pool keeps what the next band needs of its last rows; nothing is computed
twice, but a plane is worked on by one thread; so do CPUs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
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

    limit: bytes of cache, or shared memory, for the working set of one patch.
    lanes: values that lie at each point of a plane (channels last: its channels).
    work: bytes that memory moves in the time in which one value of a step is computed.
    carries: bands of whole rows that carry rows on, as on CPUs; else halos.
    """

    limit: int
    lanes: int = 1
    work: float = 2.0
    carries: bool = False

    @property
    def value_bytes(self) -> int:
        """Bytes of one point of a plane in a buffer: buffers are of float32."""
        return 4 * self.lanes


class Span(NamedTuple):
    """Rows, or columns, of one plane that a patch needs.

    [start, stop): those of them that the plane has; [first, last): with padding.
    """

    start: int
    stop: int
    first: int
    last: int

    @property
    def computed(self) -> int:
        return self.stop - self.start

    @property
    def held(self) -> int:
        """How many the buffer has: with padding around."""
        return self.last - self.first


class Fit(NamedTuple):
    """The best patch for some pools: bytes of its working set, and its cost in bytes.

    cost: of one plane: what memory moves, and the work by `Device.work`.
    """

    patch: Patch
    bytes: int
    cost: float


def spans(
    pools: Sequence[Pool], axis: int, start: int, stop: int, size: int
) -> list[Span]:
    """What outputs [start, stop) along an axis need of every plane, the input's first.

    size: of the input along that axis. Rows are axis 0, columns 1. The last one is the
    output's own, without padding.
    """
    along = [size]
    for pool in pools:
        along.append(pool.size(along[-1], along[-1])[axis])
    found = [Span(start, stop, start, stop)]
    for pool, extent in zip(reversed(pools), reversed(along[:-1]), strict=True):
        first, last = pool.window(axis, found[0].start, found[0].stop)
        begin = min(max(first, 0), extent)
        found.insert(0, Span(begin, max(min(last, extent), begin), first, last))
    return found


@lru_cache(maxsize=4096)
def fit(pools: tuple[Pool, ...], plane: tuple[int, int], device: Device) -> Fit:
    """The patch that costs least among those within the device's limit.

    If none is, the smallest there is, whose bytes say so. Without pools any patch
    will do, for values pass from one operation to the next in registers. The pools
    must leave something of the plane.
    """
    out = plane
    for pool in pools:
        out = pool.size(*out)
    moved = (plane[0] * plane[1] + out[0] * out[1]) * 4.0
    if not pools:
        return Fit(Patch(*plane), 0, moved + device.work * plane[0] * plane[1])
    found = [
        Fit(patch, _working_set(pools, patch, plane, device), 0.0)
        for patch in _patches(out, device)
    ]
    fitting = [each for each in found if each.bytes <= device.limit]
    whole = [each for each in fitting if each.patch == out]  # nothing is done twice
    fitting = whole or _largest(fitting)
    if not fitting:
        fitting = [min(found, key=lambda each: each.bytes)]
    costs = [
        each._replace(cost=moved + _cost(pools, each.patch, plane, device))
        for each in fitting
    ]
    return min(costs, key=lambda each: (each.cost, -each.patch.columns))


def _largest(fits: list[Fit]) -> list[Fit]:
    """Of patches that are equally wide, the highest: a lower one never costs less."""
    highest: dict[int, Fit] = {}
    for each in fits:
        best = highest.setdefault(each.patch.columns, each)
        if each.patch.rows > best.patch.rows:
            highest[each.patch.columns] = each
    return list(highest.values())


def _cost(
    pools: tuple[Pool, ...], patch: Patch, plane: tuple[int, int], device: Device
) -> float:
    """Work by `Device.work`, and what is read of the input more than once, in bytes."""
    sizes = (max(plane), max(plane)) if device.carries else patch  # nothing twice
    down = _lengths(pools, 0, sizes[0], plane[0])
    across = _lengths(pools, 1, sizes[1], plane[1])
    areas: list[int] = list(map(mul, down, across))
    return device.work * sum(areas[1:]) + 4.0 * max(areas[0] - plane[0] * plane[1], 0)


def _patches(out: tuple[int, int], device: Device) -> Iterator[Patch]:
    """The plane's rows, and columns, in 1, 2, 3, 4, 6, 8 … even parts."""
    widths = [out[1]] if device.carries else _parts(out[1])
    short = _SHORT if device.lanes == 1 else _SHORT_LANES
    for rows in _parts(out[0]):
        if not device.carries or rows >= min(short, out[0]):
            yield from (Patch(rows, columns) for columns in widths)


def _parts(size: int) -> list[int]:
    counts = [1, 3, *(1 << n for n in range(1, 15)), *(3 << n for n in range(1, 14))]
    return sorted({-(-size // count) for count in counts if count <= size})


@lru_cache(maxsize=4096)
def _lengths(pools: tuple[Pool, ...], axis: int, part: int, size: int) -> list[int]:
    """Rows, or columns, computed of each plane by all patches, `part` at a time."""
    out = size
    for pool in pools:
        out = pool.size(out, out)[axis]
    total = [0] * (len(pools) + 1)
    for start in range(0, out, part):
        found = spans(pools, axis, start, min(start + part, out), size)
        total = [
            so_far + each.computed for so_far, each in zip(total, found, strict=True)
        ]
    return total


def _working_set(
    pools: Sequence[Pool], patch: Patch, plane: tuple[int, int], device: Device
) -> int:
    """Bytes of two buffers that patches of every second plane fit, and rows carried.

    The patch is from the middle of the plane, where its borders are largest. What comes
    out of the last pool goes to memory, and to no buffer.
    """
    columns = [each.held for each in _middle(pools, 1, patch.columns, plane[1])[:-1]]
    rows = [each.held for each in _middle(pools, 0, patch.rows, plane[0])[:-1]]
    carried = 0
    if device.carries and rows[0] < plane[0]:  # else one band is all
        rows = _band(pools, patch.rows, plane[0])
        keep = [max(pool.reach(0) - pool.stride[0], 0) for pool in pools]
        carried = sum(map(mul, keep, columns))
    areas = list(map(mul, rows, columns))
    buffers: int = max(areas[::2]) + max(areas[1::2], default=0)
    return device.value_bytes * (buffers + carried)


def _middle(pools: Sequence[Pool], axis: int, part: int, size: int) -> list[Span]:
    out = size
    for pool in pools:
        out = pool.size(out, out)[axis]
    start = (out - part) // 2
    return spans(pools, axis, start, start + part, size)


def _band(pools: Sequence[Pool], rows: int, height: int) -> list[int]:
    """Rows of each plane but the last that a band of `rows` outputs takes up: those
    that are new, or for the first band all that its first output needs."""
    first = [each.held for each in _middle(pools, 0, 1, height)[:-1]]
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
    return Device(cache_sizes()[1] // 2, lanes=lanes, carries=True)
