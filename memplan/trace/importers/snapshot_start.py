"""What was live before a history begins, from the segments it ends with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from memplan.arrays import Int64Array
from memplan.errors import FormatError
from memplan.files import PathLike
from memplan.formats.strictjson import shown
from memplan.trace.importers.snapshot_history import (
    GRANULARITY,
    MAX_INT64,
    OTHER,
    History,
    Reader,
)
from memplan.trace.trace import Action

_LIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")
_MAX_ADDRESS = (1 << 64) - 1
MOST_SEGMENTS = 10_000  # changes of them that are undone one by one


@dataclass(frozen=True)
class Block:
    """A block that was live before the first entry; frames: who asked, if known."""

    address: int
    size: int
    stream: int
    frames: object = None


@dataclass(frozen=True)
class Start:
    """The blocks live before the first entry, and the segments reserved then: address
    and bytes of each, or 0 and the bytes of all where it is not known where they lie.
    """

    blocks: tuple[Block, ...]
    segments: tuple[tuple[int, int], ...]


def start_of(segments: object, reader: Reader, history: History, device: int) -> Start:
    """The state before the history's first entry.

    Live then was what the history frees without having made it, and what is live at
    its end, by the segments, though it did not make that. Raises FormatError for
    segments that are none.
    """
    found: dict[int, Block] = {}
    sizes, told, _ = reader.entries.integers("size")
    ended = (history.action == Action.FREE_COMPLETED) & ~history.matched & told
    for i in np.flatnonzero(ended).tolist():
        address, size = int(history.address[i]), int(sizes[i])
        if address not in found and 0 < size <= MAX_INT64 - GRANULARITY:
            rounded = -(-size // GRANULARITY) * GRANULARITY
            found[address] = Block(address, rounded, 0)
    touched = history.action <= Action.FREE_COMPLETED
    met = set(history.address[touched].tolist())
    reserved: list[tuple[int, int]] = []
    for block, *segment in _blocks(segments, device, reader.path):
        if block is None:
            reserved.append((segment[0], segment[1]))
        elif block.address not in met:
            found[block.address] = block
    return Start(tuple(found.values()), _reserved(reserved, history))


def _reserved(
    held: list[tuple[int, int]], history: History
) -> tuple[tuple[int, int], ...]:
    """The segments before the first entry, by those after the last and the changes."""
    change = np.where(history.action == Action.SEGMENT_ALLOC, history.size, 0)
    change -= np.where(history.action == Action.SEGMENT_FREE, history.size, 0)
    total = sum(size for _, size in held)
    begun = max(0, total - int(change.sum(dtype=np.float64)))
    if total > MAX_INT64 or not begun:
        return ()
    rows = np.flatnonzero(history.action >= Action.SEGMENT_ALLOC)
    rows = rows[history.action[rows] != OTHER]
    if len(rows) + len(held) <= MOST_SEGMENTS:
        found = _segments_before(held, history, rows)
        if sum(size for _, size in found) == begun:
            return tuple(found)
    return ((0, begun),)


def _segments_before(
    held: list[tuple[int, int]], history: History, rows: Int64Array
) -> list[tuple[int, int]]:
    """Address and bytes of each, the history undone from its end. rows: its changes."""
    low = [address for address, _ in held] + history.address[rows].tolist()
    size = [size for _, size in held] + history.size[rows].tolist()
    made = history.action[rows] == Action.SEGMENT_ALLOC
    edges = sorted({*low, *(a + b for a, b in zip(low, size, strict=True))})
    place = {edge: i for i, edge in enumerate(edges)}
    there = np.zeros(len(edges), dtype=np.bool_)
    # Where one begins, another one that touches it ends.
    begins = np.zeros(len(edges), dtype=np.bool_)
    spans = [(place[a], place[a + b]) for a, b in zip(low, size, strict=True)]
    for first, last in spans[: len(held)]:
        there[first:last] = True
        begins[first] = True
    undone = zip(spans[len(held) :], made.tolist(), strict=True)
    for (first, last), mapped in reversed(list(undone)):
        there[first:last] = not mapped
        begins[first] |= not mapped
    before = np.concatenate([np.zeros(1, dtype=np.bool_), there[:-1]])
    after = np.concatenate([there[1:], np.zeros(1, dtype=np.bool_)])
    starts = np.flatnonzero(there & (begins | ~before))
    cut = np.concatenate([begins[1:], np.ones(1, dtype=np.bool_)])
    stops = np.flatnonzero(there & (~after | cut)) + 1
    return [
        (edges[i], edges[j] - edges[i])
        for i, j in zip(starts.tolist(), stops.tolist(), strict=True)
    ]


def _blocks(
    segments: object, device: int, path: PathLike
) -> list[tuple[Block | None, int, int]]:
    """Of a device's segments the live blocks, and, with None, each segment's address
    and bytes."""
    if segments is None:
        return []
    if not isinstance(segments, list):
        raise FormatError(path, f"segments is {shown(segments)}, not a list")
    found: list[tuple[Block | None, int, int]] = []
    seen: set[int] = set()
    for i, segment in enumerate(segments):
        where = f"segments[{i}]"
        if not isinstance(segment, dict):
            raise FormatError(path, f"{where} is {shown(segment)}, not a dict")
        if segment.get("device", 0) != device:
            continue
        total = _integer(path, where, segment, "total_size")
        start = segment.get("address", 0)
        known = type(start) is int and 0 <= start <= _MAX_ADDRESS - total
        found.append((None, start if known else 0, total))
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
            if type(address) is not int or not 0 <= address <= _MAX_ADDRESS:
                raise FormatError(path, f"{inner}.address is {shown(address)}")
            if block.get("state") in _LIVE and size > 0:
                stream = segment.get("stream", 0)
                stream = stream if type(stream) is int and stream >= 0 else 0
                frames = block.get("frames")
                rounded = -(-size // GRANULARITY) * GRANULARITY
                found.append((Block(address, rounded, stream, frames), 0, 0))
            address += size
    return found


def _integer(path: PathLike, where: str, values: dict[str, Any], name: str) -> int:
    value = values.get(name)
    if type(value) is not int or not 0 <= value <= MAX_INT64 - GRANULARITY:
        problem = f"{where}.{name} is {shown(value)}, not a number of bytes"
        raise FormatError(path, problem)
    return value
