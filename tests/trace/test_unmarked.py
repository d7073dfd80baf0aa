"""A loop that no mark tells of, found in the sequence of requests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.core.plan import UNMARKED
from memplan.core.tables import replay_arrays
from memplan.core.verify import verify
from memplan.errors import NoPlanError
from memplan.native import _alloc
from memplan.solving.from_trace import solve_trace
from memplan.trace.liveness import step_problem
from memplan.trace.trace import Action, Mark, Trace
from tests.applying.served import Served, column, flags
from tests.programs import events_of

BODY = (1000, 5000, 3000, 7000, 200, 64)  # each freed after the one that follows it


def trace_of(sizes: list[int], marks: tuple[int, ...] = ()) -> Trace:
    """Blocks of `sizes`, each freed once the next is there; a mark before some."""
    rows: list[tuple[int, int, int, int]] = []
    for i, size in enumerate(sizes):
        if i in marks:
            rows.append((Action.STEP, Mark.FORWARD, 0, 0))
        rows.append((Action.ALLOC, Mark.NONE, i + 1, size))
        if i:
            rows.append((Action.FREE_COMPLETED, Mark.NONE, i, sizes[i - 1]))
    return Trace(events_of("action mark address size", rows))


SMALL = st.lists(st.integers(1, 900), max_size=20)


@given(SMALL, st.integers(4, 9), SMALL)
def test_a_loop_without_marks_is_found_and_followed(
    before: list[int], passes: int, after: list[int]
) -> None:
    sizes = [*before, *BODY * passes, *after]
    trace = trace_of(sizes)
    found = step_problem(trace)
    assert found.unmarked
    assert found.hot is not None
    assert found.hot.period * len(BODY) == len(found.requests) // found.unrolled
    plan = solve_trace(trace)
    assert not verify(plan)
    assert plan.provenance.program.marks == UNMARKED
    assert (plan.warmup, plan.kinds) == (None, ())
    arrays = replay_arrays(plan)
    assert arrays.unmarked
    table = arrays.table(plan.arena_bytes, plan.arena_bytes)
    served = Served(_alloc.make_replay(table, plan.arena_bytes))
    last: int | None = None
    for size in sizes * 2:
        now = served.ask(size)
        served.drop(last)
        last = now
    hot = served.replay.hot_counts()
    assert hot["planned"] >= 2 * (passes - 2) * len(BODY)


def test_twenty_equal_calls_within_one_step_are_a_loop() -> None:
    sizes = [300, 40, *BODY * 20, 80]
    found = step_problem(trace_of(sizes, marks=(0,)))
    assert found.unmarked
    assert len(found.problem) // found.unrolled == len(BODY)


def test_steps_that_repeat_go_before_a_loop_within_them() -> None:
    sizes = [300, *BODY * 4] * 5
    marks = tuple(range(0, len(sizes), len(sizes) // 5))
    found = step_problem(trace_of(sizes, marks))
    assert not found.unmarked
    assert len(found.problem) == 1 + 4 * len(BODY)


def test_two_passes_are_no_loop_and_a_mark_is_advised() -> None:
    trace = trace_of([300, *BODY * 2, 80, 17], marks=(0, 3))
    with pytest.raises(NoPlanError, match=r"memplan\.step\(\)"):
        step_problem(trace)
    assert step_problem(trace_of([300, *BODY * 2, 80, 17])).hot is None


def test_a_loop_without_the_largest_block_is_none() -> None:
    # The whole that repeats has it; twice is too little.
    sizes = [*(64, 128) * 30, 9000, *(64, 128) * 30, 9000]
    assert not step_problem(trace_of(sizes)).unmarked


def unmarked_table(
    sizes: tuple[int, ...], loop: tuple[int, int] = (0, 1), elastic: bool = False
) -> _alloc.Table:
    offsets = np.cumsum([0, *([64] * (len(sizes) - 1))]).astype(np.int64)
    none = np.zeros(len(sizes), dtype=np.bool_)
    arena = 64 * max(len(sizes), 1)
    return _alloc.table(
        column(sizes),
        offsets[: len(sizes)],
        column([0]),
        *loop,
        flags([elastic]),
        none,
        arena,
        arena,
        True,
    )


def test_what_is_no_part_of_the_loop_stays_outside_the_arena() -> None:
    replay = _alloc.make_replay(unmarked_table((1, 2, 3, 4)), 256)
    served = Served(replay)
    assert served.use(9, 9, 9) == [None] * 3
    assert served.use(1, 2, 3) == [None] * 3
    assert served.use(4) == [192]  # now it is known for what it is
    assert served.use(1, 2, 3, 4) == [0, 64, 128, 192]
    assert served.use(7, 1, 2) == [None] * 3  # after the last: it may be over
    assert served.use(3, 4, 1, 2) == [None, 192, 0, 64]
    assert replay.hot_counts()["planned"] == 8


def test_a_loop_that_is_left_in_the_middle_is_found_again() -> None:
    sizes = tuple(range(1, 30))
    replay = _alloc.make_replay(unmarked_table(sizes), 64 * 29)
    served = Served(replay)
    served.use(*sizes)
    served.use(*sizes[:3])
    served.use(*range(100, 140))  # so many are no part of it
    counts = replay.hot_counts()
    assert counts["fallback"] + counts["online"] < 20
    served.use(*sizes)
    assert served.use(*sizes) == [64 * i for i in range(29)]


@pytest.mark.parametrize(
    ("sizes", "loop", "elastic"), [((), (0, 1), False), ((1, 2), (0, 1), True)]
)
def test_a_loop_without_marks_needs_requests_of_one_size(
    sizes: tuple[int, ...], loop: tuple[int, int], elastic: bool
) -> None:
    with pytest.raises(ValueError, match="without marks, all steps must repeat"):
        unmarked_table(sizes, loop, elastic)
