"""Which free ends which allocation."""

from __future__ import annotations

import numpy as np

from memplan.arrays import Int64Array
from memplan.trace.trace import Action, Columns

UNMATCHED = -1


def match_frees(events: Columns) -> Int64Array:
    """The partner of every event, int64, shape (m,); UNMATCHED (-1) where none.

    For a FREE_COMPLETED, the row of the allocation it ends; for an ALLOC, the row
    of the free that ends it. Addresses are reused, so a free ends the latest
    allocation of its address on its device. An allocation at an address that still
    seems live (its free was missed) leaves the earlier one unmatched. A
    FREE_REQUESTED only announces a free, and has no partner.
    """
    partner = np.full(len(events), UNMATCHED, dtype=np.int64)
    is_alloc = events.action == Action.ALLOC
    rows = np.flatnonzero(is_alloc | (events.action == Action.FREE_COMPLETED))
    device, address = events.device[rows], events.address[rows]
    # Sorted by place and then by row, an allocation and its free are neighbours.
    if len(rows) and (device == device[0]).all():
        order = np.argsort(address, kind="stable")
    else:
        order = np.lexsort((address, device))
    rows, device, address = rows[order], device[order], address[order]
    starts = is_alloc[rows]
    pair = (
        (address[1:] == address[:-1])
        & (device[1:] == device[:-1])
        & starts[:-1]
        & ~starts[1:]
    )
    alloc, free = rows[:-1][pair], rows[1:][pair]
    partner[alloc], partner[free] = free, alloc
    return partner
