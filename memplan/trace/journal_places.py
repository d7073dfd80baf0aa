"""Where a journal's events belong: to the CPU, or to a stream of a GPU.

A row's `place` is 0 for the CPU, or the number, from 1, of a row that is no event but
tells of a place: a GPU's index (its `size`), and a stream's handle (its `address`).
Such a row stands before those that refer to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Int64Array
from memplan.limits import MAX_INTEGER
from memplan.trace.trace import Action

TOLD = 8  # the action of a row that tells of a place
_MOST_DEVICE = int(np.iinfo(np.int16).max)
_MOST_PLACES = int(np.iinfo(np.uint16).max)

Rows = npt.NDArray[Any]  # of `memplan.trace.journal.ROW`


class Places:
    """The places that a journal tells of, as far as it was read."""

    def __init__(self) -> None:
        self._places = [(0, 0)]  # GPU and stream, by number
        self._asked: set[int] = set()  # the numbers of those asked for memory

    @property
    def devices(self) -> list[int]:
        """The GPUs that were asked for memory, ascending: one that was only made ready
        has segments, or labels, and no more."""
        return sorted({self._places[number][0] for number in self._asked})

    def note(self, rows: Rows) -> str:
        """Those that some rows tell of. "" or what is wrong with one."""
        told = rows[rows["action"] == TOLD]
        for device, stream in zip(told["size"], told["address"], strict=True):
            if not 0 <= device <= _MOST_DEVICE or stream > MAX_INTEGER:
                return f"tells of stream {stream} of GPU {device}"
            if len(self._places) > _MOST_PLACES:
                return "tells of too many streams"
            self._places.append((int(device), int(stream)))
        if len(self._places) > 1:
            asked = np.isin(rows["action"], (Action.ALLOC, Action.OOM))
            self._asked.update(np.unique(self._numbers(rows[asked])).tolist())
            self._asked.discard(0)
        return ""

    def columns(self, rows: Rows) -> dict[str, npt.NDArray[Any]]:
        """Columns of a trace in which the place shows; what tells of a place becomes a
        label of nothing."""
        if len(self._places) == 1:
            return {}
        at = np.array(self._places, dtype=np.int64)[self._numbers(rows)]
        told = rows["action"] == TOLD
        return {
            "device": at[:, 0],
            "stream": at[:, 1],
            "action": np.where(told, Action.LABEL, rows["action"]),
            "size": np.where(told, 0, rows["size"]),
        }

    def chosen(self, rows: Rows, device: int | None) -> Int64Array | None:
        """Which are the CPU's events, or a GPU's, with all steps; None: all are."""
        if len(self._places) == 1 and device is None:
            return None
        owners = [None, *(at for at, _ in self._places[1:])]
        wanted: BoolArray = np.array([owner == device for owner in owners])
        found = wanted[self._numbers(rows)] | (rows["action"] == Action.STEP)
        return np.flatnonzero(found & (rows["action"] != TOLD)).astype(np.int64)

    def _numbers(self, rows: Rows) -> Int64Array:
        """Of each row; 0 for one that was never told of."""
        numbers: Int64Array = rows["place"].astype(np.int64)
        numbers[numbers >= len(self._places)] = 0
        return numbers
