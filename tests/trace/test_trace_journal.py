"""The recorder's journal: read back as far as it is whole."""

import struct
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_samples import (
    as_json,
    assert_same,
    block,
    events_payload,
    in_memory,
    journal_blocks,
    metadata,
    sample,
    traces,
    write_journal,
)

from memplan.core.plan import RunStats
from memplan.errors import FormatError, MemplanError
from memplan.trace import journal
from memplan.trace.journal import (
    END,
    EVENTS,
    MAGIC,
    MAX_BLOCK_BYTES,
    METADATA,
    STACKS,
    Journal,
)
from memplan.trace.read import read_trace
from memplan.trace.stacks import Frame
from memplan.trace.trace import Action, Columns, Trace
from memplan.trace.write import write_trace


def recorded(trace: Trace) -> Trace:
    """`trace` as a journal can hold it: exact sizes, one device, one stream."""
    events, zeros = trace.events, np.zeros(len(trace), dtype=np.int64)
    counted = np.isin(events.action, (Action.ALLOC, Action.FREE_COMPLETED))
    size = np.where(counted, events.requested_size, 0)
    alloc = events.action == Action.ALLOC
    live: dict[int, int] = {}
    for i in np.flatnonzero(counted):
        key = int(events.address[i])
        if alloc[i]:
            live[key] = int(size[i])
        else:
            size[i] = live.pop(key, 0)
    same = {"size": size, "requested_size": size, "stream": zeros}
    same["device"] = zeros.astype(np.int16)
    return replace(trace, events=replace(events, **same))


@dataclass(frozen=True)
class Read:
    """A journal read to its end."""

    trace: Trace
    kept: int
    lost: int
    reason: str


def read(path: Path) -> Read:
    found = Journal(path)
    trace = in_memory(found)
    return Read(trace, found.kept, found.lost, found.reason)


def recover(path: Path, *blocks: bytes) -> Read:
    return read(write_journal(path / "x.journal", list(blocks)))


def first(trace: Trace | None = None) -> bytes:
    return block(METADATA, as_json(metadata(trace or sample())))


def events_block(**columns) -> bytes:
    return block(EVENTS, events_payload(Columns.of(**columns)))


def test_a_whole_journal_is_read_whole(tmp_path):
    blocks = journal_blocks(sample())
    found = recover(tmp_path, *blocks)
    expected = recorded(sample())
    run = RunStats(1 << 30, 12.5, 0.5)  # step_seconds is the end block's
    info = replace(expected.info, complete=True, dropped_events=2, run=run)
    assert_same(found.trace, replace(expected, info=info))
    assert (found.lost, found.reason) == (0, "")
    assert found.kept == (tmp_path / "x.journal").stat().st_size


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(trace=traces(), rows=st.integers(1, 5))
def test_any_trace_comes_back(tmp_path, trace, rows):
    events = trace.events
    exact = np.where(events.action == Action.ALLOC, events.size, 0)
    trace = replace(trace, events=replace(events, requested_size=exact))
    found = recover(tmp_path, *journal_blocks(trace, rows))
    again = recorded(trace).events
    for name in Columns.DTYPES:
        assert getattr(found.trace.events, name).tolist() == (
            getattr(again, name).tolist()
        ), name
    assert list(found.trace.stacks) == list(trace.stacks)
    assert (found.lost, found.reason) == (0, "")


def test_a_journal_cut_anywhere_keeps_its_whole_blocks(tmp_path):
    blocks = journal_blocks(sample(pairs=36), rows_per_block=12)
    path = write_journal(tmp_path / "x.journal", blocks)
    data = path.read_bytes()
    assert len(data) > 4000
    ends = len(MAGIC) + np.cumsum([len(b) for b in blocks])
    rows = np.cumsum([(len(b) - 12) // 40 if b[0] == EVENTS else 0 for b in blocks])
    near = {int(end) + d for end in ends for d in (-1, 0, 1)} - {0}
    for length in sorted(near | {*range(1, len(data), 97)}):
        if length >= len(data):
            break
        path.write_bytes(data[:length])
        whole = int(np.searchsorted(ends, length, side="right"))
        if whole == 0:
            with pytest.raises(FormatError):
                read(path)
            continue
        found = read(path)
        assert found.kept == ends[whole - 1]
        assert found.lost == length - found.kept
        assert bool(found.reason) == bool(found.lost)
        assert len(found.trace) == rows[whole - 1]
        assert not found.trace.info.complete


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(
    blocks=st.lists(
        st.tuples(
            st.integers(0, 5),
            st.one_of(
                st.binary(max_size=100),
                st.binary(min_size=80, max_size=80),
                st.sampled_from([b"{}", b"[]", b"[[]]", b'[[["a.py",1,"f"]]]']),
            ),
        ),
        max_size=6,
    )
)
def test_blocks_of_anything_with_right_checksums(tmp_path, blocks):
    path = write_journal(
        tmp_path / "x.journal", [first(), *(block(*parts) for parts in blocks)]
    )
    found = read(path)
    write_trace(found.trace, tmp_path / "t.json")
    assert_same(read_trace(tmp_path / "t.json"), found.trace)


def test_without_its_end_a_trace_is_incomplete(tmp_path):
    found = recover(tmp_path, *journal_blocks(sample())[:-1])
    assert not found.trace.info.complete
    assert found.trace.info.dropped_events == sample().info.dropped_events
    assert (found.lost, found.reason) == (0, "")


def test_the_end_may_itself_say_that_the_trace_is_incomplete(tmp_path):
    end = block(END, as_json({"complete": False}))
    assert not recover(tmp_path, first(), end).trace.info.complete


def test_an_end_that_says_nothing_is_an_end(tmp_path):
    started = metadata(sample()) | {"complete": True}
    blocks = [block(METADATA, as_json(started)), block(END, b"{}")]
    assert recover(tmp_path, *blocks).trace.info.complete
    assert not recover(tmp_path, *blocks[:1]).trace.info.complete


def test_a_stack_whose_block_was_lost_is_none(tmp_path):
    events = events_block(
        action=[0, 0, 0], size=[1, 1, 1], requested_size=[1, 1, 1], stack=[0, 1, -7]
    )
    stacks = block(STACKS, as_json([[["a.py", 3, "f"]]]))
    found = recover(tmp_path, first(), events, stacks)
    assert found.trace.events.stack.tolist() == [0, -1, -1]
    assert list(found.trace.stacks) == [(Frame("a.py", 3, "f"),)]


def test_stacks_keep_their_numbers_even_when_one_comes_twice(tmp_path):
    same = [["a.py", 3, "f"]]
    stacks = [block(STACKS, as_json([same, same])), block(STACKS, as_json([[]]))]
    found = recover(tmp_path, first(), *stacks)
    assert list(found.trace.stacks) == [(Frame(*same[0]),)] * 2 + [()]


def test_a_name_cut_within_a_character_costs_no_events(tmp_path):
    stacks = block(STACKS, b'[[["\xc3",-1,"f"]]]')
    events = events_block(action=[0], requested_size=[1], stack=[0])
    found = recover(tmp_path, first(), stacks, events)
    assert list(found.trace.stacks) == [(Frame("\ufffd", 0, "f"),)]
    assert len(found.trace) == 1


GOOD = {"action": [0], "requested_size": [8]}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (block(9, b""), "is of unknown kind 9"),
        (bytes(16), "is of unknown kind 0"),
        (struct.pack("<III", EVENTS, MAX_BLOCK_BYTES + 1, 0), "claims 67108865 bytes"),
        (struct.pack("<III", EVENTS, 40, 0) + bytes(40), "is damaged (CRC)"),
        (struct.pack("<III", EVENTS, 4000, 0) + bytes(39), "is cut off"),
        (block(EVENTS, bytes(41)), "holds no whole events"),
        (block(STACKS, b"{}"), "the stacks are not a list"),
        (block(STACKS, b"[1]"), "a stack is not a list"),
        (block(STACKS, b'[[["a", 1]]]'), "is not [filename, line, name]"),
        (block(STACKS, b'[[["a", true, "f"]]]'), "is not [filename, line, name]"),
        (block(STACKS, b"[[["), "not whole JSON"),
        (block(END, b"[]"), "the metadata is not a JSON object"),
        (block(END, b'{"dropped_events": -1}'), "dropped_events is -1, and must be an"),
        (block(END, b'{"version": 2}'), "version 2 of the trace format is newer"),
        (block(METADATA, b"{}"), "a second block of metadata"),
        (events_block(action=[9]), "row 1, column action: unknown action code 9"),
        (events_block(action=[0]), "row 1, column size: an allocation of 0 bytes"),
        (events_block(action=[2], time_ns=[-1]), "row 1, column time_ns: -1 is neg"),
    ],
)
def test_reading_stops_at_a_block_that_is_not_sound(tmp_path, bad, reason):
    good = [first(), events_block(**GOOD)]
    rest = [events_block(**GOOD), block(END, b"{}")]
    found = recover(tmp_path, *good, bad, *rest)
    kept = len(MAGIC) + sum(map(len, good))
    assert (found.kept, found.lost) == (
        kept,
        len(bad) + sum(map(len, rest)),
    )
    assert reason in found.reason
    assert len(found.trace) == 1
    assert not found.trace.info.complete


def test_more_events_than_the_limit_are_left(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "MAX_EVENTS", 2)
    found = recover(tmp_path, first(), *[events_block(**GOOD)] * 3)
    assert len(found.trace) == 2
    assert "more than 2 events" in found.reason


def test_what_follows_the_end_is_counted_as_lost(tmp_path):
    more = events_block(**GOOD)
    found = recover(tmp_path, first(), block(END, b'{"complete": true}'), more)
    assert (len(found.trace), found.lost) == (0, len(more))
    assert "there is more after the end block" in found.reason
    assert found.trace.info.complete


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "the file is empty"),
        (b"MPLN", "not a memplan journal"),
        (b"MPLNJRN2" + bytes(40), "not a memplan journal"),
        (MAGIC, "nothing to recover: it holds no block"),
        (MAGIC + first()[:-1], "nothing to recover: the block at byte 8 is cut off"),
        (MAGIC + block(EVENTS, b""), "nothing to recover: no block of metadata"),
        (MAGIC + block(METADATA, b"[]"), "the metadata is not a JSON object"),
        (MAGIC + block(METADATA, b"{}"), "the metadata is not a JSON object"),
        (MAGIC + block(METADATA, b"{"), "not whole JSON"),
        (
            MAGIC + block(METADATA, b'{"schema": "memplan.trace", "version": 2}'),
            "version 2 of the trace format is newer than 1; upgrade: pip",
        ),
    ],
)
def test_what_is_no_journal_is_refused(tmp_path, data, problem):
    path = tmp_path / "x.journal"
    path.write_bytes(data)
    with pytest.raises(MemplanError) as caught:
        read(path)
    assert problem in str(caught.value)
    assert caught.value.exit_code == 3
