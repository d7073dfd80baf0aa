"""Filling gaps around fixed buffers, within a capacity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.core.problem import FREE, Problem
from memplan.core.verify import verify_offsets
from memplan.errors import NoPlanError, UsageError
from memplan.solving.placing import ORDERS, place_around
from tests.solving import reference
from tests.strategies import problems

orders = st.sampled_from(ORDERS)
capacities = st.none() | st.integers(0, 200)


def test_a_buffer_takes_the_lowest_gap_that_holds_it() -> None:
    problem = Problem.of(
        [0, 0, 0, 0], [9, 9, 9, 5], [4, 4, 4, 6], fixed=[4, 13, 23, FREE]
    )
    # [0, 4) and [8, 13) are too small, [17, 23) is just enough.
    assert place_around(problem).tolist() == [4, 13, 23, 17]


def test_the_room_below_the_lowest_buffer_is_a_gap() -> None:
    problem = Problem.of([0, 0], [2, 2], [5, 7], fixed=[7, FREE])
    assert place_around(problem).tolist() == [7, 0]


def test_only_buffers_alive_at_the_same_time_are_in_the_way() -> None:
    problem = Problem.of([0, 4, 2], [4, 8, 4], [5, 5, 5], fixed=[0, 5, FREE])
    assert place_around(problem).tolist() == [0, 5, 5]


def test_a_gap_begins_at_a_multiple_of_the_alignment() -> None:
    problem = Problem.of(
        [0, 0, 0], [2, 2, 2], [5, 8, 8], alignment=[1, 1, 8], fixed=[0, 15, FREE]
    )
    assert place_around(problem).tolist() == [0, 15, 24]


def test_what_would_top_the_capacity_is_left_out_and_the_rest_goes_on() -> None:
    problem = Problem.of([0, 0, 0], [9, 8, 7], [6, 5, 4])
    assert place_around(problem, capacity=10).tolist() == [0, -1, 6]
    assert place_around(problem, capacity=9).tolist() == [0, -1, -1]
    assert place_around(problem, capacity=0).tolist() == [-1, -1, -1]
    assert place_around(problem, capacity=1 << 70).tolist() == [0, 6, 11]


def test_a_capacity_counts_bytes_used_not_their_padding() -> None:
    problem = Problem.of([0, 0], [2, 2], [60, 30], alignment=64)
    assert place_around(problem, capacity=94).tolist() == [0, 64]
    assert place_around(problem, capacity=93).tolist() == [0, -1]


def test_the_order_can_be_chosen() -> None:
    problem = Problem.of([0, 1], [9, 2], [1, 8])
    assert place_around(problem, order="lifetime").tolist() == [0, 1]
    assert place_around(problem, order="size").tolist() == [8, 0]


def test_wrap_around_buffers_are_met_at_both_ends() -> None:
    problem = Problem.of(
        [7, 0, 8, 3], [1, 2, 9, 6], [5, 4, 4, 3], fixed=[2, FREE, FREE, FREE], length=9
    )
    assert place_around(problem).tolist() == [2, 7, 7, 0]


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


@settings(max_examples=100, deadline=None)
@given(problems(), capacities, orders)
def test_fast_and_plain_agree(
    problem: Problem, capacity: int | None, order: str
) -> None:
    offsets = place_around(problem, capacity, order)
    assert offsets.tolist() == reference.fill_gaps(problem, capacity, order)


@settings(max_examples=80, deadline=None)
@given(problems(fixed=True), capacities, orders)
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


def test_a_tall_buffer_among_many_flat_ones_is_met() -> None:
    """It is not the last of its chunk, and the first gap lies above the others."""
    flat = range(70)
    problem = Problem.of(
        [0, 2, *[1 for _ in flat], 0],
        [1, 3, *[2 for _ in flat], 3],
        [500, 960, *[1 for _ in flat], 10],
        fixed=[0, 40, *flat, FREE],
    )
    assert place_around(problem)[-1] == 1000


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
