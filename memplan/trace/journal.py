"""The recorder's journal: what a run wrote down, read back as far as it is whole.

Little-endian: 8 bytes of magic, then blocks of u32 kind, u32 length, u32 CRC-32 of
kind, length and payload, then the payload. It is read twice, a block at a time: once
for what it says of the run, and once for the events.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Int64Array
from memplan.errors import FormatError
from memplan.files import PathLike, open_input
from memplan.formats.sniff import MAGIC_OF, Kind
from memplan.formats.strictjson import Budget, parse
from memplan.limits import MAX_INTEGER
from memplan.trace.calls import Calls
from memplan.trace.check import MAX_EVENTS, EventCheck
from memplan.trace.info import frame_from_json, from_metadata, origin_from_json
from memplan.trace.lives import OpenBlocks, Summary
from memplan.trace.stacks import NO_ORIGIN, NO_STACK, Frame, Origin, Stack, StackTable
from memplan.trace.trace import Action, Columns, TraceInfo

MAGIC = MAGIC_OF[Kind.JOURNAL]
METADATA, EVENTS, STACKS, END = 1, 2, 3, 4
MAX_BLOCK_BYTES = 64 << 20

ROW = np.dtype(
    {
        "names": [
            *("time_ns", "address", "size", "thread", "stack", "action", "mark"),
            "place",
        ],
        "formats": ["<i8", "<u8", "<i8", "<i4", "<i4", "u1", "u1", "<u2"],
        "offsets": [0, 8, 16, 24, 28, 32, 33, 34],
        "itemsize": 40,
    }
)
# Those that are a trace's as they stand.
COLUMNS = ("time_ns", "address", "size", "thread", "action", "mark")
_HEADER = struct.Struct("<III")
_MAX_BYTES = MAX_EVENTS * ROW.itemsize * 2
_BLOCKS_ANYWAY = 10_000
_LEAST_BYTES = 48  # of a block, on the average: one event takes more
_TOLD = 8  # the action of a row that tells of a place
_MOST_DEVICE = int(np.iinfo(np.int16).max)
_MOST_PLACES = int(np.iinfo(np.uint16).max)
_PIECE_ROWS = 1 << 18  # of events, at least, that are looked at together

_Rows = npt.NDArray[Any]  # of ROW


class _StopReading(Exception):  # noqa: N818 - reads as what it does
    """A block that is not whole or not sound; the blocks before it stand."""


class Journal:
    """A journal, as far as it is whole.

    stacks: of all its sound blocks. calls: of modules, if it has them. summary: of the
    events that `pieces` gave so far. kept: bytes of the file up to the first block that
    is not sound. reason: why reading stopped there; "" if it came to the end.
    """

    def __init__(self, path: PathLike) -> None:
        """Read all but the events.

        Reading stops at the first block that is short, damaged or unknown, or that
        holds an event no trace may hold. Raises
        FormatError if it is no journal, its first block is not whole, or a newer
        memplan wrote it.
        """
        self.path = path
        self.reason = ""
        self.summary = Summary()
        self.kept = 0
        self._count = 0  # events
        self._places = _Places()
        self._check = EventCheck(stacks=0)
        self._blocks = 0
        self._metadata: dict[str, Any] = {}
        self._begun = TraceInfo(complete=False)
        self._ended: TraceInfo | None = None
        self.calls: Calls | None = None
        self._stacks: list[Stack] = []
        self._origins: list[Origin] = []
        self._frames: dict[Frame, Frame] = {}  # each one once
        with open_input(path, _MAX_BYTES) as (stream, self._size):
            self._budget = Budget(self._size)  # of all its JSON
            try:
                for kind, payload, at, end in _blocks(path, stream, self._size):
                    self._take(kind, payload, at)
                    self.kept = end
            except _StopReading as stop:
                self.reason = str(stop)
        if not self._metadata:
            problem = f"nothing to recover: {self.reason or 'it holds no block'}"
            raise FormatError(path, problem, "record again")
        self.stacks = StackTable(self._stacks, self._origins)

    @property
    def devices(self) -> list[int]:
        """The GPUs that it tells of requests to, ascending."""
        return self._places.devices

    @property
    def lost(self) -> int:
        """Bytes that were not read."""
        return self._size - self.kept

    @property
    def info(self) -> TraceInfo:
        """What the first and the end block say; incomplete without the latter, and what
        marks the steps is then as the pieces so far have it."""
        if self._ended is not None:
            return self._ended
        marks = self.summary.mark.name.lower()
        return replace(self._begun, program=replace(self._begun.program, marks=marks))

    def pieces(self, device: int | None = None) -> Iterator[Columns]:
        """The CPU's events, or those of a GPU, some at a time; to be called once.

        Frees get the size of the allocation they end; a stack that was lost becomes -1.
        """
        live = OpenBlocks()
        for rows in self._batches():
            events = self._events(rows)
            freed = live.freed(events)
            size = np.where(freed >= 0, freed, events.size)
            stack = rows["stack"].astype(np.int32)
            stack[(stack < 0) | (stack >= len(self.stacks))] = NO_STACK
            events = replace(events, size=size, requested_size=size, stack=stack)
            chosen = self._places.chosen(rows, device)
            if chosen is not None:
                events, freed = events.take(chosen), freed[chosen]
            self.summary.add(events, freed)
            yield events

    def _batches(self) -> Iterator[_Rows]:
        """Rows of events, some blocks at a time."""
        batch: list[_Rows] = []
        with open_input(self.path, _MAX_BYTES) as (stream, _):
            try:
                for kind, payload, _, _ in _blocks(self.path, stream, self.kept):
                    if kind == EVENTS:
                        batch.append(np.frombuffer(payload, dtype=ROW))
                    if sum(map(len, batch)) >= _PIECE_ROWS:
                        yield np.concatenate(batch)
                        batch = []
            except _StopReading as stop:  # and it was sound a moment ago
                raise FormatError(self.path, f"it is being changed: {stop}") from None
        if batch:
            yield np.concatenate(batch)

    def _events(self, rows: _Rows) -> Columns:
        """The events in some rows, without their stacks."""
        columns = {name: rows[name] for name in COLUMNS} | self._places.columns(rows)
        return Columns.of(**columns, requested_size=columns["size"])

    def _take(self, kind: int, payload: bytes, at: int) -> None:
        """Note the block at file offset `at`; _StopReading if it is not sound."""
        if (kind == METADATA) == bool(self._metadata):
            which = "a second" if self._metadata else "no"
            raise _StopReading(f"{which} block of metadata at byte {at}")
        if self._ended is not None:
            raise _StopReading(f"there is more after the end block, from byte {at}")
        self._blocks += 1
        if self._blocks > _BLOCKS_ANYWAY + self._size // _LEAST_BYTES:
            raise _StopReading(f"there are too many small blocks, up to byte {at}")
        try:
            if kind == METADATA:
                self._metadata = self._object(payload)
                begun = from_metadata(self.path, self._metadata)
                self._begun = replace(begun.info, complete=False)
                self._stacks += begun.stacks
                self._origins += map(begun.stacks.origin, range(len(begun.stacks)))
            elif kind == EVENTS:
                self._look_at_events(payload, at)
            elif kind == STACKS:
                self._take_stacks(payload)
            else:
                entries = _merged(self._metadata, self._object(payload))
                ended = from_metadata(self.path, entries)
                self._ended, self.calls = ended.info, ended.calls
        except FormatError as error:
            if kind == METADATA:  # without it nothing can be said of the rest
                raise
            raise _StopReading(f"the block at byte {at}: {error.problem}") from None

    def _look_at_events(self, payload: bytes, at: int) -> None:
        if len(payload) % ROW.itemsize:
            raise _StopReading(f"the block at byte {at} holds no whole events")
        rows = np.frombuffer(payload, dtype=ROW)
        self._count += len(rows)
        if self._count > MAX_EVENTS:
            raise _StopReading(f"more than {MAX_EVENTS} events, from byte {at}")
        if problem := self._places.note(rows):
            raise _StopReading(f"the block at byte {at} {problem}")
        if fault := self._check.fault(self._events(rows)):
            raise _StopReading(f"an unsound event: {fault}")

    def _take_stacks(self, payload: bytes) -> None:
        # A file name cut within a character must not cost the events that follow.
        value = self._parse(payload.decode("utf-8", errors="replace").encode())
        if not isinstance(value, list):
            raise FormatError(self.path, "the stacks are not a list")
        for each in value:
            entries = each if isinstance(each, dict) else {"frames": each}
            origin = NO_ORIGIN
            if "origin" in entries:
                origin = origin_from_json(self.path, entries["origin"])
            if not isinstance(entries.get("frames"), list):
                raise FormatError(self.path, "a stack is not a list")
            frames = [frame_from_json(self.path, frame) for frame in entries["frames"]]
            known = tuple(self._frames.setdefault(frame, frame) for frame in frames)
            self._stacks.append(known)
            self._origins.append(origin)

    def _object(self, payload: bytes) -> dict[str, Any]:
        value = self._parse(payload)
        if not isinstance(value, dict) or not (value or self._metadata):
            raise FormatError(self.path, "the metadata is not a JSON object")
        return value

    def _parse(self, payload: bytes) -> object:
        return parse(payload, self.path, budget=self._budget)


class _Places:
    """Where the events read so far belong: to the CPU, or to a stream of a GPU.

    A row's `place` is 0 for the CPU, or the number, from 1, of a row that is no event
    but tells of a place: a GPU's index (its `size`), and a stream's handle (its
    `address`). Such a row stands before those that refer to it.
    """

    def __init__(self) -> None:
        self._places = [(0, 0)]  # GPU and stream, by number
        self._asked: set[int] = set()  # the numbers of those asked for memory

    @property
    def devices(self) -> list[int]:
        """The GPUs that were asked for memory, ascending: one that was only made ready
        has segments, or labels, and no more."""
        return sorted({self._places[number][0] for number in self._asked})

    def note(self, rows: _Rows) -> str:
        """Those that some rows tell of. "" or what is wrong with one."""
        told = rows[rows["action"] == _TOLD]
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

    def columns(self, rows: _Rows) -> dict[str, npt.NDArray[Any]]:
        """Columns of a trace in which the place shows; what tells of a place becomes a
        label of nothing."""
        if len(self._places) == 1:
            return {}
        at = np.array(self._places, dtype=np.int64)[self._numbers(rows)]
        told = rows["action"] == _TOLD
        return {
            "device": at[:, 0],
            "stream": at[:, 1],
            "action": np.where(told, Action.LABEL, rows["action"]),
            "size": np.where(told, 0, rows["size"]),
        }

    def chosen(self, rows: _Rows, device: int | None) -> Int64Array | None:
        """Which are the CPU's events, or a GPU's, with all steps; None: all are."""
        if len(self._places) == 1 and device is None:
            return None
        owners = [None, *(at for at, _ in self._places[1:])]
        wanted: BoolArray = np.array([owner == device for owner in owners])
        found = wanted[self._numbers(rows)] | (rows["action"] == Action.STEP)
        return np.flatnonzero(found & (rows["action"] != _TOLD)).astype(np.int64)

    def _numbers(self, rows: _Rows) -> Int64Array:
        """Of each row; 0 for one that was never told of."""
        numbers: Int64Array = rows["place"].astype(np.int64)
        numbers[numbers >= len(self._places)] = 0
        return numbers


def _blocks(
    path: PathLike, stream: IO[bytes], size: int
) -> Iterator[tuple[int, bytes, int, int]]:
    """Each whole block up to `size`: kind, payload, and its begin and end there."""
    if stream.read(len(MAGIC)) != MAGIC:
        raise FormatError(path, "not a memplan journal", "name one: *.journal")
    at = len(MAGIC)
    while at < size:
        header = stream.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise _StopReading(f"the block at byte {at} is cut off")
        kind, length, checksum = _HEADER.unpack(header)
        if kind not in (METADATA, EVENTS, STACKS, END):
            raise _StopReading(f"the block at byte {at} is of unknown kind {kind}")
        if length > MAX_BLOCK_BYTES:
            raise _StopReading(f"the block at byte {at} claims {length} bytes")
        payload = stream.read(length)
        if len(payload) < length:
            raise _StopReading(f"the block at byte {at} is cut off")
        if zlib.crc32(payload, zlib.crc32(header[:8])) != checksum:
            raise _StopReading(f"the block at byte {at} is damaged (CRC)")
        begin, at = at, at + _HEADER.size + length
        yield kind, payload, begin, at


def _merged(metadata: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
    """The metadata with the end block's entries over it, nested objects merged."""
    merged = {**metadata, **end}
    for name, value in end.items():
        before = metadata.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[name] = {**before, **value}
    return merged
