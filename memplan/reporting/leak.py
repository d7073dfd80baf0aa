"""Whether a program's memory grows from step to step, and which line makes it grow.

What counts at the end of a step is what has outlived the step after the one that made
it: gradients, the last batch and its losses do not. Warm-up is left out, and a growth
that has stopped, or that goes to and fro, is none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memplan.arrays import Int64Array
from memplan.reporting.attribution import Buffers, Site

LEAST_STEPS = 6  # after the warm-up: with fewer, chance rises as steadily
_LEAST_TREND = 0.7  # Kendall's tau of the level over steps
_LEAST_RISES = 3


@dataclass(frozen=True)
class Leak:
    """Memory that grows by `bytes_per_step`, over the `steps` that were looked at.

    site: whose buffers make up most of the growth; site_bytes: of the growth in all
    these steps, and grown: bytes of all of it.
    """

    bytes_per_step: float
    site: Site
    site_bytes: int
    grown: int
    steps: int


def told(buffers: Buffers) -> bool:
    """Whether there are steps enough to tell."""
    return len(buffers.bounds) - _warm_up(buffers) >= LEAST_STEPS


def _warm_up(buffers: Buffers) -> int:
    return max(2, len(buffers.bounds) // 4)


def find_leak(buffers: Buffers) -> Leak | None:
    """The growth over steps, or None: there is none, or there are too few steps."""
    level, begin = outliving(buffers), _warm_up(buffers)
    seen = level[begin:]
    if not told(buffers) or not _grows(seen):
        return None
    slope = _median_slope(seen)
    if slope <= 0:
        return None
    last = len(level) - 1
    row = int(buffers.bounds[last])
    made = (buffers.step >= begin - 1) & (buffers.step <= last - 2)
    grown = np.flatnonzero(made & (buffers.row <= row) & (buffers.end > row))
    if not len(grown):  # what is freed late holds the growth
        return None
    sums = np.zeros(len(buffers.sites), dtype=np.int64)
    np.add.at(sums, buffers.site[grown], buffers.size[grown])
    top = int(np.argmax(sums))
    return Leak(
        slope, buffers.sites[top], int(sums[top]), int(sums.sum()), len(seen) - 1
    )


def outliving(buffers: Buffers) -> Int64Array:
    """At the end of each step the bytes that were made two steps before, or earlier.

    Shape (b,), one for each boundary; all that is persistent is in it.
    """
    count = len(buffers.bounds)
    first = buffers.step + 2
    until = np.searchsorted(buffers.bounds, buffers.end, side="left")
    counted = (first < count) & (until > first)
    change = np.zeros(count + 1, dtype=np.int64)
    np.add.at(change, first[counted], buffers.size[counted])
    np.add.at(change, until[counted], -buffers.size[counted])
    level: Int64Array = np.cumsum(change[:-1])
    return level


def _grows(level: Int64Array) -> bool:
    """Whether it rises again and again, to the end, and hardly ever falls."""
    highest = np.maximum.accumulate(level)
    rises = np.flatnonzero(level[1:] > highest[:-1]) + 1
    if len(rises) < max(_LEAST_RISES, len(level) // 8):
        return False
    goes_on = int(rises[-1]) >= len(level) - 1 - max(1, len(level) // 4)
    return goes_on and _trend(level) >= _LEAST_TREND


def _trend(level: Int64Array) -> float:
    """Kendall's tau of the level over steps; pairs that are equal count as no change.

    Where most steps add nothing, of those that add something.
    """
    level = _thinned(level)
    later = np.sign(level[np.newaxis, :] - level[:, np.newaxis])
    pairs = np.triu(later, 1)
    counted = np.count_nonzero(pairs)
    return float(pairs.sum()) / counted if counted else 0.0


def _median_slope(level: Int64Array) -> float:
    """Bytes a step: of long distances, so that steps that add nothing count, too."""
    half = len(level) // 2
    return float(np.median((level[half:] - level[: len(level) - half]) / half))


def _thinned(level: Int64Array) -> Int64Array:
    """At most a thousand of the values, evenly."""
    stride = -(-len(level) // 1000)
    return level[::stride]
