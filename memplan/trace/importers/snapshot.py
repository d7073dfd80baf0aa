"""PyTorch's CUDA memory snapshot: its history of one device, as a Trace.

A snapshot is what `torch.cuda.memory._snapshot()` returns, and what
`_dump_snapshot` pickles: `segments`, and for each device a ring of `{action, addr,
size, stream, frames, ...}` entries. A block's life ends when its free completed: at
`free_requested` another stream may still be using it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NoReturn

import numpy as np

from memplan.core.plan import Program
from memplan.errors import FormatError, UsageError
from memplan.files import PathLike
from memplan.formats.sniff import Input, Kind, opened
from memplan.formats.strictjson import shown
from memplan.limits import MAX_TEXT
from memplan.trace.check import check_count
from memplan.trace.importers.plain_pickle import load_plain
from memplan.trace.stacks import NO_STACK, Frame, StackTable
from memplan.trace.trace import Action, Columns, Mark, Trace, TraceInfo

GRANULARITY = 512  # bytes; PyTorch's allocator rounds every request up to this
MARK_TAG = "memplan:"  # + a count of marks, in the metadata of entries after them

_MAX_ADDRESS = (1 << 64) - 1
_MAX_INT64 = (1 << 63) - 1
_SKEW_US = 200
_ACTIONS = {
    "alloc": Action.ALLOC,
    "free_requested": Action.FREE_REQUESTED,
    "free_completed": Action.FREE_COMPLETED,
}
_REMEDY = "make it with torch.cuda.memory._dump_snapshot, after _record_memory_history"


@dataclass(frozen=True)
class HistoryMark:
    """A step boundary seen while the history was recorded: its kind, Unix time (µs)."""

    mark: Mark
    time_us: int


@dataclass(frozen=True)
class Imported:
    """A trace, and what the history alone did not tell.

    unmatched_frees: frees of blocks made before the history begins; not in the trace.
    entries: of the device's history, segments and all, as its limit counts them.
    """

    trace: Trace
    unmatched_frees: int
    entries: int


def read_snapshot(source: Input, device: int | None = None) -> Trace:
    """The history of one device in a snapshot file, pickled or JSON.

    device: its index; None where only one has a history. Loading it runs no code.
    `info.dropped_events` counts frees of blocks that the history does not hold:
    made before it was recorded, or pushed out when it was full. Raises FormatError
    for what is not a snapshot of plain data, UsageError for a device not in it.
    """
    with opened(source) as file:
        if file.kind is Kind.PICKLE:
            snapshot = load_plain(file.read(), file.path)
        else:
            snapshot = file.json()
        found = from_snapshot(snapshot, device=device, path=file.path)
    info = replace(found.trace.info, dropped_events=found.unmatched_frees)
    return replace(found.trace, info=info)


def devices_of(snapshot: object, path: PathLike = "the snapshot") -> list[int]:
    """The devices that have a history, ascending. Raises FormatError."""
    histories = _histories(snapshot, path)
    return [i for i, history in enumerate(histories) if history]


def from_snapshot(
    snapshot: object,
    *,
    device: int | None = None,
    marks: Sequence[HistoryMark] = (),
    path: PathLike = "the snapshot",
) -> Imported:
    """The history of one device of a snapshot, with `marks` put where they belong.

    device: its index; None where only one has a history. marks: in the order they
    were seen; each comes after the entries up to its time, and where entries are tagged
    with the number of marks so far, the tags settle what is close. Sizes are rounded up
    to GRANULARITY, in both columns; streams are kept. Raises FormatError naming the
    entry and field, UsageError for a device that is not there.
    """
    histories = _histories(snapshot, path)
    index = _choose(histories, device, path)
    reader = _Reader(path, index, histories[index])
    reader.read(marks)
    strongest = max((m.mark for m in marks), default=Mark.NONE)
    info = TraceInfo(
        program=Program(marks=strongest.name.lower()),
        device="cuda",
        alignment=GRANULARITY,
        stacks="python" if len(reader.stacks) else "none",
    )
    trace = Trace(reader.columns(), reader.stacks, info)
    return Imported(trace, reader.unmatched, len(histories[index]))


def _histories(snapshot: object, path: PathLike) -> list[list[Any]]:
    if isinstance(snapshot, list):
        problem = "a snapshot in the old form, of segments without their history"
        raise FormatError(path, problem, _REMEDY)
    if not isinstance(snapshot, dict) or "device_traces" not in snapshot:
        raise FormatError(path, "not a memory snapshot: no device_traces", _REMEDY)
    histories = snapshot["device_traces"]
    if not isinstance(histories, list):
        raise FormatError(path, f"device_traces is {shown(histories)}, not a list")
    for i, history in enumerate(histories):
        if not isinstance(history, list):
            problem = f"device_traces[{i}] is {shown(history)}, not a list"
            raise FormatError(path, problem, _REMEDY)
    return histories


def _choose(histories: list[list[Any]], device: int | None, path: PathLike) -> int:
    present = [i for i, history in enumerate(histories) if history]
    if not present:
        raise FormatError(path, "holds no memory history", _REMEDY)
    if device is None and len(present) > 1:
        listed = ", ".join(map(str, present))
        raise FormatError(
            path,
            f"holds the histories of devices {listed}",
            "choose one with read_snapshot(path, device=N), and write_trace it",
        )
    if device is not None and device not in present:
        listed = ", ".join(map(str, present))
        raise UsageError(f"device {device}: {path} holds device {listed} only")
    return present[0] if device is None else device


def _count_before(entry: dict[str, Any], now: int, times: list[int]) -> int:
    """How many of the marks at `times` come before an entry of time `now`.

    Clocks differ by microseconds, so close to a mark the entry's tag decides. Farther
    away it does not: another device's entries may bear an old one, or the program's.
    """
    by_time = bisect_left(times, now)
    text = entry.get("user_metadata")
    if not isinstance(text, str) or not text.startswith(MARK_TAG):
        return by_time
    number = text[len(MARK_TAG) :]
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        return by_time
    by_tag = min(int(number), len(times))
    first, last = sorted((by_tag, by_time))
    if first < last and max(now - times[first], times[last - 1] - now) > _SKEW_US:
        return by_time
    return by_tag


class _Reader:
    """The rows of one device's history, in its order."""

    def __init__(self, path: PathLike, device: int, history: list[Any]) -> None:
        check_count(path, len(history))
        self.path, self.device, self.history = path, device, history
        self.stacks = StackTable()
        self.unmatched = 0
        self._columns = [array(code) for code in "qBBQqqi"]  # of _take's rows
        self._live: dict[int, tuple[int, int]] = {}  # address -> size, stream
        self._known: dict[int, int] = {}  # id of a frames list -> its stack
        self._frames: dict[int, Frame] = {}  # id of a frame's dict -> the frame

    def read(self, marks: Sequence[HistoryMark]) -> None:
        """Take every entry, and before each the marks that precede it."""
        before = self._marks_before(marks)
        done = 0
        for i, entry in enumerate(self.history):
            while done < before[i]:
                self._mark(marks[done])
                done += 1
            action = _ACTIONS.get(entry["action"])
            if action is not None:
                self._take(i, entry, action)
        for mark in marks[done:]:
            self._mark(mark)

    def columns(self) -> Columns:
        """The rows so far; times count from the first and never decrease."""
        times, action, mark, address, size, stream, stack = map(np.array, self._columns)
        return Columns.of(
            time_ns=(np.maximum.accumulate(times) - times[:1]) * 1000,
            action=action,
            mark=mark,
            address=address,
            size=size,
            requested_size=size,
            device=np.full(len(times), self.device),
            stream=stream,
            stack=stack,
        )

    def _take(self, i: int, entry: dict[str, Any], action: Action) -> None:
        address = self._integer(i, entry, "addr", _MAX_ADDRESS)
        stack = NO_STACK
        if action is Action.ALLOC:
            size = self._integer(i, entry, "size", _MAX_INT64 - GRANULARITY)
            if size == 0:
                return
            size = -(-size // GRANULARITY) * GRANULARITY
            stream = self._integer(i, entry, "stream", _MAX_INT64)
            stack = self._stack(i, entry.get("frames"))
            self._live[address] = size, stream
        elif address not in self._live:
            self.unmatched += action is Action.FREE_COMPLETED
            return
        elif action is Action.FREE_COMPLETED:
            size, stream = self._live.pop(address)
        else:
            size, stream = self._live[address]
        self._add(self._time(i), action, Mark.NONE, address, size, stream, stack)

    def _mark(self, mark: HistoryMark) -> None:
        self._add(mark.time_us, Action.STEP, mark.mark, 0, 0, 0, NO_STACK)

    def _add(self, *row: int) -> None:
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)

    def _marks_before(self, marks: Sequence[HistoryMark]) -> list[int]:
        """How many marks come before each entry, which is checked to be one."""
        times = [mark.time_us for mark in marks]
        counts = []
        for i, entry in enumerate(self.history):
            if not isinstance(entry, dict) or not isinstance(entry.get("action"), str):
                self._fail(i, "", f"{shown(entry)} has no action")
            counts.append(_count_before(entry, self._time(i), times) if times else 0)
        return list(accumulate(counts, max))

    def _time(self, i: int) -> int:
        entry = self.history[i]
        if "time_us" not in entry:  # older files: the order is all there is
            return i
        return self._integer(i, entry, "time_us", _MAX_INT64 // 1000)

    def _integer(self, i: int, entry: dict[str, Any], name: str, most: int) -> int:
        value = entry.get(name)
        if type(value) is not int or not 0 <= value <= most:
            self._fail(i, name, f"{shown(value)} is not an integer from 0 to {most}")
        return int(value)

    def _stack(self, i: int, frames: object) -> int:
        """The index of a stack; the same list of frames is looked at once."""
        if not frames:
            return NO_STACK
        known = self._known.get(id(frames))
        if known is None:
            if not isinstance(frames, list):
                self._fail(i, "frames", f"{shown(frames)} is not a list")
            known = self.stacks.intern(tuple(self._shared(i, f) for f in frames))
            self._known[id(frames)] = known
        return known

    def _shared(self, i: int, frame: object) -> Frame:
        """The frame; the same dict is looked at once."""
        known = self._frames.get(id(frame))
        if known is None:
            known = self._frames[id(frame)] = self._frame(i, frame)
        return known

    def _frame(self, i: int, frame: object) -> Frame:
        match frame:
            case {"filename": str(file), "line": int(line), "name": str(name)} if (
                type(line) is int and line <= _MAX_INT64
            ):
                return Frame(file[:MAX_TEXT], max(line, 0), name[:MAX_TEXT])
        self._fail(i, "frames", f"{shown(frame)} is not {{filename, line, name}}")

    def _fail(self, i: int, field: str, problem: str) -> NoReturn:
        where = f"device_traces[{self.device}][{i}]" + (field and f".{field}")
        raise FormatError(self.path, f"{where}: {problem}", _REMEDY)
