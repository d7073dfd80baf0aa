"""One device's history: its entries checked, and each free told which block it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Int64Array
from memplan.errors import FormatError
from memplan.files import PathLike
from memplan.formats.strictjson import shown
from memplan.trace.check import check_count
from memplan.trace.importers.snapshot_entries import Entries, UInt64Array
from memplan.trace.trace import Action

GRANULARITY = 512  # bytes; PyTorch's allocator rounds every request up to this
REQUESTED = "requested_size"  # of an allocation that memplan wrote; torch tells of none
REMEDY = "make it with torch.cuda.memory._dump_snapshot, after _record_memory_history"

MAX_INT64 = (1 << 63) - 1
_MAX_ADDRESS = (1 << 64) - 1
_ACTIONS = {
    "alloc": Action.ALLOC,
    "free_requested": Action.FREE_REQUESTED,
    "free_completed": Action.FREE_COMPLETED,
    "oom": Action.OOM,
    "segment_alloc": Action.SEGMENT_ALLOC,
    "segment_map": Action.SEGMENT_ALLOC,
    "segment_free": Action.SEGMENT_FREE,
    "segment_unmap": Action.SEGMENT_FREE,
}
OTHER = 255  # an entry that is no event of a trace


@dataclass(frozen=True)
class History:
    """The entries of a history, shape (m,); `action` is 255 for those left out.

    size: rounded, bytes; frees have their block's. requested: likewise, what was asked
    for where the history tells, or else the size; torch's own does not tell.
    matched: of frees, whether the block is known from an earlier entry.
    """

    action: npt.NDArray[np.uint8]
    address: UInt64Array
    size: Int64Array
    requested: Int64Array
    stream: Int64Array
    time_us: Int64Array
    matched: BoolArray


class Reader:
    """Checks a history. Raises FormatError naming the entry and the field."""

    def __init__(self, path: PathLike, device: int, entries: Entries) -> None:
        check_count(path, len(entries))
        self.path, self.device, self.entries = path, device, entries
        bad = entries.misfit()
        if bad is not None:
            self.fail(bad, "", f"{shown(entries.value(bad))} has no action")

    def read(self) -> History:
        """All of it."""
        action = self._actions()
        sized = np.isin(action, (Action.ALLOC, Action.OOM)) | _of_segment(action)
        placed = (action <= Action.FREE_REQUESTED) | _of_segment(action)
        address = self._integers("addr", placed, _MAX_ADDRESS)
        size = self._integers("size", sized, MAX_INT64 - GRANULARITY).astype(np.int64)
        made = action == Action.ALLOC
        size[made] = -(-size[made] // GRANULARITY) * GRANULARITY
        action[sized & (size == 0)] = OTHER
        made &= action != OTHER
        stream = self._integers("stream", made, MAX_INT64).astype(np.int64)
        free = self._oom_free(action)
        address = np.where(action == Action.OOM, free, address)
        requested = self._requested(made, size)
        matched = match(action, address, size, requested, stream)
        times = self.times()
        return History(action, address, size, requested, stream, times, matched)

    def times(self) -> Int64Array:
        """When each entry was made, µs; in files without times its place."""
        values, good, present = self.entries.integers("time_us")
        good &= values <= MAX_INT64 // 1000
        self._check("time_us", ~good & present, MAX_INT64 // 1000)
        times = np.where(present, values, np.arange(len(values), dtype=np.uint64))
        found: Int64Array = times.astype(np.int64)
        return found

    def fail(self, i: int, field: str, problem: str) -> NoReturn:
        """Raise FormatError for entry `i`."""
        where = f"device_traces[{self.device}][{i}]" + (field and f".{field}")
        raise FormatError(self.path, f"{where}: {problem}", REMEDY)

    def _actions(self) -> npt.NDArray[np.uint8]:
        names = self.entries.actions()
        for name in set(map(type, names)) - {str}:
            i = next(i for i, each in enumerate(names) if type(each) is name)
            self.fail(i, "", f"{shown(self.entries.value(i))} has no action")
        codes = [int(_ACTIONS.get(str(name), OTHER)) for name in names]
        return np.array(codes, dtype=np.uint8)

    def _integers(self, name: str, rows: BoolArray, most: int) -> UInt64Array:
        values, good, _ = self.entries.integers(name)
        good &= values <= most
        self._check(name, rows & ~good, most)
        return np.where(rows, values, np.uint64(0))

    def _check(self, name: str, bad: BoolArray, most: int) -> None:
        if bad.any():
            i = int(np.argmax(bad))
            entry: Any = self.entries.value(i)
            problem = f"{shown(entry.get(name))} is not an integer from 0 to {most}"
            self.fail(i, name, problem)

    def _requested(self, made: BoolArray, size: Int64Array) -> Int64Array:
        """What was asked for; the size where that is not told, or cannot be."""
        values, good, _ = self.entries.integers(REQUESTED)
        good &= made & (values > 0) & (values <= size.astype(np.uint64))
        return np.where(good, values, size).astype(np.int64)

    def _oom_free(self, action: npt.NDArray[np.uint8]) -> UInt64Array:
        """What the device had free at each failed request, 0 where that is not told."""
        if not (action == Action.OOM).any():
            return np.zeros(len(action), dtype=np.uint64)
        values, good, _ = self.entries.integers("device_free")
        return np.where(good, values, np.uint64(0))


def match(
    action: npt.NDArray[np.uint8],
    address: UInt64Array,
    *columns: Int64Array,
) -> BoolArray:
    """Which frees are of a block known: in `columns` they take on what it has."""
    rows = np.flatnonzero(action <= Action.FREE_REQUESTED)
    rows = rows[np.argsort(address[rows], kind="stable")]
    ends = action[rows] != Action.FREE_REQUESTED
    # Of each row, the place of the last allocation or end before it.
    last = np.maximum.accumulate(np.where(ends, np.arange(len(rows)), -1))
    before = np.concatenate([np.full(1, -1), last[:-1]])[: len(rows)]
    known = before >= 0
    known &= address[rows[before]] == address[rows]
    known &= action[rows[before]] == Action.ALLOC
    freed = known & (action[rows] != Action.ALLOC)
    for column in columns:
        column[rows[freed]] = column[rows[before[freed]]]
    matched = np.zeros(len(action), dtype=np.bool_)
    matched[rows[freed]] = True
    return matched


def _of_segment(action: npt.NDArray[np.uint8]) -> BoolArray:
    found: BoolArray = np.isin(action, (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE))
    return found
