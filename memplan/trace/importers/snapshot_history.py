"""One device's history in a memory snapshot: its entries as columns, checked, and who
asked. The entries are cells of a pickle, which need not become Python objects."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Int64Array
from memplan.errors import FormatError
from memplan.files import PathLike
from memplan.formats.strictjson import shown
from memplan.limits import MAX_INTEGER, MAX_TEXT
from memplan.trace.check import check_count
from memplan.trace.importers.plain_pickle import parse_plain, value_of
from memplan.trace.stacks import NO_STACK, Frame, StackTable
from memplan.trace.trace import Action

if TYPE_CHECKING:
    from memplan.native._plain import Plain

UInt64Array = npt.NDArray[np.uint64]

GRANULARITY = 512  # bytes; PyTorch's allocator rounds every request up to this
REQUESTED = "requested_size"  # of an allocation that memplan wrote; torch tells of none
REMEDY = "make it with torch.cuda.memory._dump_snapshot"
MAX_KEYS = 64  # of an entry; torch writes a dozen
MAX_ADDRESS = (1 << 64) - 1
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


class Entries:
    """A history: a list of dicts in a pickle of plain data."""

    def __init__(self, plain: Plain, cell: int) -> None:
        self._plain, self._cell = plain, cell

    @classmethod
    def none(cls) -> Entries:
        """A history without entries."""
        plain = parse_plain(pickle.dumps([], 4), "no history")
        return cls(plain, plain.root)

    def __len__(self) -> int:
        return self._plain.length(self._cell)

    def misfit(self) -> int | None:
        """The first entry that is no dict, or has too many keys; None for none."""
        most, place = self._plain.widest(self._cell)
        return None if 0 <= most <= MAX_KEYS else place

    def tells(self) -> bool:
        """Whether any is an event, or is none that can be read. With "state", torch
        keeps the last entry alone, which says that the snapshot was taken."""
        if self.misfit() is not None:
            return True
        cells = np.unique(self._plain.column(self._cell, "action"))
        names = self._plain.values(cells)
        return any(not isinstance(name, str) or name in _ACTIONS for name in names)

    def objects(self, name: str) -> list[object]:
        """The value of a field in each entry, None where there is none."""
        cells = self._plain.column(self._cell, name)
        different, rows = np.unique(cells, return_inverse=True)
        values = self._plain.values(different)
        return [values[row] for row in rows.tolist()]

    def integers(self, name: str) -> tuple[UInt64Array, BoolArray, BoolArray]:
        """The values of a field; where they are integers from 0 to 2^64 - 1; and where
        there is such a field at all."""
        from memplan.native._plain import ABSENT

        cells = self._plain.column(self._cell, name)
        values, good = self._plain.integers(cells)
        return values, good.astype(np.bool_), cells != np.uint64(ABSENT)

    def identities(self, name: str) -> tuple[list[Any], Int64Array]:
        """The different objects in a field, shared ones once, and which of them each
        entry has; -1 where there is none."""
        cells = self._plain.column(self._cell, name)
        different, rows = np.unique(cells, return_inverse=True)
        values = self._plain.values(different)
        kept = [value for value in values if value]
        places = np.full(len(values), -1, dtype=np.int64)
        places[[i for i, value in enumerate(values) if value]] = np.arange(len(kept))
        return kept, places[rows]

    def value(self, i: int) -> object:
        """The entry as a Python object."""
        return value_of(self._plain, self._plain.item(self._cell, i))


@dataclass(frozen=True)
class History:
    """The entries of a history, shape (m,); `action` is OTHER for those left out.

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
        address = self._integers("addr", placed, MAX_ADDRESS)
        size = self._integers("size", sized, MAX_INTEGER - GRANULARITY).astype(np.int64)
        made = action == Action.ALLOC
        size[made] = -(-size[made] // GRANULARITY) * GRANULARITY
        action[sized & (size == 0)] = OTHER
        made &= action != OTHER
        stream = self._integers("stream", made, MAX_INTEGER).astype(np.int64)
        # Of a failed request what the device had free, 0 where that is not told.
        free, told, _ = self.entries.integers("device_free")
        address = np.where(action == Action.OOM, np.where(told, free, 0), address)
        # What was asked for; the size where that is not told, or cannot be.
        values, told, _ = self.entries.integers(REQUESTED)
        told &= made & (values > 0) & (values <= size.astype(np.uint64))
        requested = np.where(told, values, size).astype(np.int64)
        matched = match(action, address, size, requested, stream)
        times = self.times()
        return History(action, address, size, requested, stream, times, matched)

    def times(self) -> Int64Array:
        """When each entry was made, µs; in files without times its place."""
        values, good, present = self.entries.integers("time_us")
        good &= values <= MAX_INTEGER // 1000
        self._check("time_us", ~good & present, MAX_INTEGER // 1000)
        times = np.where(present, values, np.arange(len(values), dtype=np.uint64))
        found: Int64Array = times.astype(np.int64)
        return found

    def fail(self, i: int, field: str, problem: str) -> NoReturn:
        """Raise FormatError for entry `i`."""
        where = f"device_traces[{self.device}][{i}]" + (field and f".{field}")
        raise FormatError(self.path, f"{where}: {problem}", REMEDY)

    def _actions(self) -> npt.NDArray[np.uint8]:
        names = self.entries.objects("action")
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


def rounded(size: int) -> int:
    """`size` in whole multiples of GRANULARITY."""
    return -(-size // GRANULARITY) * GRANULARITY


def _of_segment(action: npt.NDArray[np.uint8]) -> BoolArray:
    found: BoolArray = np.isin(action, (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE))
    return found


class Stacks:
    """The stacks of a history, each frame and each list of them looked at once."""

    def __init__(self, reader: Reader) -> None:
        self.table = StackTable()
        self._reader = reader
        self._frames: dict[int, Frame] = {}  # id of a frame's dict -> the frame

    def of_history(self, history: History) -> npt.NDArray[np.int64]:
        """The stack of each allocation and failed request, NO_STACK elsewhere."""
        asked = np.isin(history.action, (Action.ALLOC, Action.OOM))
        lists, rows = self._reader.entries.identities("frames")
        used, first = np.unique(rows[asked], return_index=True)
        entry = np.flatnonzero(asked)[first]
        known = np.full(len(lists) + 1, NO_STACK, dtype=np.int64)
        for place, i in zip(used.tolist(), entry.tolist(), strict=True):
            if place >= 0:
                known[place] = self._interned(i, lists[place])
        return np.where(asked, known[rows], NO_STACK)

    def of_block(self, frames: object) -> int:
        """The stack of a block in a segment; NO_STACK for what is none."""
        if not isinstance(frames, list) or not frames:
            return NO_STACK
        found = [self._known(frame) for frame in frames]
        return self.table.intern(tuple(frame for frame in found if frame is not None))

    def _interned(self, i: int, frames: object) -> int:
        if not isinstance(frames, list):
            self._reader.fail(i, "frames", f"{shown(frames)} is not a list")
        found = []
        for frame in frames:
            known = self._known(frame)
            if known is None:
                problem = f"{shown(frame)} is not {{filename, line, name}}"
                self._reader.fail(i, "frames", problem)
            found.append(known)
        return self.table.intern(tuple(found))

    def _known(self, frame: Any) -> Frame | None:
        """The frame; the same dict is looked at once. None for what is none."""
        known = self._frames.get(id(frame))
        if known is not None:
            return known
        match frame:
            case {"filename": str(file), "line": int(line), "name": str(name)} if (
                type(line) is int and line <= MAX_INTEGER
            ):
                known = Frame(file[:MAX_TEXT], max(line, 0), name[:MAX_TEXT])
                self._frames[id(frame)] = known
        return known
