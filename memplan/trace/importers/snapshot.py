"""PyTorch's CUDA memory snapshot: its history of one device, as a Trace.

A snapshot is what `torch.cuda.memory._snapshot()` returns, and what
`_dump_snapshot` pickles: `segments`, and for each device a ring of `{action, addr,
size, stream, frames, ...}` entries. A block's life ends when its free completed: at
`free_requested` another stream may still be using it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from memplan.arrays import BoolArray
from memplan.core.plan import Program
from memplan.errors import FormatError, UsageError
from memplan.files import PathLike
from memplan.formats.sniff import Input, Kind, Opened, opened
from memplan.formats.strictjson import shown
from memplan.trace.importers.plain_pickle import parse_plain, value_of
from memplan.trace.importers.snapshot_entries import ObjectEntries, PlainEntries
from memplan.trace.importers.snapshot_history import (
    GRANULARITY,
    OTHER,
    REMEDY,
    Reader,
    match,
)
from memplan.trace.importers.snapshot_marks import (
    HistoryMark,
    Rows,
    with_marks,
)
from memplan.trace.importers.snapshot_stacks import Stacks, first_rows
from memplan.trace.importers.snapshot_start import start_of
from memplan.trace.trace import Action, Columns, Mark, Trace, TraceInfo


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


def read_snapshot(source: Input, device: int | None = None) -> Trace:
    """The history of one device in a snapshot file, pickled or JSON.

    device: its index; None where only one has a history. Loading it runs no code. What
    was live before the history begins is restored, as far as segments and frees tell;
    then the trace is not `complete`, be it that recording began late or that the ring
    was full, and `info.dropped_events` counts the frees whose requests are missing.
    Raises FormatError for what is not a snapshot of plain data, UsageError for a
    device not in it.
    """
    with opened(source) as file:
        if file.kind is Kind.PICKLE:
            found = _from_pickle(file, device)
        else:
            found = from_snapshot(file.json(), device=device, path=file.path)
    info = replace(
        found.trace.info,
        dropped_events=found.unmatched_frees,
        complete=not found.older_blocks,
    )
    return replace(found.trace, info=info)


def _from_pickle(file: Opened, device: int | None) -> Imported:
    plain = parse_plain(file.read(), file.path)
    history = plain.get(plain.root, "device_traces")
    if history is None or not plain.is_list(history):
        # What is wrong with it, the reader of Python objects says.
        value = value_of(plain, plain.root)
        return from_snapshot(value, device=device, path=file.path)
    cells = [plain.item(history, i) for i in range(plain.length(history))]
    for i, cell in enumerate(cells):
        if not plain.is_list(cell):
            raise _no_list(file.path, i, value_of(plain, cell))
    index = _choose([plain.length(cell) > 0 for cell in cells], device, file.path)
    reader = Reader(file.path, index, PlainEntries(plain, cells[index]))
    segments = plain.get(plain.root, "segments")
    value = None if segments is None else value_of(plain, segments)
    return _imported(reader, value, index, ())


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
    to GRANULARITY, in both columns but where what was asked for is told; streams are
    kept. Raises FormatError naming the
    entry and field, UsageError for a device that is not there.
    """
    histories = _histories(snapshot, path)
    index = _choose([bool(history) for history in histories], device, path)
    assert isinstance(snapshot, dict)
    reader = Reader(path, index, ObjectEntries(histories[index]))
    return _imported(reader, snapshot.get("segments"), index, marks)


def _histories(snapshot: object, path: PathLike) -> list[list[Any]]:
    if isinstance(snapshot, list):
        problem = "a snapshot in the old form, of segments without their history"
        raise FormatError(path, problem, REMEDY)
    if not isinstance(snapshot, dict) or "device_traces" not in snapshot:
        raise FormatError(path, "not a memory snapshot: no device_traces", REMEDY)
    histories = snapshot["device_traces"]
    if not isinstance(histories, list):
        raise FormatError(path, f"device_traces is {shown(histories)}, not a list")
    for i, history in enumerate(histories):
        if not isinstance(history, list):
            raise _no_list(path, i, history)
    return histories


def _no_list(path: PathLike, i: int, history: object) -> FormatError:
    problem = f"device_traces[{i}] is {shown(history)}, not a list"
    return FormatError(path, problem, REMEDY)


def _choose(held: list[bool], device: int | None, path: PathLike) -> int:
    present = [i for i, holds in enumerate(held) if holds]
    if not present:
        raise FormatError(path, "holds no memory history", REMEDY)
    if device is None and len(present) > 1:
        listed = ", ".join(map(str, present))
        raise FormatError(
            path,
            f"holds the histories of devices {listed}",
            "choose one with --device N; in Python: read_snapshot(path, device=N)",
        )
    if device is not None and device not in present:
        listed = ", ".join(map(str, present))
        raise UsageError(f"device {device}: {path} holds device {listed} only")
    return present[0] if device is None else device


def _imported(
    reader: Reader, segments: object, device: int, marks: Sequence[HistoryMark]
) -> Imported:
    history = reader.read()
    start = start_of(segments, reader, history, device)
    stacks = Stacks(reader)
    begun, older = first_rows(start, history, stacks)
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
        rows, kept = with_marks(rows, kept, older, reader, marks)
    ended = (history.action == Action.FREE_COMPLETED) & ~history.matched
    strongest = max((m.mark for m in marks), default=Mark.NONE)
    info = TraceInfo(
        program=Program(marks=strongest.name.lower()),
        device="cuda",
        alignment=GRANULARITY,
        stacks="python" if len(stacks.table) else "none",
    )
    trace = Trace(_columns(rows, kept, device), stacks.table, info)
    return Imported(trace, int(ended.sum()), len(start.blocks), len(reader.entries))


def _columns(rows: Rows, kept: BoolArray, device: int) -> Columns:
    """The rows kept; times count from the first and never decrease."""
    rows = {name: column[kept] for name, column in rows.items()}
    times = np.maximum.accumulate(rows.pop("time"))
    return Columns.of(
        time_ns=(times - times[:1]) * 1000,
        device=np.full(len(times), device),
        **rows,
    )
