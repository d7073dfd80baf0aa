"""The recorder's journal: what a run wrote down, read back as far as it is whole.

Little-endian: 8 bytes of magic, then blocks of u32 kind, u32 length, u32 CRC-32 of
kind, length and payload, then the payload.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from memplan.errors import FormatError
from memplan.files import PathLike, open_input
from memplan.formats.strictjson import parse
from memplan.trace.check import MAX_EVENTS, find_fault
from memplan.trace.info import frame_from_json, from_metadata
from memplan.trace.match import match_frees
from memplan.trace.stacks import NO_STACK, Stack, StackTable
from memplan.trace.trace import Action, Columns, Trace, TraceInfo

MAGIC = b"MPLNJRN1"
METADATA, EVENTS, STACKS, END = 1, 2, 3, 4
MAX_BLOCK_BYTES = 64 << 20

ROW = np.dtype(
    {
        "names": ["time_ns", "address", "size", "thread", "stack", "action", "mark"],
        "formats": ["<i8", "<u8", "<i8", "<i4", "<i4", "u1", "u1"],
        "offsets": [0, 8, 16, 24, 28, 32, 33],
        "itemsize": 40,
    }
)
_HEADER = struct.Struct("<III")
_MAX_BYTES = MAX_EVENTS * ROW.itemsize * 2


@dataclass(frozen=True)
class Recovered:
    """A trace, and how much of its journal it holds.

    bytes_kept, bytes_lost: of the file, up to and after the last whole block.
    reason: why reading stopped before the end of the file; "" if it did not.
    """

    trace: Trace
    bytes_kept: int
    bytes_lost: int
    reason: str


class _StopReading(Exception):  # noqa: N818 - reads as what it does
    """A block that is not whole or not sound; the blocks before it stand."""


@dataclass
class _Contents:
    """The sound blocks so far; `starts`: the file offset of each block of events."""

    path: PathLike
    metadata: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    stacks: list[Stack] = field(default_factory=list)
    rows: list[npt.NDArray[Any]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    count: int = 0

    def take(self, kind: int, payload: bytes, at: int) -> None:
        """Add the block at file offset `at`; _StopReading if it is not sound."""
        if (kind == METADATA) == bool(self.metadata):
            which = "a second" if self.metadata else "no"
            raise _StopReading(f"{which} block of metadata at byte {at}")
        if self.end is not None:
            raise _StopReading(f"there is more after the end block, from byte {at}")
        try:
            if kind == METADATA:
                self.metadata = self._object(payload)
                self.stacks = list(from_metadata(self.path, self.metadata)[1])
            elif kind == EVENTS:
                self._take_events(payload, at)
            elif kind == STACKS:
                self.stacks += _stacks(self.path, payload)
            else:
                end = self._object(payload)
                from_metadata(self.path, _merged(self.metadata, end))
                self.end = end
        except FormatError as error:
            if kind == METADATA:  # without it nothing can be said of the rest
                raise
            raise _StopReading(f"the block at byte {at}: {error.problem}") from None

    def info(self) -> TraceInfo:
        """What the first and the end block say; incomplete without the latter."""
        end = {"complete": False} if self.end is None else self.end
        return from_metadata(self.path, _merged(self.metadata, end))[0]

    def events(self) -> Columns:
        """The events; frees with the size of the allocation they end."""
        rows = np.concatenate([np.empty(0, dtype=ROW), *self.rows])
        stack = rows["stack"].astype(np.int32)
        stack[(stack < 0) | (stack >= len(self.stacks))] = NO_STACK
        events = Columns.of(
            **{name: rows[name] for name in ROW.names or () if name != "stack"},
            requested_size=rows["size"],
            stack=stack,
        )
        partner = match_frees(events)
        freed = (events.action == Action.FREE_COMPLETED) & (partner >= 0)
        size = np.where(freed, events.size[partner], events.size)
        return replace(events, size=size, requested_size=size)

    def cut(self, row: int) -> int:
        """Drop the block that holds `row` and all after it; its file offset."""
        ends = np.cumsum([len(rows) for rows in self.rows])
        block = int(np.searchsorted(ends, row, side="right"))
        self.end = None
        self.rows = self.rows[:block]
        return self.starts[block]

    def _take_events(self, payload: bytes, at: int) -> None:
        if len(payload) % ROW.itemsize:
            raise _StopReading(f"the block at byte {at} holds no whole events")
        self.count += len(payload) // ROW.itemsize
        if self.count > MAX_EVENTS:
            raise _StopReading(f"more than {MAX_EVENTS} events, from byte {at}")
        self.rows.append(np.frombuffer(payload, dtype=ROW))
        self.starts.append(at)

    def _object(self, payload: bytes) -> dict[str, Any]:
        value = parse(payload, self.path)
        if not isinstance(value, dict) or not (value or self.metadata):
            raise FormatError(self.path, "the metadata is not a JSON object")
        return value


def read_journal(path: PathLike) -> Trace:
    """The trace in a journal, as far as it is whole; see `recover_journal`."""
    return recover_journal(path).trace


def recover_journal(path: PathLike) -> Recovered:
    """Every whole block of a journal, as a trace; `complete` only with its end block.

    Reading stops at the first block that is short, damaged or unknown, or that holds
    an event no trace may hold. Frees get the size of the allocation they end; a stack
    that was lost becomes -1. Raises FormatError if it is no journal, its first block
    is not whole, or a newer memplan wrote it.
    """
    with open_input(path, _MAX_BYTES) as (stream, size):
        contents = _Contents(path)
        kept, reason = 0, ""
        try:
            for kind, payload, end in _blocks(path, stream, size):
                contents.take(kind, payload, kept or len(MAGIC))
                kept = end
        except _StopReading as stop:
            reason = str(stop)
    if not contents.metadata:
        raise FormatError(
            path,
            f"nothing to recover: {reason or 'it holds no block'}",
            "record again",
        )
    while fault := find_fault(events := contents.events(), len(contents.stacks)):
        kept, reason = contents.cut(fault.row), f"an unsound event: {fault}"
    trace = Trace(events, StackTable(contents.stacks), contents.info())
    return Recovered(trace, kept, size - kept, reason)


def _blocks(
    path: PathLike, stream: IO[bytes], size: int
) -> Iterator[tuple[int, bytes, int]]:
    """Each whole block: its kind, its payload, the file offset of its end."""
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
        at += _HEADER.size + length
        yield kind, payload, at


def _stacks(path: PathLike, payload: bytes) -> list[Stack]:
    # A file name cut within a character must not cost the events that follow.
    text = payload.decode("utf-8", errors="replace").encode()
    value = parse(text, path)
    if not isinstance(value, list):
        raise FormatError(path, "the stacks are not a list")
    return [_stack(path, stack) for stack in value]


def _stack(path: PathLike, value: object) -> Stack:
    if not isinstance(value, list):
        raise FormatError(path, "a stack is not a list")
    return tuple(frame_from_json(path, frame) for frame in value)


def _merged(metadata: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
    """The metadata with the end block's entries over it, nested objects merged."""
    merged = {**metadata, **end}
    for name, value in end.items():
        before = metadata.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[name] = {**before, **value}
    return merged
