"""Traces to test with, and the recorder's journal, written in Python."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np

from memplan.core.plan import Program, RunStats
from memplan.trace import journal
from memplan.trace.info import to_metadata
from memplan.trace.stacks import Frame, Origin, Phase, StackTable
from memplan.trace.trace import Action, Category, Columns, Mark, Trace, TraceInfo
from memplan.version import __version__

INFO = TraceInfo(
    program=Program("train.py", "ab" * 32, "2.13.0", 4, "optimizer"),
    run=RunStats(1 << 30, 12.5, 0.25),
    device="cuda",
    alignment=512,
    argv=("train.py", "--epochs", "3", 'quo"te', "\udc80", "ü"),
    started="2026-01-02T03:04:05Z",
    dropped_events=7,
    complete=False,
    stacks="python",
    producer="memplan 0.1.0",
)


def sample(pairs: int = 8, stacks: int = 3) -> Trace:
    """`pairs` allocations, each freed by the next event; a step after every four."""
    rng = np.random.default_rng(7)
    rows: list[tuple[int, ...]] = []
    for i in range(pairs):
        address = int(rng.integers(1, 40)) * 64 + (0xFFFF << 48)
        size = int(rng.integers(1, 5000))
        stack = i % stacks if stacks else -1
        rows.append((Action.ALLOC, Mark.NONE, address, size, size - size // 9, stack))
        rows.append((Action.FREE_COMPLETED, Mark.NONE, address, size, size, -1))
        if i % 4 == 3:
            rows.append((Action.STEP, Mark.OPTIMIZER, 0, 0, 0, -1))
    columns = np.array(rows, dtype=object).T if rows else np.empty((6, 0), object)
    action, mark, address_, size_, requested, stack_ = columns.tolist()
    events = Columns.of(
        time_ns=np.cumsum(rng.integers(0, 90_000, len(rows))),
        action=action,
        mark=mark,
        address=address_,
        size=size_,
        requested_size=requested,
        thread=np.full(len(rows), 4242),
        device=np.full(len(rows), 1),
        stream=np.full(len(rows), -3),
        stack=stack_,
    )
    table = StackTable(
        tuple(Frame(f"f{d % 2}.py", i + d, f"fn{d}") for d in range(i + 1))
        for i in range(stacks)
    )
    return Trace(events, table, INFO)


def assert_same(a: Trace, b: Trace) -> None:
    """Equal in every column, stack and entry; an empty producer is filled in."""
    for column in fields(Columns):
        x, y = getattr(a.events, column.name), getattr(b.events, column.name)
        assert x.dtype == y.dtype == np.dtype(Columns.DTYPES[column.name])
        assert x.tolist() == y.tolist(), column.name
    assert list(a.stacks) == list(b.stacks)
    origins = [[t.origin(i) for i in range(len(t))] for t in (a.stacks, b.stacks)]
    assert origins[0] == origins[1]
    assert _filled(a.info) == _filled(b.info)


def _filled(info: TraceInfo) -> TraceInfo:
    return replace(info, producer=info.producer or f"memplan {__version__}")


_COUNT = st.integers(0, (1 << 63) - 1)
_FLOAT = st.floats(0, 2.0**62)
_FRAME = st.builds(Frame, st.text(), st.integers(0, 1 << 31), st.text())
_INFO = st.builds(
    TraceInfo,
    program=st.builds(
        Program, st.text(), st.text(), st.text(), _COUNT, st.sampled_from(["none", "x"])
    ),
    run=st.builds(RunStats, _COUNT, _FLOAT, _FLOAT),
    device=st.text(),
    alignment=st.integers(1, (1 << 63) - 1),
    argv=st.lists(st.text()).map(tuple),
    started=st.text(),
    dropped_events=_COUNT,
    complete=st.booleans(),
    stacks=st.text(),
    producer=st.text(),
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Any trace that is allowed, its values up to the limits of their types."""
    table = draw(st.lists(st.lists(_FRAME, max_size=4).map(tuple), max_size=4))
    event = st.tuples(
        st.sampled_from(Action),
        st.sampled_from(Mark),
        st.integers(0, (1 << 64) - 1),
        _COUNT,
        _COUNT,
        st.integers(-(1 << 31), (1 << 31) - 1),
        st.integers(-(1 << 15), (1 << 15) - 1),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.integers(-1, len(table) - 1),
    )
    rows = draw(st.lists(event, max_size=12))
    times = sorted(draw(st.lists(_COUNT, min_size=len(rows), max_size=len(rows))))
    names = [n for n in Columns.DTYPES if n != "time_ns"]
    columns: dict[str, Any] = {
        name: np.array([row[i] for row in rows], dtype=Columns.DTYPES[name])
        for i, name in enumerate(names)
    }
    columns["mark"][columns["action"] != Action.STEP] = Mark.NONE
    alloc = columns["action"] == Action.ALLOC
    columns["size"][alloc] = np.maximum(columns["size"][alloc], 1)
    label = columns["action"] == Action.LABEL
    columns["requested_size"][label] %= max(Category) + 1
    origins = st.builds(Origin, st.text(), st.text(), st.sampled_from(Phase))
    noted = draw(st.lists(origins, max_size=len(table)))
    stacks = StackTable(table, noted)
    return Trace(Columns.of(time_ns=times, **columns), stacks, draw(_INFO))


def block(kind: int, payload: bytes) -> bytes:
    """One block of a journal."""
    head = struct.pack("<II", kind, len(payload))
    return head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head))) + payload


def as_json(value: object) -> bytes:
    """`value` as a block of JSON."""
    return json.dumps(value).encode()


def events_payload(events: Columns) -> bytes:
    """Events as the recorder packs them: frees without a size."""
    rows = np.zeros(len(events), dtype=journal.ROW)
    for name in (*journal.COLUMNS, "stack"):
        rows[name] = getattr(events, name)
    rows["size"] = np.where(events.action == Action.ALLOC, events.requested_size, 0)
    return rows.tobytes()


def metadata(trace: Trace) -> dict[str, object]:
    """The first block: what is known when a recording starts."""
    entries = to_metadata(trace)
    entries["stacks_table"] = {}
    return entries


def journal_blocks(trace: Trace, rows_per_block: int = 4) -> list[bytes]:
    """`trace` as the recorder would have written it down, block by block."""
    blocks = [block(journal.METADATA, as_json(metadata(trace)))]
    stacks = [[list(frame) for frame in stack] for stack in trace.stacks]
    for start in range(0, max(len(trace), 1), rows_per_block):
        last = start + rows_per_block >= len(trace)
        piece, stacks = (stacks, []) if last else (stacks[:1], stacks[1:])
        if piece:
            blocks.append(block(journal.STACKS, as_json(piece)))
        rows = trace.events.take(slice(start, start + rows_per_block))
        blocks.append(block(journal.EVENTS, events_payload(rows)))
    end = {"complete": True, "dropped_events": 2, "run": {"step_seconds": 0.5}}
    return [*blocks, block(journal.END, as_json(end))]


def in_memory(found: journal.Journal) -> Trace:
    """All of a journal; instead of its pieces."""
    events = Columns.joined([Columns.of(), *found.pieces()])
    return Trace(events, found.stacks, found.info)


def write_journal(path: Path, blocks: list[bytes]) -> Path:
    """A journal of these blocks."""
    path.write_bytes(journal.MAGIC + b"".join(blocks))
    return path
