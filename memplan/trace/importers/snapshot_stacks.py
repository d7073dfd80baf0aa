"""Who asked: the frames of a history's entries, and of what was live before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from memplan.formats.strictjson import shown
from memplan.limits import MAX_TEXT
from memplan.trace.importers.snapshot_history import (
    MAX_INT64,
    History,
    Reader,
)
from memplan.trace.importers.snapshot_start import Start
from memplan.trace.stacks import NO_STACK, Frame, StackTable
from memplan.trace.trace import Action


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
                type(line) is int and line <= MAX_INT64
            ):
                known = Frame(file[:MAX_TEXT], max(line, 0), name[:MAX_TEXT])
                self._frames[id(frame)] = known
        return known


def first_rows(
    start: Start, history: History, stacks: Stacks
) -> tuple[dict[str, npt.NDArray[Any]], int]:
    """Rows of what was reserved, and live, before the first entry; and how many."""
    blocks = start.blocks
    reserved = [size for _, size in start.segments]
    count = len(blocks) + len(reserved)
    segment = [address for address, _ in start.segments]
    streams = [0] * len(reserved) + [block.stream for block in blocks]
    first = int(history.time_us[0]) if len(history.time_us) else 0
    sizes = np.array([*reserved, *(b.size for b in blocks)], dtype=np.int64)
    rows: dict[str, npt.NDArray[Any]] = {
        "time": np.full(count, first, dtype=np.int64),
        "action": np.array(
            [Action.SEGMENT_ALLOC] * len(reserved) + [Action.ALLOC] * len(blocks),
            dtype=np.uint8,
        ),
        "mark": np.zeros(count, dtype=np.uint8),
        "address": np.array([*segment, *(b.address for b in blocks)], dtype=np.uint64),
        "size": sizes,
        "requested_size": sizes,
        "stream": np.array(streams, dtype=np.int64),
        "stack": np.array(
            [NO_STACK] * len(reserved) + [stacks.of_block(b.frames) for b in blocks],
            dtype=np.int64,
        ),
    }
    return rows, count
