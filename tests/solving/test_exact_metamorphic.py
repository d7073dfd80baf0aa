"""What leaves the least peak as it was, or multiplies it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import problems

from memplan.arrays import Int64Array
from memplan.core.problem import FREE, Problem
from memplan.solving import exact
from memplan.solving.options import Options

COLUMNS = ("lower", "upper", "size", "alignment", "fixed")
MANY = settings(max_examples=400, deadline=None)


def changed(problem: Problem, **columns: Int64Array) -> Problem:
    """`problem` with other values in some columns."""
    own = {name: getattr(problem, name) for name in COLUMNS}
    return Problem.of(**own | columns, length=problem.length)


def least(problem: Problem) -> int:
    plan = exact.solve(problem, Options(threads=1))
    assert plan.status == "optimal"
    return plan.peak


@MANY
@given(problems(max_size=8, fixed=True), st.integers(1, 100))
def test_time_shift(problem: Problem, ticks: int) -> None:
    lower, upper = problem.lower + ticks, problem.upper + ticks
    if problem.length is not None:
        lower, upper = lower % problem.length, upper % problem.length
        always = lower == upper
        lower = np.where(always, 0, lower)
        upper = np.where((upper == 0) | always, problem.length, upper)
    assert least(changed(problem, lower=lower, upper=upper)) == least(problem)


@MANY
@given(problems(max_size=8, fixed=True), st.data())
def test_permutation(problem: Problem, data: st.DataObject) -> None:
    order = np.array(data.draw(st.permutations(range(len(problem)))), dtype=np.int64)
    shuffled = {name: getattr(problem, name)[order] for name in COLUMNS}
    assert least(changed(problem, **shuffled)) == least(problem)


@MANY
@given(problems(max_size=8, fixed=True), st.integers(2, 1 << 20))
def test_multiples(problem: Problem, k: int) -> None:
    multiplied = changed(
        problem,
        size=problem.size * k,
        alignment=problem.alignment * k,
        fixed=np.where(problem.fixed == FREE, FREE, problem.fixed * k),
    )
    assert least(multiplied) == least(problem) * k


@MANY
@given(problems(max_size=8, fixed=True))
def test_time_reversal(problem: Problem) -> None:
    end = problem.length or int(problem.upper.max(initial=0))
    lower, upper = end - problem.upper, end - problem.lower
    if problem.length is not None:
        # The end of a clock is its beginning, but for a lifespan as long as it.
        lower = lower % problem.length
    assert least(changed(problem, lower=lower, upper=upper)) == least(problem)
