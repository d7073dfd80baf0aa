"""What a page shows of a trace: its buffers, and its live bytes at moments.

A page of a million events shows the buffers that matter most by themselves, and all of
them in the curves; moments are thinned so that no peak and no trough is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from memplan.arrays import Int64Array
from memplan.reporting.attribution import Buffers
from memplan.trace.trace import Action, Columns

MOST_BUFFERS = 120_000  # that a page shows one by one
MOST_MOMENTS = 120_000


@dataclass(frozen=True, eq=False)
class Lives:
    """Buffers on a clock that advances by one after every allocation and every free.

    lower, upper: the half-open life of each buffer, shape (n,); `upper` is `ticks` of
    one that was never freed. rows: the event of each tick, shape (ticks,).
    """

    buffers: Buffers
    lower: Int64Array
    upper: Int64Array
    rows: Int64Array

    @classmethod
    def of(cls, events: Columns, buffers: Buffers) -> Lives:
        """Of a trace's events and the buffers found in them."""
        counted = events.action == Action.FREE_COMPLETED
        counted[buffers.row] = True
        before = np.append(0, np.cumsum(counted)).astype(np.int64)
        rows = np.flatnonzero(counted).astype(np.int64)
        return cls(buffers, before[buffers.row], before[buffers.end], rows)

    @property
    def ticks(self) -> int:
        """The clock's reading at the end."""
        return len(self.rows)

    def tick_of(self, rows: Int64Array) -> Int64Array:
        """The tick of the first allocation or free at each event, or after it."""
        return np.searchsorted(self.rows, rows).astype(np.int64)

    @cached_property
    def live(self) -> Int64Array:
        """Bytes alive after each tick, shape (ticks,)."""
        return self.live_of(np.ones(len(self.lower), dtype=np.bool_))

    def live_of(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Int64Array:
        """Those of the buffers chosen, a flag for each."""
        change = np.zeros(self.ticks + 1, dtype=np.int64)
        # A tick is one allocation or one free; only the end is shared.
        change[self.lower[chosen]] = self.buffers.size[chosen]
        died = chosen & (self.upper < self.ticks)
        change[self.upper[died]] = -self.buffers.size[died]
        alive: Int64Array = np.cumsum(change[:-1])
        return alive

    @property
    def peak(self) -> int:
        """The first tick after which most is alive; -1 where nothing ever is."""
        return int(np.argmax(self.live)) if self.ticks else -1

    def moments(self, always: Int64Array, most: int = MOST_MOMENTS) -> Int64Array:
        """Ticks at which the page knows what is alive, ascending.

        Of more than `most`, each stretch of the run keeps its first, lowest, highest
        and last; `always` are kept, too.
        """
        live, count = self.live, self.ticks
        if count <= most:
            return np.arange(count, dtype=np.int64)
        edges = np.linspace(0, count, max(most // 4, 1) + 1).astype(np.int64)
        first, last = edges[:-1], edges[1:] - 1
        stretch = np.repeat(np.arange(len(first)), last - first + 1)
        order = np.lexsort((live, stretch))
        always = always[(always >= 0) & (always < count)]
        kept = [first, last, order[first], order[last], always]
        return np.unique(np.concatenate(kept)).astype(np.int64)

    def most_telling(self, most: int = MOST_BUFFERS) -> Int64Array:
        """The buffers to show one by one, ascending: what is alive at the peak, largest
        first, and then those with most bytes for longest."""
        size = self.buffers.size
        if len(size) <= most:
            return np.arange(len(size), dtype=np.int64)
        area = size.astype(np.float64) * (self.upper - self.lower)
        there = (self.lower <= self.peak) & (self.peak < self.upper)
        order = np.lexsort((area, np.where(there, size, 0)))
        chosen = np.sort(order[len(order) - most // 2 :])
        left = np.setdiff1d(np.arange(len(area)), chosen, assume_unique=True)
        by_area = left[np.argsort(area[left], kind="stable")]
        more = by_area[len(by_area) - (most - len(chosen)) :]
        return np.union1d(chosen, more).astype(np.int64)
