"""From a journal to the trace's file, piece by piece: the same as all at once."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
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
    write_journal,
)

from memplan.errors import FormatError, UsageError
from memplan.trace import journal as journal_room
from memplan.trace import parquet, recovery
from memplan.trace.journal import EVENTS, METADATA, STACKS, Journal
from memplan.trace.lives import Lives, OpenBlocks, Summary, lives_of
from memplan.trace.parquet import regrouped
from memplan.trace.read import read_trace
from memplan.trace.recovery import recover_journal
from memplan.trace.trace import Action, Columns, Mark, Trace
from memplan.trace.write import write_trace
from tests.partners import match_frees


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of two events and row groups of five."""
    monkeypatch.setattr(journal_room, "_PIECE_ROWS", 2)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 5)
    monkeypatch.setattr(parquet, "_READ_ROWS", 3)


def most_alive(line: Lives) -> int:
    died = line.freed != Lives.NEVER
    ticks = np.concatenate([line.lower, line.freed[died]])
    deltas = np.concatenate([line.size, -line.size[died]])
    return int(np.cumsum(deltas[np.argsort(ticks, kind="stable")]).max())


def groups(path: Path) -> list[int]:
    file = pq.read_metadata(path)
    return [file.row_group(i).num_rows for i in range(file.num_row_groups)]


def crossing() -> Columns:
    """Blocks that live across several pieces, two of them at one address."""
    return Columns.of(
        time_ns=np.arange(9),
        action=[0, 0, 1, 0, 2, 0, 1, 1, 1],
        mark=[0, 0, 0, 0, 2, 0, 0, 0, 0],
        address=[64, 128, 128, 128, 0, 192, 192, 64, 128],
        requested_size=[100, 7, 0, 9, 0, 1, 0, 0, 0],
        thread=[1, 1, 2, 2, 1, 1, 1, 2, 2],
    )


def test_the_pieces_make_no_difference_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = journal_blocks(Trace(crossing()), rows_per_block=2)
    source = write_journal(tmp_path / "x.journal", blocks)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 5)
    whole = in_memory(Journal(source))
    assert whole.events.size.tolist() == [100, 7, 7, 9, 0, 1, 1, 100, 9]
    write_trace(whole, tmp_path / "whole.parquet")
    monkeypatch.setattr(journal_room, "_PIECE_ROWS", 2)
    found = recover_journal(source, tmp_path / "pieces.parquet")
    assert groups(tmp_path / "pieces.parquet") == [5, 4]
    data = (tmp_path / "pieces.parquet").read_bytes()
    assert data == (tmp_path / "whole.parquet").read_bytes()
    assert found.info == whole.info
    assert_same(read_trace(tmp_path / "pieces.parquet"), whole)


@given(st.data())
def test_frees_find_their_blocks_in_earlier_pieces(data: st.DataObject) -> None:
    event = st.tuples(st.sampled_from(Action), st.integers(0, 3), st.integers(0, 1))
    rows = data.draw(st.lists(event, max_size=30))
    events = Columns.of(
        action=[row[0] for row in rows],
        address=[row[1] for row in rows],
        device=[row[2] for row in rows],
        requested_size=np.arange(1, len(rows) + 1),
    )
    partner = match_frees(events)
    ended = (events.action == Action.FREE_COMPLETED) & (partner >= 0)
    expected = np.where(ended, events.requested_size[partner], -1) if rows else ended
    live, size = OpenBlocks(), data.draw(st.integers(1, 5))
    found = [live.freed(piece).tolist() for piece in regrouped([events], size)]
    assert list(chain.from_iterable(found)) == expected.tolist()


def test_what_is_told_of_a_recording_is_what_is_in_it(small_pieces: None) -> None:
    trace = Trace(crossing())
    line = lives_of(trace)
    summary = Summary.of(trace.events)
    assert (summary.events, summary.steps) == (9, line.steps - 1)
    assert summary.mark is line.mark is Mark.OPTIMIZER
    assert summary.peak_live == most_alive(line) == 110
    live, pieces = OpenBlocks(), Summary()
    for piece in regrouped([trace.events], 2):
        pieces.add(piece, live.freed(piece))
    assert vars(pieces).keys() == vars(summary).keys()
    assert (pieces.peak_live, pieces.steps) == (110, 1)
    assert Summary.of(Columns.of()).mark is Mark.NONE


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"time_ns": 1},
            "row 6, column time_ns: 1 is earlier than the event before it",
        ),
        ({"action": 9}, "row 6, column action: unknown action code 9"),
    ],
)
def test_an_unsound_event_costs_its_block_and_what_follows(
    tmp_path: Path, small_pieces: None, change: dict[str, int], reason: str
) -> None:
    events = crossing()
    for name, value in change.items():
        getattr(events, name)[6] = value
    blocks = journal_blocks(Trace(events), rows_per_block=2)
    source = write_journal(tmp_path / "x.journal", blocks)
    found = recover_journal(source, tmp_path / "t.parquet", dropped=0)
    assert reason in found.reason
    assert found.bytes_lost == sum(map(len, blocks[4:]))
    assert not found.info.complete
    assert found.summary.events == 6
    trace = read_trace(tmp_path / "t.parquet")
    assert trace.events.address.tolist() == [64, 128, 128, 128, 0, 192]
    assert not trace.info.complete


def test_events_that_never_reached_the_journal_are_told(tmp_path: Path) -> None:
    source = write_journal(tmp_path / "x.journal", journal_blocks(sample()))
    for dropped, complete in ((0, True), (3, False)):
        found = recover_journal(source, tmp_path / "t.parquet", dropped)
        assert found.info == read_trace(tmp_path / "t.parquet").info
        assert (found.info.dropped_events, found.info.complete) == (dropped, complete)


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_json_is_for_fewer_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    source = write_journal(tmp_path / "x.journal", journal_blocks(sample()))
    recover_journal(source, tmp_path / name)
    assert_same(read_trace(tmp_path / name), in_memory(Journal(source)))
    (tmp_path / name).unlink()
    monkeypatch.setattr(recovery, "MAX_JSON_EVENTS", 17)
    with pytest.raises(FormatError, match=r"more than 17 events.*\.parquet file"):
        recover_journal(source, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["x.journal"]
    with pytest.raises(UsageError, match="no such form"):
        recover_journal(source, tmp_path / "t.txt")


def test_a_journal_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    source = write_journal(tmp_path / "x.journal", journal_blocks(sample()))
    found = Journal(source)
    source.write_bytes(source.read_bytes()[:-200])
    with pytest.raises(FormatError, match="it is being changed"):
        recover_journal_of(found, tmp_path / "t.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["x.journal"]


def recover_journal_of(journal: Journal, path: Path) -> None:
    parquet.write_pieces(path, journal.pieces(), lambda: b"{}")


def test_stacks_out_of_all_proportion_are_left(tmp_path: Path) -> None:
    first = block(METADATA, as_json(metadata(sample())))
    events = block(EVENTS, events_payload(crossing()))
    # 2 MiB each, and over 100 MiB of tuples and lists all together.
    bomb = block(STACKS, b"[" + b"[]," * 700_000 + b"[]]")
    source = write_journal(tmp_path / "x.journal", [first, events, *[bomb] * 4, events])
    found = recover_journal(source, tmp_path / "t.parquet")
    assert "its values would take up about" in found.reason
    assert found.summary.events == 9
    assert found.bytes_lost > len(bomb)
