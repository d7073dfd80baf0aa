"""The registry of methods, their options, and what every one of them owes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from exact_oracle import brute_force

from memplan.core.problem import Problem
from memplan.core.verify import verify, verify_offsets
from memplan.errors import NoPlanError, UsageError
from memplan.solving.bestfit import best_of_six
from memplan.solving.from_trace import solve_trace
from memplan.solving.methods import METHOD_NAMES, solve_problem
from memplan.solving.options import MAX_SEED, Options
from memplan.solving.parts import take_apart
from memplan.solving.solve import solve
from tests.programs import Made, trace_of
from tests.strategies import examples, problems


@pytest.mark.parametrize("name", METHOD_NAMES)
@examples(30, problem=problems())
def test_every_method_makes_plans_that_verify(name: str, problem: Problem) -> None:
    limits = Options(time_limit=2.0, iterations=500, max_nodes=20_000)
    plan = solve_problem(problem, name, limits)
    assert plan.provenance.method == name
    assert plan.provenance.seconds > 0
    assert verify(plan) == []
    assert plan.peak >= plan.lower_bound


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match="no method 'magic'; the methods are auto, bestfit"
    ):
        solve_problem(Problem.of([0], [1], [1]), "magic")


def test_colliding_fixed_offsets_have_no_plan() -> None:
    problem = Problem.of([0, 0], [2, 2], [8, 8], fixed=[0, 4])
    with pytest.raises(NoPlanError, match=r"share the bytes \[4, 8\)"):
        solve_problem(problem)


@pytest.mark.parametrize("source", [([0], [1]), ([0],) * 4])
def test_arrays_are_three(source: object) -> None:
    with pytest.raises(UsageError, match="arrays \\(lower, upper, size\\), not a "):
        solve(source)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", [5, None, b"x.csv"])
def test_what_is_no_problem_is_refused_by_what_it_is(source: object) -> None:
    with pytest.raises(TypeError, match=r"arrays \(lower, upper, size\), not \w+$"):
        solve(source)  # type: ignore[arg-type]


# ---- what may be asked of a method, and what is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time_limit": -1.0}, "time limit of -1.0 seconds"),
        ({"time_limit": math.nan}, "time limit of nan seconds"),
        ({"time_limit": math.inf}, "time limit of inf seconds"),
        ({"capacity": -1}, "capacity is -1, and must be at least 0"),
        ({"threads": 0}, "threads is 0, and must be at least 1"),
        ({"iterations": -5}, "iterations is -5"),
        ({"max_nodes": -5}, "max_nodes is -5"),
        ({"seed": -1}, "seed -1 is not from 0"),
        ({"seed": MAX_SEED + 1}, "is not from 0"),
        ({"mip_solver": "abacus"}, "no solver 'abacus'; use one of cbc, highs"),
        ({"priority": "age"}, "no priority 'age'; use one of lifetime, lifetime-"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Options(**arguments)  # type: ignore[arg-type]


def test_options_come_at_once_or_one_by_one() -> None:
    arrays = ([0, 0], [1, 1], [8, 8])
    one, other = solve(arrays, seed=3), solve(arrays, options=Options(seed=3))
    assert one.provenance.seed == other.provenance.seed == 3
    with pytest.raises(UsageError, match="either options, or"):
        solve(arrays, options=Options(), seed=3)


# ---- plans of recorded programs: the warm-up around the hot steps


def test_the_warm_up_is_placed_in_the_order_that_leaves_out_less() -> None:
    """By lifetime neither of its buffers finds a place, and by size both do."""
    before = (Made(128, 1), Made(64, 1))
    hot = (Made(128, 2), Made(192, 0))
    plan = solve_trace(trace_of([before, *[hot] * 4]), "bestfit")
    assert plan.warmup is not None
    assert plan.warmup.requests.planned.all()
    assert verify(plan) == []


# ---- problems taken apart have the least peak of the whole


def test_what_always_lives_goes_to_the_bottom_and_silence_cuts() -> None:
    problem = Problem.of([0, 0, 3, 5, 5], [9, 3, 5, 9, 7], [4, 1, 2, 3, 8])
    offsets, parts = take_apart(problem)
    # Alone in its stretch of time, a buffer lies at the bottom of it.
    assert offsets.tolist() == [0, 4, 4, 4, 7]
    assert parts == []


def test_fixed_offsets_and_mixed_alignments_stay_whole() -> None:
    for options in ({"fixed": [4, -1]}, {"alignment": [1, 4]}):
        problem = Problem.of([0, 1], [1, 2], [4, 4], **options)
        offsets, parts = take_apart(problem)
        assert offsets.tolist() == [-1, -1]
        assert [part.problem for part in parts] == [problem]


@examples(100, problems(max_size=6))
def test_the_parts_least_peaks_make_that_of_the_whole(problem: Problem) -> None:
    offsets, parts = take_apart(problem)
    placed = np.flatnonzero(offsets >= 0)
    members = np.concatenate([placed, *(part.members for part in parts)])
    assert sorted(members.tolist()) == list(range(len(problem)))
    tops = [int((offsets + problem.padded)[placed].max(initial=0))]
    tops += [part.floor + brute_force(part.problem) for part in parts]
    assert max(tops) == brute_force(problem)
    for part in parts:
        offsets[part.members] = part.floor + best_of_six(part.problem)[0]
    peak = int((offsets + problem.padded).max(initial=0))
    assert verify_offsets(problem, offsets, peak) == []
