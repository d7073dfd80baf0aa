"""What an allocator reserved, where a trace tells of its segments."""

from __future__ import annotations

import numpy as np

from memplan.arrays import Int64Array
from memplan.trace.trace import Action, Columns


def reserved_bytes(events: Columns) -> Int64Array:
    """Bytes of segments after each event, shape (m,); all 0 where none is told of."""
    change = np.where(events.action == Action.SEGMENT_ALLOC, events.size, 0)
    change -= np.where(events.action == Action.SEGMENT_FREE, events.size, 0)
    total: Int64Array = np.cumsum(change)
    return total


def most_reserved(events: Columns) -> int:
    """The most bytes of segments at any moment; 0 where none is told of."""
    return int(reserved_bytes(events).max(initial=0))


def ran_out(events: Columns) -> bool:
    """Whether a request failed."""
    return bool((events.action == Action.OOM).any())
