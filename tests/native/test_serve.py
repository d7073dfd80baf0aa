"""The server of requests through the CPU's Replay: tables, places, counts."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from memplan.native import _alloc
from tests.applying.served import Served, add_up, column, flags, table_of

MIB = 1 << 20


def test_departures_lie_below_the_limit_and_conflicts_do() -> None:
    table = table_of([(64, 512), (64, 512)], arena=1024, online=128)
    program = Served(_alloc.make_replay(table, 1024))
    assert program.ask(64) == 512
    assert [program.ask(64) for _ in range(3)] == [0, 64, None]
    counts = program.replay.hot_counts()
    assert counts == {
        "requests": 4,
        "planned": 1,
        "unplanned": 0,
        "conflicts": 1,
        "online": 2,
        "fallback": 1,
        "online_bytes": 128,
        "fallback_bytes": 64,
    }


def test_in_the_warm_up_nothing_is_placed_online_not_even_a_conflict() -> None:
    table = table_of([(64, 0), (64, 0), (64, 0)], (0, 2), (1, 2), arena=1024)
    program = Served(_alloc.make_replay(table, 1024))
    assert [program.ask(size) for size in (64, 64, 99)] == [0, None, None]
    counts = program.replay.warmup_counts()
    assert add_up(counts)
    assert (counts["planned"], counts["conflicts"], counts["online"]) == (1, 1, 0)
    assert (counts["fallback"], counts["fallback_bytes"]) == (2, 64 + 99)
    program.replay.next_step()
    assert program.ask(64) == 64
    hot = program.replay.hot_counts()
    assert (hot["requests"], hot["conflicts"], hot["online"]) == (1, 1, 1)
    assert program.replay.warmup_counts() == counts


def test_requests_count_for_the_step_they_came_in() -> None:
    table = table_of([(64, 0), (64, -1)], (0, 1), (1, 2), arena=1024)
    program = Served(_alloc.make_replay(table, 1024))
    assert program.use(64) == [0]
    assert program.step(64, 128) == [None, 0]
    program.replay.adopt(table_of([(128, 512)]))
    assert program.step(128) == [512]
    program.replay.next_step()
    first, second = (counts for _, counts in program.replay.take_steps())
    assert (first["unplanned"], first["online"], first["online_bytes"]) == (1, 1, 128)
    assert (second["requests"], second["planned"]) == (1, 1)
    hot = program.replay.hot_counts()
    assert {name: first[name] + second[name] for name in hot} == hot
    assert program.replay.warmup_counts()["planned"] == 1


def test_steps_that_nobody_asks_for_are_kept_so_far_and_no_further() -> None:
    program = Served(_alloc.make_replay(table_of([(64, 0)]), 1024))
    for _ in range(4200):
        program.step(64)
    assert len(program.replay.take_steps()) == 4096
    program.replay.next_step()
    assert len(program.replay.take_steps()) == 1
    assert program.replay.hot_counts()["requests"] == 4200


def test_a_table_waits_for_the_end_of_the_warm_up_and_holds_for_its_loop() -> None:
    table = table_of([(64, 0), (64, 64), (64, 128)], (0, 1, 2), (2, 3))
    program = Served(_alloc.make_replay(table, 1 << 12))
    # Its own warm-up is left out: the program is past it.
    later = table_of([(64, 512), (64, 1024)], (0, 1), (1, 2), arena=1 << 12)
    program.replay.adopt(later)
    assert program.use(64) == [0]
    assert not program.replay.next_step()
    assert program.use(64) == [64]
    assert program.replay.arena_bytes == 1 << 16
    assert program.replay.next_step()
    assert program.use(64) == [1024]
    assert program.replay.arena_bytes == 1 << 12
    assert program.step(64) == [1024]


def first_byte(program: Served, offset: int) -> int:
    return int(ctypes.c_uint8.from_address(program.replay.base + offset).value)


@pytest.mark.parametrize("larger", [4 * MIB + 1, 3 * MIB])
def test_a_step_that_outgrows_its_plan_returns_no_pages_that_it_may_need(
    larger: int,
) -> None:
    requests = [(2 * MIB, 0), (4 * MIB, 4 * MIB)]
    table = table_of(requests, arena=32 * MIB, elastic=True)
    program = Served(_alloc.make_replay(table, 32 * MIB))
    for offset, size in zip((0, 4 * MIB), (2 * MIB, 4 * MIB), strict=True):
        assert program.ask(size) == offset
        ctypes.memset(program.replay.base + offset, 7, size)
    program.drop(4 * MIB)
    program.replay.next_step()
    # More than planned for its first: the step goes without the plan from here on.
    found = program.ask(larger)
    assert found == 2 * MIB
    assert [first_byte(program, i * MIB) for i in (0, 4)] == [7, 7]
    program.drop(found)
    most = program.replay.most_live
    assert program.replay.resident_bytes <= most + most // 16 + 2 * MIB


def test_a_block_that_outlives_its_table_is_not_taken_for_one_of_the_next() -> None:
    table = table_of([(4 * MIB, 0)], arena=16 * MIB, sparse=(0,))
    program = Served(_alloc.make_replay(table, 16 * MIB))
    assert program.ask(4 * MIB) == 0
    ctypes.memset(program.replay.base, 7, 4 * MIB)
    program.replay.adopt(table_of([(4 * MIB, 8 * MIB)], arena=16 * MIB, sparse=(0,)))
    for _ in range(4):  # to a step in which sparse blocks return their pages
        program.replay.next_step()
    program.drop(0)
    assert first_byte(program, 0) == 7


def test_pages_are_cold_so_many_steps_after_their_block_was_freed() -> None:
    table = table_of([(8 * MIB, 0)], arena=16 * MIB)
    program = Served(_alloc.make_replay(table, 16 * MIB, 3))
    assert program.ask(8 * MIB) == 0
    for _ in range(6):
        program.replay.next_step()
    ctypes.memset(program.replay.base, 7, 8 * MIB)
    program.drop(0)
    for _ in range(3):
        program.replay.next_step()
        assert first_byte(program, 0) == 7
    program.replay.next_step()
    assert first_byte(program, 0) == 0
    assert program.replay.returned_bytes == 8 * MIB


def test_a_block_is_looked_at_once() -> None:
    table = table_of([(4 * MIB, 0)], arena=16 * MIB)
    program = Served(_alloc.make_replay(table, 16 * MIB))
    program.replay.unsettle(True)
    for touched in (4 * MIB, 4096):
        assert program.ask(4 * MIB) == 0
        ctypes.memset(program.replay.base, 7, touched)
        program.drop(0)
        program.replay.next_step()
    assert program.replay.touched() == [1.0]


def make(**changes: Any) -> _alloc.Table:
    """Of two requests in as many steps, the second of which repeats."""
    arrays: dict[str, Any] = {
        "sizes": [64, 100],
        "offsets": [0, -1],
        "starts": [0, 1],
        "loop_begin": 1,
        "loop_end": 2,
        "elastic": [False, True],
        "sparse": [True, False],
        "arena_bytes": 1024,
        "online_bytes": 1024,
        **changes,
    }
    for name in ("sizes", "offsets", "starts"):
        arrays[name] = column(arrays[name])
    for name in ("elastic", "sparse"):
        arrays[name] = flags(arrays[name])
    return _alloc.table(**arrays)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"offsets": [0]}, "sizes, offsets, sparse and brief differ in length"),
        ({"sparse": [True]}, "sizes, offsets, sparse and brief differ in length"),
        ({"elastic": [True]}, "starts and elastic differ in length"),
        ({"sizes": [64, 0]}, "a size is not positive"),
        ({"sizes": [-64, 64]}, "a size is not positive"),
        ({"offsets": [32, 64]}, "an offset is not a multiple of 64"),
        ({"starts": [1, 1]}, "starts must begin with 0"),
        ({"starts": [], "elastic": [], "loop_begin": 0, "loop_end": 0}, "begin with 0"),
        ({"starts": [0, 3]}, "starts must ascend"),
        ({"starts": [0, -1]}, "starts must ascend"),
        ({"loop_begin": 2}, "the steps that repeat must be some"),
        ({"loop_begin": 2, "loop_end": 1}, "the steps that repeat must be some"),
        ({"loop_end": 3}, "the steps that repeat must be some, and reach beyond none"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"starts": [0, 0]},
        {"starts": [0, 2]},
        {"loop_begin": 0, "loop_end": 1},
        {"sparse": []},
        {"offsets": [1 << 40, 1 << 40]},
    ],
)
def test_what_makes_sense_is_taken(changes: dict[str, Any]) -> None:
    replay = _alloc.make_replay(make(**changes), 1024)
    replay.next_step()
    assert replay.largest() == [0, 0]


def test_without_steps_every_request_is_a_departure() -> None:
    names = ("sizes", "offsets", "starts", "elastic", "sparse")
    nothing: dict[str, Any] = {name: [] for name in names}
    replay = _alloc.make_replay(make(**nothing, loop_begin=0, loop_end=0), 1024)
    assert replay.allocate(64) == replay.base
    assert replay.hot_counts()["online"] == 1
