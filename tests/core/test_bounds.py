"""Lower bounds, held against counting tick by tick and against true optima."""

from __future__ import annotations

import pytest

from memplan.core.bounds import live_bytes, lower_bound
from memplan.core.problem import Problem
from tests.solving.exact_oracle import brute_force
from tests.strategies import examples, problems


def alive(problem: Problem, i: int, tick: int) -> bool:
    lower, upper = int(problem.lower[i]), int(problem.upper[i])
    if lower < upper:
        return lower <= tick < upper
    return tick >= lower or tick < upper


def live_at(problem: Problem, tick: int) -> int:
    """Padded bytes, but for the most padding that the topmost can do without."""
    unit = problem.granularity
    sizes = [
        int(problem.size[i]) for i in range(len(problem)) if alive(problem, i, tick)
    ]
    padding = [-size % unit for size in sizes]
    return sum(sizes) + sum(padding) - max(padding, default=0)


@examples(80, problems())
def test_live_bytes_tick_by_tick(problem: Problem) -> None:
    moments, live = (array.tolist() for array in live_bytes(problem))
    assert moments == sorted(set(moments))
    ends = {*problem.lower.tolist(), *problem.upper.tolist()}
    assert set(moments) == (ends if problem.length is None else ends | {0})
    for k, (moment, count) in enumerate(zip(moments, live, strict=True)):
        last = moments[k + 1] if k + 1 < len(moments) else problem.length or moment + 1
        for tick in range(moment, last):
            assert live_at(problem, tick) == count


@examples(80, problems(alignment="mixed"))
def test_the_bound_is_the_most_alive_at_once(problem: Problem) -> None:
    ticks = range(problem.length or int(problem.upper.max(initial=0)))
    most = max((live_at(problem, tick) for tick in ticks), default=0)
    assert lower_bound(problem) == most


@examples(60, problems(max_size=5))
def test_no_plan_does_better(problem: Problem) -> None:
    assert lower_bound(problem) <= brute_force(problem)


@examples(50, problems(fixed=True))
def test_fixed_buffers_raise_the_bound_to_their_top(problem: Problem) -> None:
    fixed = problem.fixed >= 0
    tops = (problem.fixed + problem.size)[fixed]
    assert lower_bound(problem) >= tops.max(initial=0)


@pytest.mark.parametrize(
    ("problem", "bound"),
    [
        (Problem.of([], [], []), 0),
        (Problem.of([], [], [], length=5), 0),
        # Freed and allocated at the same tick: never alive together.
        (Problem.of([0, 3], [3, 5], [8, 7]), 8),
        (Problem.of([0, 2], [3, 5], [8, 7]), 15),
        # Alive together at the end of the clock and at its beginning.
        (Problem.of([6, 7, 0], [1, 8, 2], [4, 2, 1], length=8), 6),
        (Problem.of([6, 0], [1, 2], [4, 3], length=8), 7),
        # Padding counts, but for the topmost's: at best that of the smaller.
        (Problem.of([0, 0], [1, 1], [1, 65], alignment=64), 129),
        (Problem.of([0, 0], [1, 1], [100, 100], alignment=64), 228),
        (Problem.of([0, 0], [1, 1], [128, 100], alignment=64), 228),
        # Of two moments with as many, the one with less padding to spare.
        (Problem.of([0, 0, 1, 1], [1, 1, 2, 2], [1, 65, 100, 50], alignment=64), 164),
        # An allocator that hands out whole blocks.
        (Problem.of([0, 0], [1, 1], [1, 65], alignment=64, rounding=64), 192),
        (Problem.of([0, 0], [1, 1], [1, 65], alignment=64, rounding=4), 132),
        # A fixed buffer's top; its neighbour may go below it.
        (Problem.of([0, 0], [1, 1], [6, 4], fixed=[-1, 100]), 104),
        (Problem.of([0, 0], [1, 1], [6, 4], alignment=8, fixed=[-1, 96]), 100),
    ],
)
def test_examples(problem: Problem, bound: int) -> None:
    assert lower_bound(problem) == bound


def test_offsets_are_sums_of_sizes() -> None:
    """Live bytes are multiples of the sizes' common divisor, and so is the bound."""
    problem = Problem.of([0, 1, 2], [2, 3, 4], [6, 10, 14])
    assert lower_bound(problem) == 24
    assert brute_force(problem) == 24
