"""The peaks that plans can have, and parts whose best peaks lie between two units."""

from __future__ import annotations

import numpy as np
from exact_oracle import brute_force, stacked
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import problems

from memplan.core.problem import Problem
from memplan.solving import exact
from memplan.solving.exact import Peaks
from memplan.solving.methods import solve_problem
from memplan.solving.options import Options


@settings(max_examples=50, deadline=None)
@given(problems(fixed=True), st.integers(0, 5000))
def test_ascending_and_without_a_gap(problem: Problem, least: int) -> None:
    peaks = Peaks(problem)
    index = peaks.index(least)
    assert peaks[0] == 0
    assert peaks[index] >= least > (peaks[index - 1] if index else -1)
    assert peaks.at_most(least) <= least < peaks[peaks.index(least + 1)]


def test_the_padding_above_the_topmost_needs_no_room() -> None:
    problem = Problem.of([0, 0], [1, 1], [100, 100], alignment=64)
    for method in ("auto", "exact", "bestfit", "search", "mip"):
        assert solve_problem(problem, method, Options(capacity=228)).peak == 228


def test_parts_of_other_times_do_not_bound_one_another() -> None:
    for problem in (
        Problem.of([5, 0], [10, 2], [164, 111], alignment=4),
        Problem.of(
            [1, 5, 1, 2, 5], [2, 12, 2, 9, 10], [79, 37, 9, 2, 25], alignment=64
        ),
    ):
        found = exact.improve(problem, stacked(problem), options=Options(threads=1))
        least = brute_force(problem)
        assert problem.peak(found.offsets) == found.lower_bound == least
        assert found.proved_optimal
        assert np.array_equal(found.offsets % problem.alignment, np.zeros(len(problem)))
