"""PyTorch's CUDA memory snapshot: its history of one device, as a Trace.

A snapshot is what `torch.cuda.memory._snapshot()` returns, and what
`_dump_snapshot` pickles: `segments`, and for each device a ring of `{action, addr,
size, stream, frames, ...}` entries. A block's life ends when its free completed: at
`free_requested` another stream may still be using it. Without a history the segments
still tell which blocks are live: a Trace whose `info.history` is False.
"""

from __future__ import annotations

import io
import pickle
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Int64Array
from memplan.core.plan import Program
from memplan.errors import FormatError, UsageError
from memplan.files import PathLike
from memplan.formats.sniff import Kind, Opened
from memplan.formats.strictjson import shown
from memplan.limits import MAX_INTEGER
from memplan.trace.importers.plain_pickle import parse_plain, value_of
from memplan.trace.importers.snapshot_history import (
    GRANULARITY,
    MAX_ADDRESS,
    OTHER,
    REMEDY,
    Entries,
    History,
    Reader,
    Stacks,
    match,
    rounded,
)
from memplan.trace.reserved import Segments
from memplan.trace.stacks import NO_STACK
from memplan.trace.trace import Action, Columns, Mark, Trace, TraceInfo

if TYPE_CHECKING:
    from memplan.native._plain import Plain

MARK_TAG = "memplan:"  # + a count of marks, in the metadata of entries after them
MOST_DEVICES = (1 << 15) - 1
MOST_SEGMENTS = 10_000  # changes of them that are undone one by one
_SKEW_US = 200
_LIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")

Rows = dict[str, npt.NDArray[Any]]  # columns by name, one row an event


@dataclass(frozen=True)
class HistoryMark:
    """A step boundary seen while the history was recorded: its kind, Unix time (µs)."""

    mark: Mark
    time_us: int


@dataclass(frozen=True)
class Imported:
    """A trace, and what the history alone did not tell.

    unmatched_frees: frees of blocks made before the history begins. older_blocks: how
    many blocks were live then; they are in the trace, made at its first moment.
    entries: of the device's history, segments and all, as its limit counts them.
    """

    trace: Trace
    unmatched_frees: int
    older_blocks: int
    entries: int


def takes(file: Opened) -> bool:
    """Whether `file` is a pickle, or JSON with a snapshot's entries."""
    if file.kind is Kind.PICKLE:
        return True
    found = file.json() if file.kind is Kind.JSON else None
    return (
        isinstance(found, dict)
        and "schema" not in found
        and not {"device_traces", "segments"}.isdisjoint(found)
    )


def read(file: Opened, device: int | None = None) -> Trace:
    """The history of one device in a snapshot file, pickled or JSON.

    device: its index; None where only one has a history, or, of a snapshot without any,
    memory. Loading it runs no code. What was live before the history begins is
    restored, as far as segments and frees tell; then the trace is not `complete`, be it
    that recording began late or that the ring was full, and `info.dropped_events`
    counts the frees whose requests are missing. Without a history the trace has what
    was live when the snapshot was taken, at time 0, and `info.history` is False.
    Raises FormatError for what is not a snapshot of plain data, UsageError for a
    device not in it.
    """
    if file.kind is Kind.PICKLE:
        plain = parse_plain(file.read(), file.path)
        found = _imported(plain, file.path, device, ())
    else:
        found = from_snapshot(file.json(), device=device, path=file.path)
    info = replace(
        found.trace.info,
        dropped_events=found.unmatched_frees,
        complete=not (found.older_blocks and found.trace.info.history),
    )
    return replace(found.trace, info=info)


def devices_of(snapshot: Any) -> list[int]:
    """The devices that have a history in what torch returned, ascending."""
    return [i for i, history in enumerate(snapshot["device_traces"]) if history]


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
    to GRANULARITY, in both columns but where what was asked for is told; streams are
    kept. Raises FormatError naming the
    entry and field, UsageError for a device that is not there.
    """

    class Pickler(pickle.Pickler):
        def reducer_override(self, value: object) -> NoReturn:
            raise FormatError(path, f"{shown(value)} is not an integer", REMEDY)

    stream = io.BytesIO()
    Pickler(stream, 4).dump(snapshot)
    data = stream.getvalue()
    return _imported(parse_plain(data, path, len(data)), path, device, marks)


def _histories(plain: Plain, path: PathLike) -> list[int]:
    """The cells of the devices' histories."""
    if plain.is_list(plain.root):  # of segments alone: torch.cuda.memory_snapshot()
        return []
    found = plain.get(plain.root, "device_traces")
    if found is None:
        raise FormatError(path, "not a memory snapshot: no device_traces", REMEDY)
    if not plain.is_list(found):
        problem = f"device_traces is {shown(value_of(plain, found))}, not a list"
        raise FormatError(path, problem)
    cells = [plain.item(found, i) for i in range(plain.length(found))]
    for i, cell in enumerate(cells):
        if not plain.is_list(cell):
            problem = f"device_traces[{i}] is {shown(value_of(plain, cell))}"
            raise FormatError(path, f"{problem}, not a list", REMEDY)
    return cells


def _choose(
    recorded: list[int], held: set[int], device: int | None, path: PathLike
) -> int:
    """recorded, held: the devices with a history, and with segments."""
    if not recorded and not held:
        raise FormatError(path, "holds neither memory history nor segments", REMEDY)
    present = recorded or sorted(held)
    if device is None and len(present) > 1:
        listed = ", ".join(map(str, present))
        remedy = "choose one with --device N; in Python: read_trace(path, device=N)"
        what = "histories" if recorded else "memory"
        problem = f"holds the {what} of devices {listed}"
        raise FormatError(path, problem, remedy)
    if device is not None and device not in held.union(recorded):
        listed = ", ".join(map(str, sorted(held.union(recorded))))
        raise UsageError(f"device {device}: {path} holds device {listed} only")
    return present[0] if device is None else device


def _imported(
    plain: Plain, path: PathLike, chosen: int | None, marks: Sequence[HistoryMark]
) -> Imported:
    cells = _histories(plain, path)
    segments = _segments_in(plain, path)
    histories = {i: Entries(plain, cell) for i, cell in enumerate(cells)}
    recorded = [i for i, each in histories.items() if len(each) and each.tells()]
    device = _choose(recorded, _devices_in(segments, path), chosen, path)
    told = device in recorded
    reader = Reader(path, device, histories[device] if told else Entries.none())
    history = reader.read()
    reserved, blocks = _start_of(segments, reader, history, device)
    stacks = Stacks(reader)
    begun = _first_rows(reserved, blocks, history, stacks)
    rows: Rows = {
        "time": history.time_us,
        "action": history.action,
        "mark": np.zeros(len(history.action), dtype=np.uint8),
        "address": history.address,
        "size": history.size,
        "requested_size": history.requested,
        "stream": history.stream,
        "stack": stacks.of_history(history),
    }
    rows = {name: np.concatenate([begun[name], rows[name]]) for name in rows}
    free = np.isin(rows["action"], (Action.FREE_COMPLETED, Action.FREE_REQUESTED))
    taken = (rows["size"], rows["requested_size"], rows["stream"])
    known = match(rows["action"], rows["address"], *taken)
    kept = (rows["action"] != OTHER) & (~free | known)
    if marks:
        rows, kept = _with_marks(rows, kept, len(begun["time"]), reader, marks)
    ended = (history.action == Action.FREE_COMPLETED) & ~history.matched
    strongest = max((m.mark for m in marks), default=Mark.NONE)
    info = TraceInfo(
        program=Program(marks=strongest.name.lower()),
        device="cuda",
        alignment=GRANULARITY,
        stacks="python" if len(stacks.table) else "none",
        history=told,
    )
    trace = Trace(_columns(rows, kept, device), stacks.table, info)
    return Imported(trace, int(ended.sum()), len(blocks), len(reader.entries))


def _columns(rows: Rows, kept: BoolArray, device: int) -> Columns:
    """The rows kept; times count from the first and never decrease."""
    rows = {name: column[kept] for name, column in rows.items()}
    times = np.maximum.accumulate(rows.pop("time"))
    return Columns.of(
        time_ns=(times - times[:1]) * 1000,
        device=np.full(len(times), device),
        **rows,
    )


@dataclass(frozen=True)
class _Block:
    """A block that was live before the first entry; frames: who asked, if known."""

    address: int
    size: int
    stream: int
    frames: object = None


def _segments_in(plain: Plain, path: PathLike) -> list[dict[str, Any]]:
    """The segments of all devices. Raises FormatError for what is none."""
    listed = plain.is_list(plain.root)
    cell = plain.root if listed else plain.get(plain.root, "segments")
    segments = [] if cell is None else value_of(plain, cell)
    if segments is None:
        return []
    if not isinstance(segments, list):
        raise FormatError(path, f"segments is {shown(segments)}, not a list")
    for i, segment in enumerate(segments):
        if not isinstance(segment, dict):
            raise FormatError(path, f"segments[{i}] is {shown(segment)}, not a dict")
    return segments


def _devices_in(segments: list[dict[str, Any]], path: PathLike) -> set[int]:
    """The devices that have segments. Raises FormatError for what is none."""
    found = set()
    for i, segment in enumerate(segments):
        device = segment.get("device", 0)
        if type(device) is not int or not 0 <= device <= MOST_DEVICES:
            problem = f"segments[{i}].device is {shown(device)}, not a device's index"
            raise FormatError(path, problem)
        found.add(device)
    return found


def _start_of(
    segments: list[dict[str, Any]], reader: Reader, history: History, device: int
) -> tuple[list[tuple[int, int]], list[_Block]]:
    """The segments reserved, and the blocks live, before the history's first entry.

    Of segments address and bytes, or 0 and the bytes of all where it is not known where
    they lie. Live was what the history frees without having made it, and what is live
    at its end, by the segments, though it did not make that. Raises FormatError for
    segments that are none.
    """
    found: dict[int, _Block] = {}
    sizes, told, _ = reader.entries.integers("size")
    ended = (history.action == Action.FREE_COMPLETED) & ~history.matched & told
    for i in np.flatnonzero(ended).tolist():
        address, size = int(history.address[i]), int(sizes[i])
        if address not in found and 0 < size <= MAX_INTEGER - GRANULARITY:
            found[address] = _Block(address, rounded(size), 0)
    touched = history.action <= Action.FREE_COMPLETED
    met = set(history.address[touched].tolist())
    held, live = _held(segments, device, reader.path)
    found |= {block.address: block for block in live if block.address not in met}
    return _reserved(held, history), list(found.values())


def _reserved(held: list[tuple[int, int]], history: History) -> list[tuple[int, int]]:
    """The segments before the first entry, by those after the last and the changes."""
    change = np.where(history.action == Action.SEGMENT_ALLOC, history.size, 0)
    change -= np.where(history.action == Action.SEGMENT_FREE, history.size, 0)
    total = sum(size for _, size in held)
    begun = max(0, total - int(change.sum(dtype=np.float64)))
    if total > MAX_INTEGER or not begun:
        return []
    rows = np.flatnonzero(history.action >= Action.SEGMENT_ALLOC)
    rows = rows[history.action[rows] != OTHER]
    if len(rows) + len(held) <= MOST_SEGMENTS:
        found = _segments_before(held, history, rows)
        if sum(size for _, size in found) == begun:
            return found
    return [(0, begun)]


def _segments_before(
    held: list[tuple[int, int]], history: History, rows: Int64Array
) -> list[tuple[int, int]]:
    """Address and bytes of each, the history undone from its end. rows: its changes."""
    segments = Segments()
    for address, size in held:
        segments.add(address, address + size)
    columns = (history.action, history.address, history.size)
    changes = zip(*(column[rows].tolist() for column in columns), strict=True)
    for action, address, size in reversed(list(changes)):
        undo = segments.cut if action == Action.SEGMENT_ALLOC else segments.add
        undo(address, address + size)
    return [(begin, end - begin) for begin, end in segments.spans()]


def _held(
    segments: list[dict[str, Any]], device: int, path: PathLike
) -> tuple[list[tuple[int, int]], list[_Block]]:
    """Address and bytes of each of a device's segments, and the live blocks in them."""
    held: list[tuple[int, int]] = []
    live: list[_Block] = []
    seen: set[int] = set()
    for i, segment in enumerate(segments):
        where = f"segments[{i}]"
        if segment.get("device", 0) != device:
            continue
        total = _integer(path, where, segment, "total_size")
        start = segment.get("address", 0)
        known = type(start) is int and 0 <= start <= MAX_ADDRESS - total
        held.append((start if known else 0, total))
        blocks = segment.get("blocks") or []
        if id(blocks) in seen:
            raise FormatError(path, f"{where}.blocks are another segment's, too")
        seen.add(id(blocks))
        if not isinstance(blocks, list):
            raise FormatError(path, f"{where}.blocks is {shown(blocks)}, not a list")
        # Files of before 2.1 give blocks no address: they lie one after the other.
        address = segment.get("address", 0)
        for j, block in enumerate(blocks):
            inner = f"{where}.blocks[{j}]"
            if not isinstance(block, dict):
                raise FormatError(path, f"{inner} is {shown(block)}, not a dict")
            address = block.get("address", address)
            size = _integer(path, inner, block, "size")
            if type(address) is not int or not 0 <= address <= MAX_ADDRESS:
                raise FormatError(path, f"{inner}.address is {shown(address)}")
            if block.get("state") in _LIVE and size > 0:
                stream = segment.get("stream", 0)
                stream = stream if type(stream) is int and stream >= 0 else 0
                frames = block.get("frames")
                asked = block.get("requested_size")  # which is what entries have
                if type(asked) is not int or not 0 < asked <= size:
                    asked = size
                live.append(_Block(address, rounded(asked), stream, frames))
            address += size
    return held, live


def _integer(path: PathLike, where: str, values: dict[str, Any], name: str) -> int:
    value = values.get(name)
    if type(value) is not int or not 0 <= value <= MAX_INTEGER - GRANULARITY:
        problem = f"{where}.{name} is {shown(value)}, not a number of bytes"
        raise FormatError(path, problem)
    return value


def _first_rows(
    segments: list[tuple[int, int]],
    blocks: list[_Block],
    history: History,
    stacks: Stacks,
) -> Rows:
    """What was reserved, and live, before the first entry."""
    made = [(Action.SEGMENT_ALLOC, *each, 0, NO_STACK) for each in segments]
    made += [
        (Action.ALLOC, b.address, b.size, b.stream, stacks.of_block(b.frames))
        for b in blocks
    ]
    action, address, size, stream, stack = zip(*made, strict=True) if made else [()] * 5
    first = int(history.time_us[0]) if len(history.time_us) else 0
    sizes = np.array(size, dtype=np.int64)
    return {
        "time": np.full(len(made), first, dtype=np.int64),
        "action": np.array(action, dtype=np.uint8),
        "mark": np.zeros(len(made), dtype=np.uint8),
        "address": np.array(address, dtype=np.uint64),
        "size": sizes,
        "requested_size": sizes,
        "stream": np.array(stream, dtype=np.int64),
        "stack": np.array(stack, dtype=np.int64),
    }


def _with_marks(
    rows: Rows,
    kept: BoolArray,
    older: int,
    reader: Reader,
    marks: Sequence[HistoryMark],
) -> tuple[Rows, BoolArray]:
    """The rows, and which of them are kept, with the marks among them.

    older: how many rows stand before the history's own, and before every mark.
    """
    entries = _marks_before(reader, marks)
    before = np.concatenate([np.zeros(older, dtype=np.int64), entries])
    # Each mark comes before the first row that has it behind it.
    at = np.searchsorted(before, np.arange(len(marks)), side="right")
    step: dict[str, list[int]] = {
        "time": [mark.time_us for mark in marks],
        "action": [Action.STEP] * len(marks),
        "mark": [mark.mark for mark in marks],
        "stack": [NO_STACK] * len(marks),
    }
    none = [0] * len(marks)
    found = {
        name: np.insert(column, at, step.get(name, none))
        for name, column in rows.items()
    }
    return found, np.insert(kept, at, True)


def _marks_before(reader: Reader, marks: Sequence[HistoryMark]) -> Int64Array:
    """How many marks come before each entry."""
    times = [mark.time_us for mark in marks]
    tags = reader.entries.objects("user_metadata")
    rows = zip(tags, reader.times().tolist(), strict=True)
    counts = [_count_before(tag, now, times) for tag, now in rows]
    return np.array(list(accumulate(counts, max)), dtype=np.int64)


def _count_before(text: object, now: int, times: list[int]) -> int:
    """How many of the marks at `times` come before an entry of time `now`; text: its
    tag.

    Clocks differ by microseconds, so close to a mark the entry's tag decides. Farther
    away it does not: another device's entries may bear an old one, or the program's.
    """
    by_time = bisect_left(times, now)
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
