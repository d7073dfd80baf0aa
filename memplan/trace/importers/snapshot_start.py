"""What was live before a history begins, from the segments it ends with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from memplan.errors import FormatError
from memplan.files import PathLike
from memplan.formats.strictjson import shown
from memplan.trace.importers.snapshot_history import (
    GRANULARITY,
    MAX_INT64,
    History,
    Reader,
)
from memplan.trace.trace import Action

_LIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")
_MAX_ADDRESS = (1 << 64) - 1


@dataclass(frozen=True)
class Block:
    """A block that was live before the first entry; frames: who asked, if known."""

    address: int
    size: int
    stream: int
    frames: object = None


@dataclass(frozen=True)
class Start:
    """The blocks live before the first entry, and the bytes reserved then."""

    blocks: tuple[Block, ...]
    reserved: int


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
    reserved = 0
    for block, total in _blocks(segments, device, reader.path):
        reserved += total
        if block is not None and block.address not in met:
            found[block.address] = block
    change = np.where(history.action == Action.SEGMENT_ALLOC, history.size, 0)
    change -= np.where(history.action == Action.SEGMENT_FREE, history.size, 0)
    begun = max(0, reserved - int(change.sum(dtype=np.float64)))
    return Start(tuple(found.values()), begun if reserved <= MAX_INT64 else 0)


def _blocks(
    segments: object, device: int, path: PathLike
) -> list[tuple[Block | None, int]]:
    """Of a device's segments the live blocks, and, with None, each segment's bytes."""
    if segments is None:
        return []
    if not isinstance(segments, list):
        raise FormatError(path, f"segments is {shown(segments)}, not a list")
    found: list[tuple[Block | None, int]] = []
    seen: set[int] = set()
    for i, segment in enumerate(segments):
        where = f"segments[{i}]"
        if not isinstance(segment, dict):
            raise FormatError(path, f"{where} is {shown(segment)}, not a dict")
        if segment.get("device", 0) != device:
            continue
        total = _integer(path, where, segment, "total_size")
        found.append((None, total))
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
                found.append((Block(address, rounded, stream, frames), 0))
            address += size
    return found


def _integer(path: PathLike, where: str, values: dict[str, Any], name: str) -> int:
    value = values.get(name)
    if type(value) is not int or not 0 <= value <= MAX_INT64 - GRANULARITY:
        problem = f"{where}.{name} is {shown(value)}, not a number of bytes"
        raise FormatError(path, problem)
    return value
