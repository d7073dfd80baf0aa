"""Which free ends which allocation, told of every event."""

from __future__ import annotations

import numpy as np

from memplan.arrays import Int64Array
from memplan.trace.lives import UNMATCHED, pairs
from memplan.trace.trace import Columns


def match_frees(events: Columns) -> Int64Array:
    """The row of every event's partner, shape (m,); UNMATCHED where it has none."""
    partner = np.full(len(events), UNMATCHED, dtype=np.int64)
    alloc, free = pairs(events)
    partner[alloc], partner[free] = free, alloc
    return partner
