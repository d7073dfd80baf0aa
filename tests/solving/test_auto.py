"""The method for those who do not choose: what it does, and why it says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from exact_oracle import brute_force
from hypothesis import example
from puzzles import puzzle

from memplan.core.bounds import lower_bound
from memplan.core.planfile import dump_plan
from memplan.core.problem import Problem
from memplan.core.verify import verify
from memplan.errors import InfeasibleError, NoPlanError
from memplan.solving import auto
from memplan.solving.bestfit import best_of_six
from memplan.solving.methods import solve_problem
from memplan.solving.options import Options, Progress
from tests.strategies import examples, problems

# Each meets each other, but never do all three: 10 bytes alive, and 15 needed.
TRIANGLE = Problem.of([0, 2, 4], [3, 5, 1], [5, 5, 5], length=6)
SMALL = Options(iterations=600, max_nodes=20_000)


def side_by_side(*problems: Problem) -> Problem:
    """One after the other, with silence between."""
    columns: list[list[np.ndarray]] = [[], [], []]
    begin = 0
    for problem in problems:
        columns[0].append(problem.lower + begin)
        columns[1].append(problem.upper + begin)
        columns[2].append(problem.size)
        begin += int(problem.upper.max()) + 3
    return Problem.of(*(np.concatenate(column) for column in columns))


@examples(60, problems(fixed=True, max_size=7))
@example(Problem.of([0, 0], [1, 1], [1, 3], alignment=[3, 3]))  # taken apart, it is 4
def test_small_problems_are_proved(problem: Problem) -> None:
    plan = auto.solve(problem)
    assert verify(plan) == []
    assert plan.proved_optimal
    assert plan.peak == plan.lower_bound == brute_force(problem)
    assert plan.provenance.note and "\n" not in plan.provenance.note


def test_best_fit_that_reaches_the_bound_is_enough() -> None:
    plan = auto.solve(Problem.of([0, 1], [2, 3], [4, 4]))
    assert plan.provenance.note == "best fit by lifetime is at the lower bound"


def test_a_bound_that_only_exact_search_knows() -> None:
    plan = auto.solve(TRIANGLE)
    assert (plan.peak, plan.lower_bound, plan.status) == (15, 15, "optimal")
    assert "exact search of 3 buffers" in plan.provenance.note


def test_parts_are_solved_one_by_one() -> None:
    problem = side_by_side(puzzle(80), puzzle(60, 1, height=9990), puzzle(100))
    plan = auto.solve(problem)
    assert verify(plan) == []
    assert plan.peak == 10_000
    found = plan.provenance.note.split("; ")
    assert found[0] == "5 independent parts"
    # Two of them need no more than best fit.
    assert sum("orders" in part or "exact" in part for part in found) == 3


def test_the_same_plan_on_any_number_of_threads() -> None:
    problem = puzzle(70, seed=5)
    options = [replace(SMALL, threads=threads) for threads in (1, 1, 1, 2, 3)]
    found = {dump_plan(solve_problem(problem, "auto", each)) for each in options}
    assert len(found) == 1


def test_the_decision_question() -> None:
    problem = puzzle(40, seed=6)
    first = problem.peak(best_of_six(problem)[0])
    assert solve_problem(problem, options=Options(capacity=first)).peak <= first
    with pytest.raises(InfeasibleError, match="does not fit: it is proved") as below:
        solve_problem(problem, options=Options(capacity=9_999))
    assert below.value.lower_bound == lower_bound(problem) == 10_000
    with pytest.raises(InfeasibleError, match="at least 15 bytes") as odd:
        solve_problem(TRIANGLE, options=Options(capacity=14))
    assert (odd.value.peak, odd.value.lower_bound) == (15, 15)
    with pytest.raises(NoPlanError, match="unknown: bestfit found no plan") as unknown:
        solve_problem(TRIANGLE, "bestfit", Options(capacity=14))
    assert not isinstance(unknown.value, InfeasibleError)
    assert (unknown.value.peak, unknown.value.lower_bound) == (15, 10)


@examples(50, problems(max_size=6))
def test_the_decision_is_right_for_every_capacity(problem: Problem) -> None:
    least = brute_force(problem)
    for capacity in {least, least + 1, max(least - 1, 0)}:
        if capacity < least:
            with pytest.raises(InfeasibleError):
                solve_problem(problem, options=Options(capacity=capacity))
        else:
            plan = solve_problem(problem, options=Options(capacity=capacity))
            assert verify(plan) == []
            assert plan.peak <= capacity


@pytest.mark.parametrize("most", [50, 10_000])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_an_interrupt_keeps_the_best(
    monkeypatch: pytest.MonkeyPatch, after: int, most: int
) -> None:
    """In the search, or in the exact search."""
    monkeypatch.setattr(auto, "MOST_FOR_EXACT", most)
    seen: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        seen.append(progress)
        if progress.nodes > 0 and len(seen) > after + 6:
            raise KeyboardInterrupt

    plan = auto.solve(puzzle(600, seed=7), Options(progress=interrupt))
    assert verify(plan) == []
    assert plan.provenance.note.endswith("interrupted")
    assert plan.status == "feasible"


def test_of_very_many_buffers_only_orders_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = puzzle(600, seed=9)
    monkeypatch.setattr(auto, "MOST_FOR_EXACT", 50)
    both = auto.solve(problem, Options(iterations=200))
    monkeypatch.setattr(auto, "MOST_FOR_EJECTION", 500)
    orders = auto.solve(problem, Options(iterations=200))
    assert "ejection" in both.provenance.note
    assert "ejection" not in orders.provenance.note
    assert "given up after that" in orders.provenance.note
    assert verify(orders) == []


def test_a_time_limit_ends_it() -> None:
    plan = auto.solve(puzzle(200, seed=8), Options(time_limit=0.2))
    assert verify(plan) == []
    none = auto.solve(puzzle(200, seed=8), Options(time_limit=0.0))
    assert verify(none) == []
    assert none.peak >= plan.lower_bound
