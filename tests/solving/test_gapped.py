"""Packing around gaps in lifespans, and who cannot."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan
from memplan.core.problem import FREE, Gaps, Problem, pieces
from memplan.core.verify import verify
from memplan.errors import InfeasibleError, NoPlanError, UsageError
from memplan.native import _dsa
from memplan.solving import exact
from memplan.solving.anytime import Ejection
from memplan.solving.bestfit import best_fit
from memplan.solving.methods import METHODS, solve_problem
from memplan.solving.options import DEFAULTS, Options
from memplan.solving.parts import take_apart
from memplan.solving.placing import place_around, place_pieces
from memplan.solving.solve import solve
from tests.gap_samples import gapped, least_peak, plainly_placed, random_gapped
from tests.strategies import problems

TAKE_GAPS = [name for name, method in METHODS.items() if method.gaps]
OTHERS = ("ejection", "exact")
SHARED = Problem.of([0, 3], [9, 6], [100, 80], gaps=Gaps.of([0], [3], [6]))


def test_it_places_as_the_plain_reference_does() -> None:
    rng = np.random.default_rng(33)
    for k in range(2500):
        problem = random_gapped(rng, most=10, fixed=k % 3 == 0)
        order = rng.permutation(len(problem)).astype(np.int32)
        offsets = place_pieces(problem, order)
        assert offsets.tolist() == plainly_placed(problem, order).tolist()
        assert verify(Plan.of(problem, offsets, "x")) == []


def test_the_search_packs_an_order_as_the_plain_reference_does() -> None:
    rng = np.random.default_rng(37)
    for k in range(1500):
        problem = random_gapped(rng, most=10, fixed=k % 3 == 0)
        order = rng.permutation(np.flatnonzero(problem.fixed == FREE))
        priority = np.zeros((1, len(problem)))
        priority[0, order] = -np.arange(len(order))
        kernel = _dsa.Search(
            problem.lower,
            problem.upper,
            problem.padded,
            priority,
            0,
            problem.alignment,
            problem.fixed,
            pieces=pieces(problem).table,
        )
        kernel.advance(0, 1, math.inf, math.inf, 1)
        if not len(order):
            continue
        assert kernel.offsets.tolist() == plainly_placed(problem, order).tolist()


def test_the_search_comes_to_the_least_peak() -> None:
    rng = np.random.default_rng(38)
    found = least = begun = 0
    for _ in range(150):
        problem = random_gapped(rng, most=4, largest=6)
        plan = solve_problem(problem, "search", Options(iterations=300))
        best = least_peak(problem)
        assert verify(plan) == []
        assert plan.peak >= best
        least += best
        found += plan.peak
        begun += solve_problem(problem, "bestfit").peak
    assert found - least <= 0.25 * (begun - least)


def test_a_buffer_in_anothers_gap_shares_its_bytes() -> None:
    plan = solve_problem(SHARED)
    assert (plan.peak, plan.status) == (100, "optimal")
    assert plan.offsets.tolist() == [0, 0]
    late = Problem.of([0, 3], [9, 7], [100, 80], gaps=SHARED.gaps)
    assert solve_problem(late).peak == 180


def test_a_buffer_lies_beside_the_window_still_in_use() -> None:
    gaps = Gaps.of([0], [3], [6], [10], [30])
    problem = Problem.of([0, 3, 3], [9, 6, 6], [100, 70, 10], gaps=gaps)
    plan = solve_problem(problem)
    assert plan.offsets.tolist() == [0, 30, 0]
    assert (plan.peak, plan.status) == (100, "optimal")


def test_two_that_interlock_in_each_others_gaps() -> None:
    gaps = Gaps.of([0, 0, 1, 1], [2, 6, 0, 4], [4, 8, 2, 6])
    problem = Problem.of([0, 0], [8, 8], [16, 16], gaps=gaps)
    assert solve_problem(problem).peak == 16


def test_fixed_offsets_are_obstacles_except_in_their_gaps() -> None:
    fixed, gaps = [8, 8, FREE], Gaps.of([0], [3], [6])
    problem = Problem.of([0, 3, 0], [9, 6, 9], [8, 8, 8], fixed=fixed, gaps=gaps)
    plan = solve_problem(problem)
    assert plan.offsets.tolist() == [8, 8, 0]
    assert verify(plan) == []
    late = Problem.of([0, 3, 0], [9, 7, 9], [8, 8, 8], fixed=fixed, gaps=gaps)
    with pytest.raises(NoPlanError, match=r"0 and 1 are both alive at tick 6 .*fixed"):
        solve_problem(late)


@pytest.mark.parametrize("name", TAKE_GAPS)
@settings(max_examples=40, deadline=None)
@given(problem=gapped(fixed=True))
def test_every_method_that_takes_gaps_makes_plans_that_verify(
    name: str, problem: Problem
) -> None:
    plan = solve_problem(problem, name, Options(iterations=50, max_nodes=2000))
    assert plan.provenance.method == name
    assert verify(plan) == []
    assert plan.peak >= plan.lower_bound >= lower_bound(problem)


@pytest.mark.parametrize(
    "seed, cases", [(34, 300), pytest.param(35, 5000, marks=pytest.mark.soak)]
)
def test_what_auto_calls_optimal_is(seed: int, cases: int) -> None:
    rng = np.random.default_rng(seed)
    optimal = 0
    for _ in range(cases):
        problem = random_gapped(rng, most=3, largest=6)
        if problem.gaps is None:
            continue
        plan = solve_problem(problem)
        best = least_peak(problem)
        assert plan.lower_bound <= best <= plan.peak
        assert not plan.proved_optimal or plan.peak == best
        optimal += plan.proved_optimal
    assert optimal > cases // 3


def test_auto_says_how_it_searched() -> None:
    rng = np.random.default_rng(35)
    notes = []
    for _ in range(300):
        plan = solve_problem(random_gapped(rng))
        if plan.problem.gaps is None or plan.peak == plan.lower_bound:
            continue
        assert plan.status == "feasible"
        assert "search with the gaps" in plan.provenance.note
        notes.append(plan.provenance.note)
    assert any("without the gaps" in note for note in notes)
    assert any("without the gaps" not in note for note in notes)


@settings(max_examples=50, deadline=None)
@given(problems(periodic=False, fixed=True))
def test_without_gaps_it_places_as_place_around(problem: Problem) -> None:
    order = np.arange(len(problem), dtype=np.int32)
    expected = place_around(problem, order=order)
    assert place_pieces(problem, order).tolist() == expected.tolist()
    everyone = np.arange(len(problem))
    full = Gaps.of(everyone, problem.lower, problem.upper, 0, problem.size)
    same = Problem.of(
        problem.lower,
        problem.upper,
        problem.size,
        alignment=problem.alignment,
        fixed=problem.fixed,
        gaps=full,
    )
    assert place_pieces(same, order).tolist() == expected.tolist()


def test_gaps_never_make_it_worse() -> None:
    """Than packing as if there were none; and mostly they are of use."""
    rng = np.random.default_rng(36)
    better = 0
    for _ in range(500):
        problem = random_gapped(rng, most=14)
        order = rng.permutation(len(problem)).astype(np.int32)
        whole = replace(problem, gaps=None)
        peak = Plan.of(problem, best_fit(problem, order), "x").peak
        blind = Plan.of(whole, best_fit(whole, order), "x").peak
        assert peak <= blind
        better += peak < blind
    assert better > 250


@pytest.mark.parametrize("name", OTHERS)
def test_a_method_without_gaps_says_so_before_any_work(name: str) -> None:
    message = rf"^{name} does not support gaps .* 1 of 2 .* search or bestfit"
    for options in (DEFAULTS, Options(capacity=1), Options(capacity=1000)):
        with pytest.raises(UsageError, match=message):
            solve_problem(SHARED, name, options)
    with pytest.raises(UsageError, match=message):
        METHODS[name].load()(SHARED, DEFAULTS)


def test_every_way_in_is_shut_to_gaps() -> None:
    assert set(METHODS) - set(TAKE_GAPS) == set(OTHERS)
    offsets = np.array([0, 100])
    with pytest.raises(UsageError, match="exact takes"):
        exact.improve(SHARED, offsets)
    with pytest.raises(UsageError, match="ejection takes"):
        Ejection(SHARED, DEFAULTS, offsets)
    with pytest.raises(UsageError, match="place_around takes"):
        place_around(SHARED)


def test_the_decision_question() -> None:
    assert solve_problem(SHARED, options=Options(capacity=100)).peak == 100
    with pytest.raises(InfeasibleError, match="at least 100 bytes"):
        solve_problem(SHARED, options=Options(capacity=99))


def test_another_alignment_keeps_the_gaps() -> None:
    plan = solve(SHARED, alignment=64)
    assert plan.problem.gaps is SHARED.gaps
    assert plan.peak == 100


def test_problems_with_gaps_stay_whole_and_their_members_keep_them() -> None:
    offsets, parts = take_apart(SHARED)
    assert offsets.tolist() == [-1, -1]
    assert [part.problem for part in parts] == [SHARED]
    one = SHARED.take(np.array([0])).gaps
    assert one is not None
    assert one.by_buffer(1) == [[(3, 6)]]
    assert SHARED.take(np.array([1])).gaps is None
