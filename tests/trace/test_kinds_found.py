"""Which steps of a recording are of other kinds than the hot one."""

from __future__ import annotations

import numpy as np
import pytest

import memplan
from memplan.errors import NoPlanError
from memplan.trace.liveness import HOT, MOST_KINDS, StepWorkload, step_problem
from memplan.trace.lives import lives_of
from memplan.trace.steps import find_hot
from memplan.trace.trace import Mark
from tests.programs import Made, Step, programs_of_kinds, trace_of
from tests.strategies import examples

WARMUP = (Made(9, 0),)
HOT_STEP = (Made(64, 1), Made(128, 0), Made(256, 0))


def found(*steps: Step) -> StepWorkload:
    """Four hot steps, `steps`, and a last one, which may be cut off."""
    return step_problem(trace_of([WARMUP, *[HOT_STEP] * 4, *steps, HOT_STEP]))


def test_a_kind_is_told_by_what_it_asks_for() -> None:
    short, other = (Made(60, 1), Made(100, 0)), (Made(500, 0),)
    kinds = found(short, HOT_STEP, other, HOT_STEP, short).kinds
    assert [kind.steps for kind in kinds] == [(5, 9), (7,)]
    assert [kind.requests.size.tolist() for kind in kinds] == [[60, 100], [500]]
    assert all(kind.requests.starts == (0,) for kind in kinds)
    assert all(kind.problem.length is None for kind in kinds)


def test_a_step_that_asks_for_nothing_is_no_kind() -> None:
    assert found((), HOT_STEP, (), HOT_STEP).kinds == ()


def test_steps_that_ask_for_nothing_are_not_hot() -> None:
    """They repeat to the letter, where the others only ask alike."""
    one = [(Made(64, 2), Made(128, 0), Made(64, 0)), (Made(64, 1), Made(128, 0),
           Made(64, 0))]  # fmt: skip
    steps = [WARMUP, *one, *one, (), (), (), ()]
    hot = find_hot(lives_of(trace_of(steps)))
    assert hot is not None
    assert hot.begin == 1
    with pytest.raises(NoPlanError):
        step_problem(trace_of([WARMUP, HOT_STEP, (), (), (), ()]))


def test_the_kinds_seen_most_often_are_kept() -> None:
    count = MOST_KINDS + 3
    often = [(Made(1000 + i, 0),) for i in range(count)]
    rare, rest = often[:3], often[3:]
    kinds = found(*[HOT_STEP] * 99, *rare, *rest, *rest).kinds
    assert len(kinds) == MOST_KINDS
    assert min(len(kind.steps) for kind in kinds) == 2


def test_a_chosen_step_and_elastic_steps_have_no_kinds() -> None:
    steps = [WARMUP, *[HOT_STEP] * 4, (Made(500, 0),), HOT_STEP]
    assert step_problem(trace_of(steps), "2").kinds == ()
    sizes = [tuple(Made(100 * i + j, 0) for j in (7, 3)) for i in range(1, 9)]
    elastic = step_problem(trace_of([WARMUP, *sizes[:4], HOT_STEP, *sizes[4:]]))
    assert elastic.hot is not None
    assert elastic.hot.elastic
    assert elastic.kinds == ()


def test_blocks_of_the_steps_beside_it_are_neighbours() -> None:
    hot = (Made(64, 3), Made(128, 0), Made(256, 0))  # freed in the next step
    other = (Made(500, 1), Made(600, 2))
    (kind,) = step_problem(trace_of([WARMUP, *[hot] * 4, other, hot, hot])).kinds
    near = kind.neighbours
    assert near.kind.tolist() == [HOT] * 3
    assert near.size.tolist() == [64, 64, 128]
    # The one before dies within the step; those after are made while 600 still lives.
    assert near.lower[0] == 0
    assert 0 < near.upper[0] < near.lower[1] < near.lower[2]
    assert (near.lower[1:] < kind.problem.upper.max()).all()


def test_what_a_kind_has_in_common_with_the_step_due_is_said() -> None:
    shared = (Made(64, 1), Made(128, 0), Made(999, 0), Made(7, 0))
    longer = (*shared[:3], Made(8, 0))
    new = (Made(5, 0),)
    kinds = found(shared, longer, new).kinds
    assert kinds[0].begins_as.tolist() == [[HOT, 0], [HOT, 1]]
    # Up to 999 it is taken for the hot step, and from then on for the first kind.
    assert kinds[1].begins_as.tolist() == [[HOT, 0], [HOT, 1], [0, 2]]
    assert kinds[2].begins_as.shape == (0, 2)


def test_in_a_longer_loop_it_is_the_step_that_was_due() -> None:
    a, b = (Made(64, 0), Made(100, 0)), (Made(64, 0), Made(200, 0))
    other = (Made(64, 0), Made(300, 0))
    steps = [WARMUP, *[a, b] * 3, other, a, other, b, a, b]
    (kind,) = step_problem(trace_of(steps)).kinds
    assert kind.steps == (7, 9)
    assert kind.begins_as.tolist() == [[HOT, 0]]


def test_exact_steps_are_hot_if_they_are_half_of_all_and_elastic_ones_if_not() -> None:
    """Both repeat: some steps are alike to the byte, all of them but for sizes."""

    def sized(*bytes_: int) -> list[Step]:
        return [(Made(n, 1), Made(n + 1, 0)) for n in bytes_]

    half = find_hot(lives_of(trace_of([WARMUP, *sized(64, 64, 80, 96), WARMUP])))
    assert half is not None
    assert (half.begin, half.passes, half.elastic) == (1, 2, False)
    fewer = find_hot(lives_of(trace_of([WARMUP, *sized(64, 64, 80, 96, 112), WARMUP])))
    assert fewer is not None
    assert fewer.elastic


def test_a_kind_keeps_the_places_that_it_is_given_before_it_is_known() -> None:
    """All but what collides, as it frees later than the step it is taken for."""
    hot = (Made(1000, 3), Made(64, 0), Made(64, 0), Made(64, 0))
    later = (Made(1000, 0), Made(64, 1), Made(64, 0), Made(64, 0), Made(7, 0))
    plan = memplan.solve(trace_of([WARMUP, *[hot] * 4, later, hot]), "bestfit")
    (kind,) = plan.kinds
    first, *small = plan.offsets.tolist()
    assert len(set(small)) == 1
    given = kind.offsets.tolist()
    assert given[:2] == [first, small[0]]
    assert given[2] != small[0]
    assert given[3] == small[0]
    assert memplan.verify(plan) == []


@examples(40, programs_of_kinds(), soak=150)
def test_every_step_after_the_first_hot_one_is_accounted_for(steps: list[Step]) -> None:
    trace = trace_of(steps)
    line, problem = lives_of(trace), step_problem(trace)
    assert problem.hot is not None
    assert line.mark is Mark.OPTIMIZER
    if problem.hot.elastic:
        assert problem.kinds == ()
        return
    loop = {
        line.size[line.requests(problem.hot.begin + i)].tobytes()
        for i in range(problem.hot.period)
    }
    seen: dict[bytes, list[int]] = {}
    for step in range(problem.hot.begin, line.steps - 1):
        sizes = line.size[line.requests(step)].tobytes()
        if sizes not in loop:
            seen.setdefault(sizes, []).append(step)
    assert [kind.steps for kind in problem.kinds] == sorted(map(tuple, seen.values()))
    for kind in problem.kinds:
        near = kind.neighbours
        assert kind.requests.size.tobytes() in seen
        assert ((near.lower < near.upper) & (near.size > 0)).all()
        assert (near.kind < len(problem.kinds)).all()
        alike = len(kind.begins_as)
        assert alike <= len(kind.requests)
    plan = memplan.solve(trace)
    assert len(plan.kinds) == len(problem.kinds)
    for planned, kind in zip(plan.kinds, problem.kinds, strict=True):
        np.testing.assert_array_equal(planned.requests.buffer, kind.requests.buffer)
        assert planned.seen == len(kind.steps)


def test_what_is_alive_two_steps_into_the_hot_ones_is_persistent() -> None:
    hot = (Made(64, 1), Made(128, 0))
    # Freed in the second hot step, in the third, and never.
    before = (Made(500, 7), Made(700, 8), Made(30, None))
    found = step_problem(trace_of([before, *[hot] * 6]))
    assert found.hot is not None
    assert found.hot.begin == 2
    assert found.persistent_bytes == 730
