"""Values in the memory of a result: never two at one place, and the peak goes down."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memplan.core.bounds import lower_bound
from memplan.core.problem import Problem
from memplan.core.verify import verify
from memplan.graph.lending import lend

BUFFERS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 6), st.integers(1, 40)), max_size=14
)


def problem_of(rows: list[tuple[int, int, int]]) -> Problem:
    starts, lasts, sizes = (np.array(each) for each in zip(*rows, strict=True))
    return Problem.of(starts, starts + lasts, 64 * sizes, alignment=64)


@given(BUFFERS, st.integers(1, 14), st.integers(1, 60))
def test_what_is_lent_is_apart_and_lowers_the_peak(
    rows: list[tuple[int, int, int]], born: int, size: int
) -> None:
    if not rows:
        return
    problem = problem_of(rows)
    wanted = [i for i in range(len(rows)) if problem.upper[i] <= born]
    loan = lend(problem, wanted, born, 64 * size)
    if loan is None:
        return
    assert loan.offsets.keys() <= set(wanted)
    assert not verify(loan.plan)
    assert loan.plan.peak == 64 * size
    left = [row for i, row in enumerate(rows) if i not in loan.offsets]
    after = lower_bound(problem_of(left)) if left else 0
    assert after < lower_bound(problem)
    for each in loan.offsets:  # none is lent in vain
        back = [row for i, row in enumerate(rows) if i not in loan.offsets or i == each]
        assert lower_bound(problem_of(back)) > after


def test_one_value_goes_into_a_result_of_its_size() -> None:
    problem = problem_of([(0, 2, 10), (1, 1, 3), (2, 3, 4)])
    loan = lend(problem, [0, 1], 3, 640)
    assert loan is not None
    assert loan.offsets == {0: 0}


def test_what_does_not_fit_is_not_lent() -> None:
    problem = problem_of([(0, 2, 10), (1, 1, 3)])
    assert lend(problem, [0], 3, 576) is None
