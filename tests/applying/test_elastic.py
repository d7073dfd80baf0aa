"""Elastic plans: steps alike but for their sizes, told by each request's place."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import strategies as st

import memplan
from memplan.applying.replan import larger
from memplan.native import _alloc
from tests.applying.served import Served, add_up, column, replay_of, table_of
from tests.programs import Made, Step, programs_of_sizes, trace_of
from tests.strategies import examples

PLACES = [(100, 0), (300, 128), (50, 448)]


def served(arena: int = 1 << 12) -> Served:
    table = table_of(PLACES, arena=arena, elastic=True)
    return Served(_alloc.make_replay(table, arena))


def test_smaller_requests_are_served_by_their_place() -> None:
    program = served()
    assert program.step(100, 300, 50) == [0, 128, 448]
    assert program.step(50, 1, 50) == [0, 128, 448]
    assert program.step(1) == [0]
    assert program.replay.hot_counts()["planned"] == 7
    assert program.replay.largest() == [100, 300, 50]


def test_from_a_larger_request_on_the_step_goes_without_the_plan() -> None:
    program = served()
    assert program.step(100, 301, 50) == [0, 128, 448]
    counts = program.replay.hot_counts()
    assert (counts["planned"], counts["online"], counts["conflicts"]) == (1, 2, 0)
    assert program.step(99, 299, 49) == [0, 128, 448]
    assert program.replay.largest() == [100, 301, 50]


@pytest.mark.parametrize("strays", [(900,), (900, 900), (900, 1, 1, 1)])
def test_nothing_is_learnt_of_steps_of_other_lengths(strays: tuple[int, ...]) -> None:
    program = served()
    program.step(100, 300, 50)
    program.step(*strays)
    program.step(90, 310, 40)
    assert program.replay.largest() == [100, 310, 50]


def test_the_next_table_forgets_what_was_asked_of_the_one_before() -> None:
    program = served()
    program.step(500)
    program.replay.adopt(table_of([(500, 0)], elastic=True))
    assert program.step(200) == [0]
    assert program.replay.largest() == [200]


def test_of_two_tables_the_later_is_adopted() -> None:
    program = served()
    program.replay.adopt(table_of([(64, 512)]))
    program.replay.adopt(table_of([(64, 1024)]))
    assert program.step(64) == [1024]


@pytest.mark.parametrize("size", [1 << 40, (1 << 62) - 1, (1 << 64) - 1])
def test_a_request_beyond_the_arena_is_left_to_the_default_allocator(size: int) -> None:
    program = served()
    assert program.ask(size) is None
    assert program.replay.live_blocks == 0


def test_sizes_that_differ_in_every_step_make_an_elastic_plan() -> None:
    steps = [tuple(Made(100 * i + j, 1) for j in (7, 3)) for i in range(1, 9)]
    plan = memplan.solve(trace_of([(Made(64, 0),), *steps]))
    assert plan.elastic
    assert plan.kinds == ()
    assert plan.hot.requests is not None
    # The last step may be cut off; the second request outlives its own successor.
    assert plan.hot.requests.size.tolist() == [707, 703] * 2


@examples(40, programs_of_sizes(), soak=150)
def test_what_the_recording_asked_for_is_planned(steps: list[Step]) -> None:
    trace = trace_of(steps)
    plan = memplan.solve(trace)
    assert memplan.verify(plan) == []
    program = Served(replay_of(plan))
    for counts in program.run(trace)[: -1 if plan.elastic else None]:
        assert add_up(counts)
        if plan.elastic:
            assert counts["planned"] + counts["unplanned"] == counts["requests"]


@examples(40, programs_of_sizes(), st.data(), soak=100)
def test_a_plan_for_larger_requests_verifies(
    steps: list[Step], data: st.DataObject
) -> None:
    plan = memplan.solve(trace_of(steps))
    assert plan.hot.requests is not None
    count, buffers = len(plan.hot.requests), len(plan.problem)
    sizes = st.lists(st.integers(0, 1 << 20), min_size=count, max_size=count)
    flags = st.lists(st.booleans(), min_size=buffers, max_size=buffers)
    most = column(data.draw(sizes))
    sparse = column(data.draw(st.none() | flags) or [0] * buffers) > 0
    grown = larger(plan, np.where(most > plan.hot.requests.size, 2 * most, 0), sparse)
    assert memplan.verify(grown) == []
    assert grown.hot.requests is not None
    assert grown.elastic == plan.elastic
    assert (grown.hot.requests.size >= most).all()
    assert (grown.hot.requests.size >= plan.hot.requests.size).all()
    program = Served(replay_of(grown))
    wanted = plan.hot.requests.size if not plan.elastic else most.clip(1)
    # One after the other, so that only their sizes decide.
    starts = [*plan.hot.requests.starts, count]
    for first, last in pairwise(starts):
        for size in wanted[first:last].tolist() if plan.elastic else ():
            program.drop(program.ask(size))
        program.replay.next_step()
    counts = program.replay.hot_counts()
    assert counts["planned"] + counts["unplanned"] == counts["requests"]
