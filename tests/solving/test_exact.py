"""Exact search finds the least peak, with every rule and without any of them."""

from __future__ import annotations

import numpy as np
import pytest
from exact_oracle import NEVER, brute_force, reference, stacked
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import problems

from memplan.core.bounds import lower_bound
from memplan.core.problem import Problem
from memplan.core.verify import verify_offsets
from memplan.errors import NoPlanError
from memplan.native import _dsa
from memplan.solving import exact
from memplan.solving.exact import ORDERS, RULES, Tuning
from memplan.solving.options import Options
from memplan.solving.placing import spans

QUIET = Options(threads=1)


def peak_of(problem: Problem, offsets: np.ndarray) -> int:
    """The peak of a plan that verifies."""
    peak = int((offsets + problem.size).max(initial=0))
    assert verify_offsets(problem, offsets, peak) == []
    return peak


def kernel(
    problem: Problem, capacity: int, without: list[str], orders: list[str]
) -> _dsa.ExactSearch:
    start, end = spans(problem)
    return _dsa.ExactSearch(
        start,
        end,
        problem.padded,
        problem.alignment,
        problem.fixed,
        capacity,
        orders,
        problem.length or 0,
        without,
        beyond=problem.slack,
    )


def answer(search: _dsa.ExactSearch, threads: int = 1) -> str:
    """In many short rounds, so that the search is left and resumed all the time."""
    return search.run(1 << 40, 3, threads, 60.0)


@settings(max_examples=250, deadline=None)
@given(problems(max_size=7, fixed=True), st.data())
def test_equal_to_brute_force(problem: Problem, data: st.DataObject) -> None:
    """From the worst plan there is, under each single ranking and set of rules."""
    least = brute_force(problem)
    for without in ((), *((rule,) for rule in RULES), RULES):
        orders = (data.draw(st.sampled_from(ORDERS)),)
        tuning = Tuning(without=without, orders=orders)
        found = exact.improve(problem, stacked(problem), options=QUIET, tuning=tuning)
        assert peak_of(problem, found.offsets) == least == found.lower_bound
        assert found.proved_optimal


@settings(max_examples=250, deadline=None)
@given(problems(max_size=7, fixed=True), st.sampled_from(ORDERS), st.data())
def test_a_decision_is_a_proof(
    problem: Problem, order: str, data: st.DataObject
) -> None:
    """One byte less than the least peak is refused by the search alone."""
    if not len(problem):
        return
    least = brute_force(problem)
    several = data.draw(st.lists(st.sampled_from(RULES), unique=True))
    for without in ([], several, *([rule] for rule in RULES)):
        search = kernel(problem, least, without, [order])
        assert answer(search) == "fits"
        assert peak_of(problem, search.offsets()) == least
        search.tighten(least - 1)
        assert answer(search) == "never"
        assert answer(kernel(problem, least - 1, without, [order])) == "never"


@pytest.mark.soak
@settings(max_examples=5000, deadline=None)
@given(problems(max_size=7, fixed=True))
def test_every_ranking_is_right_about_thousands(problem: Problem) -> None:
    if not len(problem):
        return
    least = brute_force(problem)
    for order in ORDERS:
        search = kernel(problem, least, [], [order])
        assert answer(search) == "fits"
        assert peak_of(problem, search.offsets()) == least
        assert answer(kernel(problem, least - 1, [], [order])) == "never"


@settings(max_examples=80, deadline=None)
@given(problems(max_size=7, fixed=True), st.sampled_from(ORDERS))
def test_tightening_goes_on_where_it_was(problem: Problem, order: str) -> None:
    if not len(problem):
        return
    peak = peak_of(problem, stacked(problem))
    search = kernel(problem, peak, [], [order, "WAT"])
    while answer(search) == "fits":
        peak = peak_of(problem, search.offsets())
        search.tighten(peak - 1)
    assert peak == brute_force(problem)


@settings(max_examples=80, deadline=None)
@given(problems(max_size=9, fixed=False), st.data())  # of 12 it may take minutes
def test_equal_to_the_reference(problem: Problem, data: st.DataObject) -> None:
    orders = tuple(data.draw(st.permutations(ORDERS))[:2])
    tuning = Tuning(orders=orders)
    found = exact.improve(problem, stacked(problem), options=QUIET, tuning=tuning)
    assert peak_of(problem, found.offsets) == reference(problem)
    assert found.proved_optimal


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.booleans(), st.sampled_from(ORDERS))
def test_what_is_forced_is_so_on_long_clocks(
    seed: int, circle: bool, order: str
) -> None:
    """In dozens of sections, which that rule looks at by blocks."""
    rng = np.random.default_rng(seed)
    n, ticks = 18, 80
    lower = rng.integers(0, ticks, n)
    life = rng.choice([3, 12, 30], n)
    upper = (lower + life) % ticks if circle else lower + life
    upper = np.where(upper == 0, ticks, upper)
    length = ticks if circle else None
    problem = Problem.of(lower, upper, rng.integers(1, 9, n), length=length)
    peaks = []
    for without in ((), ("forced",)):
        tuning = Tuning(without=without, orders=(order,))
        found = exact.improve(problem, stacked(problem), options=QUIET, tuning=tuning)
        assert found.proved_optimal
        peaks.append(peak_of(problem, found.offsets))
    assert peaks[0] == peaks[1]


@settings(max_examples=50, deadline=None)
@given(problems(max_size=10, fixed=True))
def test_the_method_proves_small_problems(problem: Problem) -> None:
    plan = exact.solve(problem, QUIET)
    assert plan.status == "optimal"
    assert plan.lower_bound == plan.peak == reference(problem)
    assert plan.provenance.method == "exact"


def test_a_proof_above_the_live_bytes() -> None:
    """Three sizes that only fit in a stack with a hole: the bound alone cannot tell."""
    problem = Problem.of([0, 1, 0, 2, 0], [2, 3, 1, 3, 1], [2, 2, 1, 1, 1])
    least = brute_force(problem)
    plan = exact.solve(problem, QUIET)
    assert (plan.peak, plan.status) == (least, "optimal")


def test_sizes_beyond_32_bits() -> None:
    big = (1 << 38) - 1
    problem = Problem.of(
        [0, 1, 0, 2, 3], [2, 4, 1, 3, 5], [big, big - 2, 7, 5, big // 3]
    )
    found = exact.improve(problem, stacked(problem), options=QUIET)
    assert peak_of(problem, found.offsets) == brute_force(problem)
    assert found.proved_optimal


def test_too_large_to_search() -> None:
    """More units than the search counts: what is known stays known."""
    big = (1 << 44) - 1
    problem = Problem.of([0, 1, 0], [2, 4, 1], [big, big - 2, 7])
    found = exact.improve(problem, stacked(problem), options=QUIET)
    assert found.too_large and not found.proved_optimal and found.nodes == 0
    assert found.offsets.tolist() == stacked(problem).tolist()
    assert found.lower_bound == lower_bound(problem)


def test_fixed_offsets_that_collide_leave_no_plan() -> None:
    problem = Problem.of([0, 0], [2, 2], [4, 4], fixed=[0, 2])
    assert brute_force(problem) == NEVER
    with pytest.raises(NoPlanError, match="fixed offsets"):
        exact.solve(problem)
    assert answer(kernel(problem, 100, [], ["WAT"])) == "never"


def test_nothing_to_pack() -> None:
    problem = Problem.of([], [], [])
    plan = exact.solve(problem)
    assert (plan.peak, plan.status, len(plan.offsets)) == (0, "optimal", 0)


def test_a_wrap_around_ring() -> None:
    """Five arcs of two fifths each: two at a time, but the ring is odd."""
    problem = Problem.of([0, 1, 2, 3, 4], [2, 3, 4, 5, 1], [1] * 5, length=5)
    assert lower_bound(problem) == 2
    plan = exact.solve(problem, QUIET)
    assert (plan.peak, plan.lower_bound, plan.status) == (3, 3, "optimal")


ONE = np.array([1], dtype=np.int64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"orders": []}, "no orders"),
        ({"orders": ["X"]}, "letters"),
        ({"orders": ["R"]}, "number"),
        ({"orders": ["R1x"]}, "number"),
        ({"without": ["luck"]}, "no rule"),
        ({"capacity": -1}, "0 <= capacity"),
        ({"capacity": 1 << 43}, "capacity < 2"),
        ({"size": 0 * ONE}, "size"),
        ({"fixed": -2 * ONE}, "fixed"),
        ({"upper": 0 * ONE}, "lower < upper"),
        ({"alignment": 0 * ONE}, "alignment > 0"),
        ({"period": -1}, "period"),
        ({"lower": np.array([0, 0])}, "differ in length"),
    ],
)
def test_searches_that_cannot_be(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "lower": 0 * ONE,
        "upper": ONE,
        "size": ONE,
        "alignment": ONE,
        "fixed": -ONE,
        "capacity": 1,
        "orders": ["WAT"],
    }
    assert _dsa.ExactSearch(**arguments).run(1, 1, 1, 1.0) == "fits"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        _dsa.ExactSearch(**arguments | change)  # type: ignore[arg-type]
