"""From a trace to a served program: record, solve, verify, replay, without torch."""

from __future__ import annotations

import numpy as np
import pytest

import memplan
from memplan.core.plan import Plan
from memplan.native import _alloc
from memplan.trace.lives import lives_of
from memplan.trace.steps import find_hot
from memplan.trace.trace import Trace
from tests.applying.served import Served, replay_of
from tests.programs import Made, Step, programs, trace_of
from tests.strategies import examples


def serve(plan: Plan, trace: Trace) -> _alloc.Replay:
    """Run the recorded program under the plan; live blocks are checked for overlap."""
    program = Served(replay_of(plan, plan.arena_bytes))
    program.run(trace)
    return program.replay


@examples(100, programs(), soak=400)
def test_a_program_that_repeats_is_served_from_its_plan_alone(
    steps: list[Step],
) -> None:
    trace = trace_of(steps)
    assert find_hot(lives_of(trace)) is not None
    plan = memplan.solve(trace)
    assert memplan.verify(plan) == []
    replay = serve(plan, trace)
    for counts in (replay.hot_counts(), replay.warmup_counts()):
        assert counts["conflicts"] == counts["online"] == counts["fallback"] == 0
        assert counts["planned"] + counts["unplanned"] == counts["requests"]


@examples(40, programs(), soak=100)
def test_only_what_outlives_two_steps_is_left_to_the_default_allocator(
    steps: list[Step],
) -> None:
    trace = trace_of(steps)
    line = lives_of(trace)
    plan = memplan.solve(trace)
    hot = find_hot(line)
    assert hot is not None
    assert plan.hot.requests is not None
    own = line.requests(hot.begin)
    born, died = line.step_of(line.lower[own]), line.step_of(line.upper[own])
    first = plan.hot.requests.buffer[: own.stop - own.start]
    np.testing.assert_array_equal(first < 0, died - born > 1)


def test_a_gradient_kept_over_the_boundary_wraps_around() -> None:
    step = (Made(64, 0), Made(128, 2), Made(256, 0))
    plan = memplan.solve(trace_of([(Made(64, 0),), *[step] * 4]))
    problem = plan.problem
    wrapped = problem.wraps
    assert problem.size[wrapped].tolist() == [128]
    # It dies right before the second request of the next step.
    assert problem.length is not None
    assert problem.upper[wrapped] < problem.lower[wrapped]


def test_a_block_that_meets_its_own_successor_unrolls_the_step() -> None:
    step = (Made(640, 2), Made(64, 0))  # freed only after the next one is made
    plan = memplan.solve(trace_of([(Made(64, 0),), *[step] * 6]))
    assert plan.hot.requests is not None
    assert plan.hot.requests.starts == (0, 2)
    big = plan.problem.size == 640
    assert len(set(plan.offsets[big].tolist())) == 2


def test_a_departure_in_one_step_does_not_harm_the_next() -> None:
    step = (Made(64, 1), Made(128, 0), Made(256, 0))
    usual = [(Made(64, 0),), *[step] * 4]
    plan = memplan.solve(trace_of(usual))
    odd = (Made(64, 1), Made(999, 1), Made(128, 0), Made(256, 0))
    replay = serve(plan, trace_of([*usual, odd, step, step, step]))
    counts = replay.hot_counts()
    assert counts["online"] + counts["fallback"] >= 1
    assert counts["planned"] >= counts["requests"] - 3


def test_a_program_without_boundaries_is_planned_as_one_step() -> None:
    sizes = (64, 192, 320)  # no loop shows in them
    trace = trace_of(
        [(Made(size, 0), Made(2 * size, 1), Made(size, None)) for size in sizes],
        cut=False,
    )
    plan = memplan.solve(trace)
    assert plan.warmup is None
    assert plan.provenance.program.marks == "none"
    assert plan.hot.requests is not None
    assert plan.hot.requests.starts == (0,)
    counts = serve(plan, trace).hot_counts()
    assert (counts["planned"], counts["unplanned"]) == (6, 3)


def test_when_no_step_repeats_the_remedy_is_named() -> None:
    trace = trace_of(
        [tuple(Made(64 * (10 * i + j), 0) for j in range(i)) for i in range(1, 6)]
    )
    with pytest.raises(Exception, match=r"memplan\.step\(\).*step=\"N\"") as caught:
        memplan.solve(trace)
    assert getattr(caught.value, "exit_code", None) == 4
    assert len(memplan.solve(trace, step=2).problem) == 3
    with pytest.raises(Exception, match="steps 0 to 4 only"):
        memplan.solve(trace, step=5)
    with pytest.raises(Exception, match="write hot, all or"):
        memplan.solve(trace, step="-1")


def test_step_all_plans_the_whole_recording() -> None:
    trace = trace_of([(Made(64, 0), Made(128, 3)), *[(Made(64, 0),)] * 4])
    plan = memplan.solve(trace, step="all")
    assert len(plan.problem) == 6
    assert plan.provenance.program.marks == "none"
