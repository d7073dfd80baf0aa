"""Whether a program's memory grows from step to step, and which line makes it grow.

What counts at the end of a step is what has outlived the step after the one that made
it, as gradients, the last batch and its losses do not; and what one line makes anew,
larger in every step. Warm-up is left out. A growth that has stopped, or that goes to
and fro, is none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from memplan.arrays import Int64Array
from memplan.levels import level
from memplan.trace.holders import Holder
from memplan.trace.lives import Lives
from memplan.trace.sites import Site

LEAST_STEPS = 6  # after the warm-up: with fewer, chance rises as steadily
_LEAST_TREND = 0.7  # Kendall's tau of the level over steps
_LEAST_RISES = 3


@dataclass(frozen=True)
class Leak:
    """Memory that grows by `bytes_per_step`, over the `steps` that were looked at.

    site: whose buffers make up most of the growth. holder: what holds most of it when
    the recording ends, None where that is not known.
    """

    bytes_per_step: float
    site: Site
    steps: int
    holder: Holder | None = None


def told(buffers: Lives) -> bool:
    """Whether there are steps enough to tell."""
    return len(buffers.bounds) - _warm_up(buffers) >= LEAST_STEPS


def _warm_up(buffers: Lives) -> int:
    return max(2, len(buffers.bounds) // 4)


def find_leak(buffers: Lives) -> Leak | None:
    """The growth over steps, or None: there is none, or there are too few steps."""
    if not told(buffers):
        return None
    return _kept(buffers) or _made_anew(buffers)


def _kept(buffers: Lives) -> Leak | None:
    """A growth of what is kept: of a list, of graphs, of a cache."""
    kept, begin = outliving(buffers), _warm_up(buffers)
    slope = _growth(kept[begin:])
    last = len(kept) - 1
    row = int(buffers.bounds[last])
    made = (buffers.step >= begin - 1) & (buffers.step <= last - 2)
    grown = np.flatnonzero(made & (buffers.row <= row) & (buffers.end > row))
    if slope <= 0 or not len(grown):
        return None
    sums = np.zeros(len(buffers.sites), dtype=np.int64)
    np.add.at(sums, buffers.site[grown], buffers.size[grown])
    site = buffers.sites[int(np.argmax(sums))]
    return Leak(slope, site, last - begin, _holder(buffers, grown))


def _holder(buffers: Lives, grown: Int64Array) -> Holder | None:
    """The variable that holds most of these buffers, itself or by its graph; None if
    that is less than half of them."""
    bytes_ = np.zeros(len(buffers.holders), dtype=np.int64)
    held = grown[buffers.holder[grown] >= 0]
    np.add.at(bytes_, buffers.holder[held], buffers.size[held])
    sums: Counter[tuple[str, str]] = Counter()
    for holder, size in zip(buffers.holders, bytes_.tolist(), strict=True):
        sums[holder.variable, holder.place] += size
    if not sums:
        return None
    ((variable, most),) = sums.most_common(1)
    if 2 * most < buffers.size[grown].sum():
        return None
    ours = [(h.variable, h.place) == variable for h in buffers.holders]
    first = buffers.holders[int(np.argmax(np.where(ours, bytes_, -1)))]
    return Holder(first.name, first.place, first.filled)


def _made_anew(buffers: Lives) -> Leak | None:
    """A growth of one site's buffer that is made anew, larger each time: a history that
    is joined with what is new.

    None where what the steps ask for grows as well: sentences in the order of length.
    """
    begin, last = _warm_up(buffers), len(buffers.bounds) - 1
    row = int(buffers.bounds[last])
    live = (buffers.row <= row) & (buffers.end > row)
    young = np.unique(buffers.site[live & (buffers.step >= last)])
    asked = _asked(buffers, buffers.size)
    found = None
    for site in young.tolist():
        own = np.where(buffers.site == site, buffers.size, 0)
        slope = _growth(_level(buffers, own, 0)[begin:])
        others = asked - _asked(buffers, own)
        if slope > 0 and _trend(others[begin:]) < _LEAST_TREND:
            leak = Leak(slope, buffers.sites[site], last - begin)
            found = max(found or leak, leak, key=lambda each: each.bytes_per_step)
    return found


def outliving(buffers: Lives) -> Int64Array:
    """At the end of each step the bytes that were made two steps before, or earlier.

    Shape (b,), one for each boundary; all that is persistent is in it.
    """
    return _level(buffers, buffers.size, 2)


def _level(buffers: Lives, size: Int64Array, age: int) -> Int64Array:
    """At each boundary the live bytes that were made `age` steps before, or earlier."""
    count = len(buffers.bounds)
    first = buffers.step + age
    until = np.searchsorted(buffers.bounds, buffers.end, side="left")
    counted = (first < count) & (until > first)
    return level(first[counted], until[counted], size[counted], count)


def _asked(buffers: Lives, size: Int64Array) -> Int64Array:
    """Bytes asked for in each step that came to its end, shape (b,)."""
    sums = np.zeros(len(buffers.bounds) + 1, dtype=np.int64)
    np.add.at(sums, buffers.step, size)
    return sums[:-1]


def _growth(height: Int64Array) -> float:
    """Bytes a step by which it grows; 0 if it does not, on the whole and to the end."""
    if not _grows(height):
        return 0.0
    # Of long distances, so that steps that add nothing count, too.
    half = len(height) // 2
    return float(np.median((height[half:] - height[: len(height) - half]) / half))


def _grows(height: Int64Array) -> bool:
    """Whether it rises again and again, to the end, and hardly ever falls."""
    highest = np.maximum.accumulate(height)
    rises = np.flatnonzero(height[1:] > highest[:-1]) + 1
    if len(rises) < max(_LEAST_RISES, len(height) // 8):
        return False
    goes_on = int(rises[-1]) >= len(height) - 1 - max(1, len(height) // 4)
    return goes_on and _trend(height) >= _LEAST_TREND


def _trend(height: Int64Array) -> float:
    """Kendall's tau of a height over steps; pairs that are equal do not count."""
    height = height[:: -(-len(height) // 1000)]  # at most a thousand, evenly
    later = np.sign(height[np.newaxis, :] - height[:, np.newaxis])
    pairs = np.triu(later, 1)
    counted = np.count_nonzero(pairs)
    return float(pairs.sum()) / counted if counted else 0.0
