"""Buffers placed one by one: into gaps, within a capacity, around gaps in lifespans."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import strategies as st

from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan
from memplan.core.problem import FREE, Gaps, Problem, pieces
from memplan.core.verify import verify, verify_offsets
from memplan.errors import NoPlanError, UsageError
from memplan.native import _dsa
from memplan.solving import exact
from memplan.solving.anytime import Ejection
from memplan.solving.methods import METHODS, solve_problem
from memplan.solving.options import DEFAULTS, Options
from memplan.solving.parts import take_apart
from memplan.solving.placing import ORDERS, place_around, place_pieces
from memplan.solving.solve import solve
from tests.gap_samples import gapped, least_peak, plainly_placed, random_gapped
from tests.solving import reference
from tests.strategies import examples, problems

orders = st.sampled_from(ORDERS)
capacities = st.none() | st.integers(0, 200)


def test_fixed_buffers_that_collide_have_no_plan() -> None:
    problem = Problem.of(
        [0, 0, 3], [5, 9, 9], [8, 8, 8], fixed=[FREE, 4, 10], labels=["a", "b", "c"]
    )
    message = r"b and c are both alive at tick 3 and share the bytes \[10, 12\)"
    with pytest.raises(NoPlanError, match=message):
        place_around(problem)


def test_options_that_make_no_sense() -> None:
    problem = Problem.of([0], [1], [1])
    with pytest.raises(UsageError, match="no order 'area'; the orders are lifetime, s"):
        place_around(problem, order="area")
    with pytest.raises(UsageError, match="capacity of -1 bytes is negative"):
        place_around(problem, capacity=-1)


@examples(80, problems(fixed=True), capacities, orders)
def test_what_is_placed_is_sound(
    problem: Problem, capacity: int | None, order: str
) -> None:
    offsets = place_around(problem, capacity, order)
    assert offsets.tolist() == reference.fill_gaps(problem, capacity, order)
    placed = offsets >= 0
    tops = (offsets + problem.size)[placed]
    part = Problem.of(
        problem.lower[placed],
        problem.upper[placed],
        problem.size[placed],
        alignment=problem.alignment[placed],
        fixed=problem.fixed[placed],
        length=problem.length,
    )
    assert verify_offsets(part, offsets[placed], int(tops.max(initial=0))) == []
    free = problem.fixed[placed] == FREE
    if capacity is None:
        assert placed.all()
    else:
        assert (tops[free] <= capacity).all()


@pytest.mark.parametrize("length", [None, 4000])
@pytest.mark.parametrize("order", ORDERS)
def test_many_buffers(order: str, length: int | None) -> None:
    """Enough for several levels of buckets, and chunks that split."""
    rng = np.random.default_rng(1)
    lower = rng.integers(0, 4000, 1500)
    lifetime = np.minimum(rng.geometric(1 / 40, 1500) * rng.integers(1, 9, 1500), 3999)
    upper = lower + lifetime
    if length is not None:
        upper -= np.where(upper > length, length, 0)
    size = rng.integers(1, 100, 1500)
    problem = Problem.of(lower, upper, size, alignment=4, length=length)
    offsets = place_around(problem, order=order)
    assert offsets.tolist() == reference.fill_gaps(problem, order=order)


# ---- packing around gaps in lifespans, and who cannot


TAKE_GAPS = [name for name, method in METHODS.items() if method.gaps]
OTHERS = ("ejection", "exact")
SHARED = Problem.of([0, 3], [9, 6], [100, 80], gaps=Gaps.of([0], [3], [6]))


@pytest.mark.parametrize("times", [200, pytest.param(10000, marks=pytest.mark.soak)])
def test_it_places_as_the_plain_reference_does(times: int) -> None:
    rng = np.random.default_rng(33)
    for k in range(times):
        problem = random_gapped(rng, most=10, fixed=k % 3 == 0)
        order = rng.permutation(len(problem)).astype(np.int32)
        offsets = place_pieces(problem, order)
        assert offsets.tolist() == plainly_placed(problem, order).tolist()
        assert verify(Plan.of(problem, offsets, "x")) == []


@pytest.mark.parametrize("times", [150, pytest.param(6000, marks=pytest.mark.soak)])
def test_the_search_packs_an_order_as_the_plain_reference_does(times: int) -> None:
    rng = np.random.default_rng(37)
    for k in range(times):
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
@examples(40, problem=gapped(fixed=True))
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
    for name, way in (
        ("exact", lambda: exact.improve(SHARED, offsets)),
        ("ejection", lambda: Ejection(SHARED, DEFAULTS, offsets)),
        ("place_around", lambda: place_around(SHARED)),
    ):
        with pytest.raises(UsageError, match=f"^{name} does not support gaps in lif"):
            way()


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
