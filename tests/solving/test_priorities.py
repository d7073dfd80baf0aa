"""Six orders of priority, and the best of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from puzzles import puzzle
from strategies import problems

from memplan.core.problem import Problem
from memplan.core.verify import verify
from memplan.solving.bestfit import (
    best_fit,
    best_of_six,
    merits,
    ranked,
    section_lifetimes,
)
from memplan.solving.methods import solve_problem
from memplan.solving.options import BEST, PRIORITIES, Options, Progress

# None of the six orders reaches the lower bound.
HARD = puzzle(80)


def test_sections_count_changes_not_ticks() -> None:
    problem = Problem.of([0, 0, 100], [1000, 100, 101], [1, 1, 1])
    assert section_lifetimes(problem).tolist() == [3, 1, 1]


def test_sections_on_a_circle_include_its_end() -> None:
    problem = Problem.of([6, 1], [2, 8], [1, 1], length=8)
    # Cut at 0, 1, 2, 6 (and 8, which is 0).
    assert section_lifetimes(problem).tolist() == [3, 3]


@settings(max_examples=50, deadline=None)
@given(problems())
def test_sections_by_definition(problem: Problem) -> None:
    ends = {0, problem.length} if problem.length else set()
    moments = sorted({*problem.lower.tolist(), *problem.upper.tolist(), *ends})
    expected = []
    for lower, upper in zip(
        problem.lower.tolist(), problem.upper.tolist(), strict=True
    ):
        inside = [
            lower <= t < upper if lower < upper else t >= lower or t < upper
            for t in moments[:-1]
        ]
        expected.append(sum(inside))
    assert section_lifetimes(problem).tolist() == expected


def test_each_merit_has_its_own_order() -> None:
    problem = Problem.of([0, 4, 0], [9, 5, 2], [2, 90, 20])
    expected = {
        "lifetime": [0, 2, 1],
        "lifetime-sqrt-size": [0, 1, 2],
        "sections-size": [1, 2, 0],
        "sections": [0, 2, 1],
        "area": [1, 2, 0],
        "size": [1, 2, 0],
    }
    for name, merit in merits(problem).items():
        assert ranked(problem, merit).tolist() == expected[name], name


def test_equal_merits_go_by_lifetime_then_size_then_index() -> None:
    problem = Problem.of([0, 0, 0, 0], [3, 4, 4, 4], [9, 5, 7, 5])
    assert ranked(problem, np.ones(4)).tolist() == [2, 1, 3, 0]


def test_the_lifetime_order_is_the_papers() -> None:
    rng = np.random.default_rng(2)
    lower = rng.integers(0, 50, 80)
    problem = Problem.of(lower, lower + rng.integers(1, 20, 80), rng.integers(1, 9, 80))
    order = ranked(problem, merits(problem)["lifetime"])
    assert best_fit(problem, order).tolist() == best_fit(problem).tolist()


@settings(max_examples=50, deadline=None)
@given(problems(fixed=True))
def test_best_is_the_best_of_all_priorities(problem: Problem) -> None:
    *plans, best = (
        solve_problem(problem, "bestfit", Options(priority=name))
        for name in (*PRIORITIES, BEST)
    )
    assert len(plans) == 6
    assert all(verify(plan) == [] for plan in [*plans, best])
    assert best.peak == min(plan.peak for plan in plans)


def test_a_time_limit_leaves_the_papers_order() -> None:
    seen: list[Progress] = []
    options = Options(time_limit=0.0, progress=seen.append)
    offsets, name = best_of_six(HARD, options)
    assert name == "lifetime"
    assert offsets.tolist() == best_fit(HARD).tolist()
    assert len(seen) == 1


def test_it_stops_within_the_capacity() -> None:
    roomy = int((best_fit(HARD) + HARD.size).max())
    assert best_of_six(HARD, Options(capacity=roomy))[1] == "lifetime"


@pytest.mark.parametrize("name", PRIORITIES[1:])
def test_a_plan_names_its_priority(name: str) -> None:
    made = solve_problem(HARD, "bestfit", Options(priority=name)).provenance
    assert (made.method, made.note) == ("bestfit", f"by {name}")
