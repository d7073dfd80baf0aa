"""No harm: what is resident in the arena, and plans that are given up."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from memplan.applying import payoff, replan
from memplan.applying.payoff import (
    SAVED_AT_FIRST,
    SAVED_WINDOWS,
    SLACK_PARTS,
    WINDOW,
    Payoff,
)
from memplan.core.plan import RunStats
from memplan.native import _alloc
from tests.applying.served import Served, table_of

MIB = 1 << 20
RESERVE = 1 << 30
GRANULE = 16 << 10


def wide_table(rng: random.Random, elastic: bool) -> _alloc.Table:
    """A plan of blocks anywhere in the arena, none where another one lies."""
    requests = [(rng.randrange(1, 4 * MIB), place * 4 * MIB) for place in range(64)]
    rng.shuffle(requests)
    return table_of(requests, arena=RESERVE, elastic=elastic)


@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_no_more_is_resident_than_any_allocator_would_hold(
    seed: int, elastic: bool
) -> None:
    """A plan that leads small blocks all over the arena, and a program that ignores
    half of it."""
    rng = random.Random(seed)
    program = Served(_alloc.make_replay(wide_table(rng, elastic), RESERVE))
    replay, live = program.replay, []
    for turn in range(1500):
        if turn % 40 == 0:
            replay.next_step()
        live.append(program.ask(rng.choice((64, 5000, rng.randrange(1, 3 * MIB)))))
        while len(live) > 1 and (len(live) > 12 or rng.random() < 0.45):
            program.drop(live.pop(rng.randrange(len(live))))
        if turn < 200:  # the first pass may go by the plan
            continue
        most = replay.most_live
        rounding = 2 * GRANULE * len(live)
        assert replay.resident_bytes <= most + most // 16 + 3 * MIB + rounding
    assert replay.refaulted_bytes > 0


def test_what_is_alive_outside_the_arena_counts_as_well() -> None:
    table = table_of([(32 * MIB, 0), (30 * MIB, -1)], arena=RESERVE)
    program = Served(_alloc.make_replay(table, RESERVE))
    for _ in range(4):  # both in turn: 32 MiB are enough, or 34 with the slack
        program.drop(program.ask(32 * MIB))
        assert program.ask(30 * MIB) is None
        assert program.replay.resident_bytes <= 40 * MIB
        program.replay.outside_died(30 * MIB)
        program.replay.next_step()
        program.use(5, 6, 7)  # no longer as planned
        program.replay.next_step()
    assert program.ask(32 * MIB) == 0
    assert program.ask(30 * MIB) is None
    assert program.replay.most_live == 62 * MIB


def test_a_block_alive_keeps_its_pages_whatever_is_returned() -> None:
    program = Served(_alloc.make_replay(table_of([(MIB, 0)], arena=RESERVE), RESERVE))
    kept = program.ask(MIB)
    assert kept == 0
    program.drop(program.ask(8 * MIB))
    before = program.replay.resident_bytes
    program.replay.stand_aside(True)
    assert program.replay.aside
    assert program.ask(64) is None
    assert before > 8 * MIB
    assert program.replay.resident_bytes == MIB
    program.drop(kept)
    program.replay.stand_aside(False)
    assert program.step(MIB) == [0]


def test_cold_pages_that_come_back_are_kept_for_longer() -> None:
    """A program of rounds of twelve steps, whose first asks for most."""
    table = table_of([(64 * MIB, 0), (64, 64 * MIB)], arena=RESERVE)
    program = Served(_alloc.make_replay(table, RESERVE, 2))
    refaulted = []
    for _ in range(8):
        program.step(64 * MIB, 64)
        for _ in range(11):
            program.step(64)
        refaulted.append(program.replay.refaulted_bytes)
    assert refaulted[-1] == refaulted[-4] == 3 * 64 * MIB  # 2, 4 and 8 were too few
    for _ in range(40):
        program.step(64)
    assert program.replay.resident_bytes <= MIB  # for good, they are cold all the same


def test_a_warm_up_without_an_end_is_left_to_the_default_allocator() -> None:
    table = table_of([(MIB, 0), (64, MIB)], (0, 1), (1, 2), arena=RESERVE)
    program = Served(_alloc.make_replay(table, RESERVE))
    program.use(MIB)
    assert program.replay.resident_bytes > 0
    for _ in range(2000):
        program.use(100)
    assert program.replay.aside
    assert program.replay.resident_bytes == 0
    assert program.replay.warmup_counts()["requests"] == 2001
    # The next step ends it.
    assert program.step(64) == [MIB]
    assert not program.replay.aside


def watched(refaults: list[int], default: float) -> tuple[list[bool], list[int]]:
    """What `pays` says after windows with so many faults each; the slacks allowed."""
    allowed: list[int] = []
    replay = SimpleNamespace(refaulted_bytes=0, most_live=4800, allow=allowed.append)
    watch = Payoff(replay, RunStats(page_faults_per_step=default))  # type: ignore[arg-type]
    said = []
    for faults in refaults:
        replay.refaulted_bytes += faults * payoff.PAGE
        assert all(watch.pays(1) for _ in range(WINDOW - 1))
        said.append(watch.pays(1))
    return said, allowed


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payoff.time, "process_time", lambda: 1.0)


@pytest.mark.usefixtures("no_time_passes")
def test_faults_beyond_the_defaults_get_more_slack_and_then_end_the_plan() -> None:
    said, allowed = watched([WINDOW * 10, 0, WINDOW * 11, 900, 900, 900], 10)
    assert said == [True, True, True, True, True, False]
    assert allowed == [4800 // part for part in SLACK_PARTS]


@pytest.mark.usefixtures("no_time_passes")
def test_faults_that_were_allowed_and_not_used_are_saved_for_a_burst() -> None:
    burst = (SAVED_WINDOWS + 1) * WINDOW * 10
    good = [0] * (SAVED_WINDOWS + 1)
    assert watched([*good, burst], 10)[1] == []
    assert watched([*good, *good, burst + 1], 10)[1] != []  # and no more than that
    at_first = (SAVED_AT_FIRST + 1) * WINDOW * 10
    assert watched([at_first], 10)[1] == []
    assert watched([at_first + 1], 10)[1] != []
    assert watched([at_first, WINDOW * 10 + 1], 10)[1] != []  # once


@pytest.mark.usefixtures("no_time_passes")
def test_as_many_faults_as_the_default_allocators_cost_nothing() -> None:
    assert watched([WINDOW * 1000] * 9, 1000) == ([True] * 9, [])


def test_faults_that_take_little_of_the_time_cost_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter(range(100))
    monkeypatch.setattr(payoff.time, "process_time", lambda: float(next(now)))
    few = int(payoff.FAULTS_SHARE / payoff.FAULT_SECONDS) - 1
    assert watched([few] * 5, 0) == ([True] * 5, [])


def test_planning_anew_may_take_a_small_part_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    clock = iter([0.0, 1.0])  # a plan takes a second
    times = SimpleNamespace(
        process_time=lambda: now[0], perf_counter=lambda: next(clock)
    )
    monkeypatch.setattr(replan, "time", times)
    work = replan.PlanningThread()
    assert work.affordable(100)
    assert not work.affordable(10**6)
    work.start("larger", lambda: None)
    work.join()
    assert work.busy
    assert work.take() == replan.Made("larger", 1.0, None)
    assert not work.busy
    assert not work.affordable(1)
    now[0] = 0.9 / replan.SOLVING_SHARE
    assert not work.affordable(1)
    now[0] = 1.1 / replan.SOLVING_SHARE
    assert work.affordable(1000)
    assert not work.affordable(10**4)
