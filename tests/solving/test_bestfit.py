"""Best fit: exactly the paper's, whichever way it is computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan
from memplan.core.problem import Problem
from memplan.core.verify import verify
from memplan.solving.bestfit import best_fit, solve
from memplan.trace.importers.minimalloc import read_minimalloc
from tests.solving import reference
from tests.solving.known import Known, every_problem
from tests.strategies import problems


def offsets_of(*buffers: tuple[int, int, int], **options: int) -> list[int]:
    """Best fit's offsets for (lower, upper, size) rows."""
    lower, upper, size = zip(*buffers, strict=True)
    problem = Problem.of(lower, upper, size, **options)
    assert reference.best_fit(problem) == best_fit(problem).tolist()
    return best_fit(problem).tolist()


def test_the_longest_lifetime_goes_first() -> None:
    assert offsets_of((0, 2, 100), (0, 9, 1), (4, 9, 50)) == [1, 0, 1]


def test_equal_lifetimes_go_by_size_then_by_index() -> None:
    assert offsets_of((0, 4, 5), (0, 4, 7), (0, 4, 5)) == [7, 0, 12]


def test_the_leftmost_of_equally_low_lines_comes_first() -> None:
    # Lines [0, 2) and [2, 4) at 4. On the right one the last buffer would fit at once.
    assert offsets_of((0, 2, 4), (2, 4, 4), (1, 3, 3), (2, 4, 1)) == [0, 0, 4, 7]


def test_a_line_where_nothing_fits_is_lifted_to_its_lowest_neighbour() -> None:
    # At tick 4 nothing fits between the tower of 9 and the step of 2.
    assert offsets_of((0, 4, 9), (5, 8, 2), (4, 6, 3)) == [0, 0, 2]


def test_a_line_between_equal_neighbours_merges_with_both() -> None:
    # Joined with the left one only, it would take (2, 4) before the longer (3, 6).
    assert offsets_of((0, 4, 5), (5, 9, 5), (3, 6, 1), (2, 4, 1)) == [0, 0, 5, 6]


def test_equal_lines_side_by_side_stay_apart_until_a_lift() -> None:
    # On [0, 4) at height 4 the larger (1, 3) would go first; on [0, 2) it cannot.
    assert offsets_of((0, 2, 4), (2, 4, 4), (0, 2, 1), (1, 3, 3)) == [0, 0, 4, 5]


def test_one_alignment_rounds_the_sizes() -> None:
    assert offsets_of((0, 3, 60), (0, 2, 1), (0, 1, 1), alignment=64) == [0, 64, 128]


def test_alignments_that_differ_round_the_offsets() -> None:
    problem = Problem.of([0, 0, 0], [3, 2, 1], [5, 5, 5], alignment=[1, 8, 2])
    assert best_fit(problem).tolist() == [0, 8, 14]


def test_a_wrap_around_buffer_is_met_at_both_ends_of_the_clock() -> None:
    rows = ((6, 2, 10), (0, 3, 4), (5, 8, 4), (2, 6, 10))
    assert offsets_of(*rows, length=8) == [0, 10, 10, 0]


def test_a_clock_with_a_silent_moment_is_linear() -> None:
    """Wrapped at tick 5, where nothing is alive, the same buffers fit as unwrapped."""
    linear = Problem.of([0, 1, 3], [4, 3, 6], [10, 20, 30])
    wrapped = Problem.of([5, 6, 0], [1, 0, 3], [10, 20, 30], length=8)
    assert best_fit(wrapped).tolist() == best_fit(linear).tolist()


def test_a_buffer_that_is_always_alive() -> None:
    assert offsets_of((0, 4, 3), (2, 1, 5), (1, 2, 5), length=4) == [0, 3, 3]


def test_no_buffers_make_an_empty_plan() -> None:
    for length in (None, 7):
        plan = solve(Problem.of([], [], [], length=length))
        assert plan.peak == plan.lower_bound == 0
        assert plan.status == "optimal"
        assert len(plan.offsets) == 0


@settings(max_examples=100, deadline=None)
@given(problems(max_size=16))
def test_fast_and_plain_give_the_same_offsets(problem: Problem) -> None:
    assert best_fit(problem).tolist() == reference.best_fit(problem)


@settings(max_examples=15, deadline=None)
@given(problems(max_size=90))
def test_fast_and_plain_agree_on_larger_problems(problem: Problem) -> None:
    assert best_fit(problem).tolist() == reference.best_fit(problem)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_plans_verify_and_reach_the_bound(problem: Problem) -> None:
    plan = solve(problem)
    assert verify(plan) == []
    assert plan.peak >= plan.lower_bound == lower_bound(problem)
    assert plan.proved_optimal == (plan.peak == plan.lower_bound)


@settings(max_examples=50, deadline=None)
@given(problems(fixed=True))
def test_fixed_offsets_are_kept(problem: Problem) -> None:
    plan = solve(problem)
    assert verify(plan) == []
    kept = problem.fixed >= 0
    assert plan.offsets[kept].tolist() == problem.fixed[kept].tolist()
    assert plan.offsets.tolist() == reference.best_fit(problem)


@settings(max_examples=50, deadline=None)
@given(problems(alignment="none"))
def test_offsets_scale_with_the_sizes(problem: Problem) -> None:
    tripled = replace(problem, size=problem.size * 3)
    assert best_fit(tripled).tolist() == (best_fit(problem) * 3).tolist()


@settings(max_examples=50, deadline=None)
@given(problems(periodic=False))
def test_offsets_do_not_depend_on_when_the_clock_starts(problem: Problem) -> None:
    later = replace(problem, lower=problem.lower + 7, upper=problem.upper + 7)
    assert best_fit(later).tolist() == best_fit(problem).tolist()


@every_problem()
def test_known_peaks(known: Known) -> None:
    problem = read_minimalloc(known.path)
    plan = solve(problem)
    assert verify(plan) == []
    assert plan.peak == known.bestfit
    if len(problem) < 2000:
        assert plan.offsets.tolist() == reference.best_fit(problem)


@every_problem(but="S_1")
def test_problems_folded_onto_a_circle(known: Known) -> None:
    """A periodic clock shorter than the problem: many buffers reach over its end."""
    linear = read_minimalloc(known.path)
    length = int(linear.upper.max()) * 7 // 10
    lifetime = np.minimum(linear.upper - linear.lower, length - 1)
    lower = linear.lower % length
    upper = lower + lifetime
    upper -= np.where(upper > length, length, 0)
    problem = Problem.of(lower, upper, linear.size, length=length)
    assert problem.wraps.any()
    plan = Plan.of(problem, best_fit(problem), "bestfit")
    assert verify(plan) == []
    if len(problem) < 300:
        assert plan.offsets.tolist() == reference.best_fit(problem)
