"""Which free ends which allocation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Int64Array
from memplan.trace.trace import Action, Columns

UNMATCHED = -1
# A trace has fewer events than this counts; half the memory of the usual index.
_Rows = npt.NDArray[np.int32]


def pairs(events: Columns) -> tuple[_Rows, _Rows]:
    """The rows of the allocations that are freed, and of the frees; shape (k,) each.

    Addresses are reused, so a free ends the latest allocation of its address on its
    device. An allocation at an address that still seems live (its free was missed)
    leaves the earlier one unmatched. A FREE_REQUESTED only announces a free, and ends
    nothing.
    """
    return _Places(events.action, events.address, events.device).pairs()


def lives(events: Columns) -> tuple[Int64Array, Int64Array]:
    """The rows of all allocations of any bytes, ascending, and of their frees.

    The number of events where there is no free; shape (n,) each.
    """
    made = (events.action == Action.ALLOC) & (events.requested_size > 0)
    row = np.flatnonzero(made).astype(np.int64)
    end = np.full(len(events), len(events), dtype=np.int64)
    alloc, free = pairs(events)
    end[alloc] = free
    return row, end[row]


def labelled(events: Columns) -> tuple[_Rows, _Rows]:
    """The rows of LABEL events, and of the allocations they tell of; shape (k,) each.

    A label of an address where nothing is live tells of nothing, and is left out.
    """
    counted = np.isin(
        events.action, [Action.ALLOC, Action.FREE_COMPLETED, Action.LABEL]
    )
    rows = np.flatnonzero(counted).astype(np.int32)
    order = np.lexsort((rows, events.address[rows], events.device[rows]))
    rows = rows[order]
    action, address = events.action[rows], events.address[rows]
    device = events.device[rows]
    # Of each row, the place of the last allocation or free up to it.
    at = np.where(action != Action.LABEL, np.arange(len(rows)), -1)
    last = np.maximum.accumulate(at) if len(at) else at
    told = np.flatnonzero((action == Action.LABEL) & (last >= 0))
    block = last[told]
    live = (
        (action[block] == Action.ALLOC)
        & (address[block] == address[told])
        & (device[block] == device[told])
    )
    return rows[told[live]], rows[block[live]]


class OpenBlocks:
    """Blocks not freed yet, from one piece of a trace to the next.

    What is kept grows with the blocks that are live, not with the trace.
    """

    def __init__(self) -> None:
        none = Columns.of()
        self._address, self._device = none.address, none.device
        self._size = none.requested_size

    def freed(self, events: Columns) -> Int64Array:
        """For each event the bytes it frees, exact, wherever their block was made.

        int64, shape (m,); UNMATCHED (-1) for all but a free that ends an allocation.
        """
        begin = len(self._size)
        made = np.full(begin, Action.ALLOC, dtype=np.uint8)
        action = np.concatenate([made, events.action])
        address = np.concatenate([self._address, events.address])
        device = np.concatenate([self._device, events.device])
        size = np.concatenate([self._size, events.requested_size])
        places = _Places(action, address, device)
        alloc, free = places.pairs()
        freed = np.full(len(action), UNMATCHED, dtype=np.int64)
        freed[free] = size[alloc]
        live = places.open()
        self._address, self._device = address[live], device[live]
        self._size = size[live]
        return freed[begin:]


class _Places:
    """The allocations and frees of each place, in order, one place after the other.

    Sorted by place and then by row, an allocation and its free are neighbours.
    """

    def __init__(
        self,
        action: npt.NDArray[np.uint8],
        address: npt.NDArray[np.uint64],
        device: npt.NDArray[np.int16],
    ) -> None:
        made = action == Action.ALLOC
        rows = np.flatnonzero(made | (action == Action.FREE_COMPLETED)).astype(np.int32)
        address = address[rows]
        one = (device == device[:1]).all()
        device = device[:0] if one else device[rows]
        order = (
            np.argsort(address, kind="stable") if one else np.lexsort((address, device))
        )
        self._rows = rows[order]
        address = address[order]
        self._same: BoolArray = address[1:] == address[:-1]
        if not one:
            device = device[order]
            self._same &= device[1:] == device[:-1]
        self._made = made[self._rows]

    def pairs(self) -> tuple[_Rows, _Rows]:
        """The rows of each allocation that is freed, and of its free."""
        pair = self._same & self._made[:-1] & ~self._made[1:]
        return self._rows[:-1][pair], self._rows[1:][pair]

    def open(self) -> _Rows:
        """The rows of the allocations that come last at their places."""
        last = np.ones(len(self._rows), dtype=np.bool_)
        last[:-1] = ~self._same
        found: _Rows = self._rows[last & self._made]
        return found
