"""The registry of methods, and what every one of them owes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings

from memplan.core.problem import Problem
from memplan.core.verify import verify
from memplan.errors import NoPlanError, UsageError
from memplan.solving.methods import METHOD_NAMES, METHODS, solve_problem
from memplan.solving.options import Options
from memplan.solving.solve import solve
from tests.strategies import problems


@pytest.mark.parametrize("name", METHOD_NAMES)
@settings(max_examples=30, deadline=None)
@given(problem=problems())
def test_every_method_makes_plans_that_verify(name: str, problem: Problem) -> None:
    limits = Options(time_limit=2.0, iterations=500, max_nodes=20_000)
    plan = solve_problem(problem, name, limits)
    assert plan.provenance.method == name
    assert plan.provenance.seconds > 0
    assert verify(plan) == []
    assert plan.peak >= plan.lower_bound


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_every_method_says_what_it_does_in_one_line(name: str) -> None:
    assert 0 < len(METHODS[name].summary) <= 72
    assert "\n" not in METHODS[name].summary


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match="no method 'magic'; the methods are auto, bestfit"
    ):
        solve_problem(Problem.of([0], [1], [1]), "magic")


def test_colliding_fixed_offsets_have_no_plan() -> None:
    problem = Problem.of([0, 0], [2, 2], [8, 8], fixed=[0, 4])
    with pytest.raises(NoPlanError, match=r"share the bytes \[4, 8\)"):
        solve_problem(problem)


def test_a_method_loads_when_it_is_used() -> None:
    code = (
        "import sys\n"
        "from memplan.solving.methods import solve_problem\n"
        "from memplan.core.problem import Problem\n"
        "assert not any(name.startswith('memplan.solving.b') for name in sys.modules)\n"
        "solve_problem(Problem.of([0], [1], [1]))\n"
        "assert 'memplan.solving.bestfit' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("source", [([0], [1]), 5, None, "x.csv", ([0],) * 4])
def test_what_is_no_problem_is_refused_by_what_it_is(source: object) -> None:
    with pytest.raises(UsageError, match="arrays \\(lower, upper, size\\), not a "):
        solve(source)  # type: ignore[arg-type]
