"""What a plan will bring, said before it is applied."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.core.plan import RunStats
from memplan.core.problem import Problem
from memplan.solving.from_trace import solve_trace
from memplan.solving.outlook import MAPPED, default_heaps, outlook, unplanned_bytes
from memplan.solving.solve import solve
from memplan.trace.trace import Trace
from tests.programs import Made, trace_of

HOT = (Made(1 << 20, 0), Made(1 << 21, 0))


def measured(trace: Trace, peak: int, added: int) -> Trace:
    run = RunStats(peak_rss_bytes=peak)
    return replace(trace, info=replace(trace.info, run=run, added_bytes=added))


def test_what_stays_is_out_of_reach() -> None:
    trace = trace_of([(Made(1 << 24, None), *HOT), *[HOT] * 8])
    assert unplanned_bytes(trace) == 1 << 24
    trace = measured(trace, 1 << 30, 1 << 29)
    plan = solve_trace(trace)
    found = outlook(trace, plan)
    assert found is not None
    assert found.persistent == 1 << 24
    assert found.peak_planned - found.out_of_reach == plan.arena_bytes
    assert found.peak_planned_least <= found.peak_planned <= found.peak_now
    assert found.most_live <= default_heaps(trace)[0]


def test_the_last_steps_gradients_are_planned() -> None:
    step = (Made(1 << 20, 2), Made(1 << 21, 0))  # freed when the next one begins
    trace = trace_of([(Made(1 << 24, None), *step), *[step] * 8])
    assert unplanned_bytes(trace) == 1 << 24


def test_of_a_whole_recording_only_what_is_never_freed_is_not_planned() -> None:
    trace = trace_of([(Made(1 << 24, 12), Made(5000, None), *HOT), *[HOT] * 8])
    found = outlook(trace, solve_trace(trace, step="all"))
    assert found is not None
    assert found.persistent == 5000


@given(st.lists(st.integers(1, 2 * MAPPED), min_size=1, max_size=30))
def test_heaps_hold_what_is_alive(sizes: list[int]) -> None:
    trace = trace_of([tuple(Made(size, 0) for size in sizes)] * 3)
    heaps, most_live = default_heaps(trace)
    live = max(sizes) if len(sizes) else 0
    assert heaps >= most_live >= live


def test_a_plan_of_a_program_that_is_mostly_something_else_does_not_pay() -> None:
    trace = measured(trace_of([HOT] * 8), 1 << 34, 1 << 22)
    found = outlook(trace, solve_trace(trace))
    assert found is not None
    assert not found.pays
    assert 0 <= found.saved <= found.saved_most < 0.02


def test_where_nothing_was_measured_nothing_is_said_of_it() -> None:
    trace = trace_of([HOT] * 8)
    found = outlook(trace, solve_trace(trace))
    assert found is not None
    assert (found.peak_now, found.saved, found.pays) == (0, 0.0, True)


@pytest.mark.parametrize("device", ["cuda"])
def test_only_the_cpus_heaps_are_known(device: str) -> None:
    trace = trace_of([HOT] * 8)
    plan = solve_trace(trace)
    assert (
        outlook(replace(trace, info=replace(trace.info, device=device)), plan) is None
    )
    bare = solve(Problem.of([0], [1], [1]))
    assert outlook(trace, bare) is None
