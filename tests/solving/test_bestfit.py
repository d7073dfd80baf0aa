"""Best fit: exactly the paper's, whichever way it is computed; by six priorities."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from puzzles import puzzle

from memplan.core.problem import Problem
from memplan.core.verify import verify, verify_offsets
from memplan.native import _dsa
from memplan.solving.bestfit import (
    best_fit,
    best_of_six,
    merits,
    ranked,
    section_lifetimes,
    solve,
)
from memplan.solving.methods import solve_problem
from memplan.solving.options import BEST, PRIORITIES, Options, Progress
from memplan.solving.placing import lifetimes, spans
from memplan.trace.importers.minimalloc import read_minimalloc
from tests.solving import reference
from tests.solving.known import Known, every_problem
from tests.strategies import examples, problems


@pytest.mark.parametrize(
    ("buffers", "options", "offsets"),
    [
        # The longest lifetime goes first; equal ones by size, then by index.
        ([(0, 2, 100), (0, 9, 1), (4, 9, 50)], {}, [1, 0, 1]),
        ([(0, 4, 5), (0, 4, 7), (0, 4, 5)], {}, [7, 0, 12]),
        # Lines [0, 2) and [2, 4) at 4: on the right one the last would fit at once.
        ([(0, 2, 4), (2, 4, 4), (1, 3, 3), (2, 4, 1)], {}, [0, 0, 4, 7]),
        # At tick 4 nothing fits between the tower of 9 and the step of 2.
        ([(0, 4, 9), (5, 8, 2), (4, 6, 3)], {}, [0, 0, 2]),
        # Lifted to the left one only, it would take (2, 4) before the longer (3, 6).
        ([(0, 4, 5), (5, 9, 5), (3, 6, 1), (2, 4, 1)], {}, [0, 0, 5, 6]),
        # On [0, 4) at height 4 the larger (1, 3) would go first; on [0, 2) it cannot.
        ([(0, 2, 4), (2, 4, 4), (0, 2, 1), (1, 3, 3)], {}, [0, 0, 4, 5]),
        # One alignment rounds sizes; several round offsets.
        ([(0, 3, 60), (0, 2, 1), (0, 1, 1)], {"alignment": 64}, [0, 64, 128]),
        ([(0, 3, 5), (0, 2, 5), (0, 1, 5)], {"alignment": [1, 8, 2]}, [0, 8, 14]),
        # A wrap-around buffer is met at both ends of the clock, or lives always.
        (
            [(6, 2, 10), (0, 3, 4), (5, 8, 4), (2, 6, 10)],
            {"length": 8},
            [0, 10, 10, 0],
        ),
        ([(0, 4, 3), (2, 1, 5), (1, 2, 5)], {"length": 4}, [0, 3, 3]),
    ],
)
def test_it_is_the_papers_best_fit(
    buffers: list[tuple[int, int, int]], options: dict[str, Any], offsets: list[int]
) -> None:
    problem = Problem.of(*zip(*buffers, strict=True), **options)
    assert best_fit(problem).tolist() == offsets == reference.best_fit(problem)


def test_no_buffers_make_an_empty_plan() -> None:
    for length in (None, 7):
        plan = solve(Problem.of([], [], [], length=length))
        assert plan.peak == plan.lower_bound == 0
        assert plan.status == "optimal"
        assert len(plan.offsets) == 0


@examples(60, problems(max_size=40))
def test_fast_and_plain_give_the_same_offsets(problem: Problem) -> None:
    assert best_fit(problem).tolist() == reference.best_fit(problem)


@examples(50, problems(fixed=True))
def test_fixed_offsets_are_kept(problem: Problem) -> None:
    plan = solve(problem)
    assert verify(plan) == []
    kept = problem.fixed >= 0
    assert plan.offsets[kept].tolist() == problem.fixed[kept].tolist()
    assert plan.offsets.tolist() == reference.best_fit(problem)


@every_problem
def test_known_peaks(known: Known) -> None:
    problem = read_minimalloc(known.path)
    plan = solve(problem)
    assert verify(plan) == []
    assert plan.peak == known.bestfit
    if len(problem) < 2000:
        assert plan.offsets.tolist() == reference.best_fit(problem)


# ---- six orders of priority, and the best of them


# None of the six orders reaches the lower bound.
HARD = puzzle(80)


@examples(50, problems())
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


@examples(50, problems(fixed=True))
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


# ---- the compiled decoder: any order of priority, again and again


def decoder_of(problem: Problem) -> _dsa.BestFit:
    start, end = spans(problem)
    return _dsa.BestFit(
        start, end, problem.padded, problem.alignment, problem.length or 0
    )


@examples(80, problems(), st.data())
def test_any_order_of_priority(problem: Problem, data: st.DataObject) -> None:
    """Two orders, one after the other, with one decoder."""
    decoder = decoder_of(problem)
    start, life = spans(problem)[0].tolist(), lifetimes(problem).tolist()
    for _ in range(2):
        order = data.draw(st.permutations(range(len(problem))))
        offsets = decoder.decode(np.array(order, dtype=np.int32))
        blocks = [
            reference.Block(
                i, start[i], life[i], int(problem.padded[i]), int(problem.alignment[i])
            )
            for i in order
        ]
        end = max((block.start + block.lifetime for block in blocks), default=0)
        left = 0 if problem.length else min((b.start for b in blocks), default=0)
        line = reference.Line(left, problem.length or end, 0)
        expected = reference.decode(blocks, [line], problem.length)
        assert offsets.tolist() == [expected[i] for i in range(len(problem))]
        peak = int((offsets + problem.size).max(initial=0))
        assert verify_offsets(problem, offsets, peak) == []


@examples(50, problems(), st.data())
def test_some_blocks_may_be_left_out(problem: Problem, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.sampled_from(range(len(problem))))) if problem else {}
    order = np.array(sorted(chosen), dtype=np.int32)
    offsets = decoder_of(problem).decode(order)
    assert set(np.flatnonzero(offsets >= 0).tolist()) == set(chosen)


def test_threads_may_share_a_decoder() -> None:
    rng = np.random.default_rng(0)
    lower = rng.integers(0, 2000, 2000)
    upper = lower + rng.integers(1, 200, 2000)
    size = rng.integers(1, 50, 2000)
    decoder = _dsa.BestFit(lower, upper, size)
    orders = [rng.permutation(2000).astype(np.int32) for _ in range(8)]
    alone = [decoder.decode(order).tolist() for order in orders]
    with ThreadPoolExecutor(4) as pool:
        together = [offsets.tolist() for offsets in pool.map(decoder.decode, orders)]
    assert together == alone


INT = np.array
ONE, TWO = INT([1]), INT([2])


def order(*blocks: int) -> np.ndarray:
    return np.array(blocks, dtype=np.int32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((INT([0, 1]), TWO, ONE), "differ in length"),
        ((INT([2]), TWO, ONE), "lower < upper"),
        ((INT([-1]), TWO, ONE), "0 <= lower"),
        ((INT([0]), TWO, INT([0])), "size > 0"),
        ((INT([0]), TWO, ONE, INT([0])), "alignment > 0"),
        ((INT([0]), TWO, ONE, INT([1, 1])), "differ in length"),
        ((INT([0]), TWO, ONE, None, -1), "period is negative"),
        ((INT([3]), INT([4]), ONE, None, 3), "lower < period"),
        ((INT([0]), INT([4]), ONE, None, 3), "upper - lower <= period"),
    ],
)
def test_blocks_that_cannot_be(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _dsa.BestFit(*arguments)  # type: ignore[arg-type]


def test_orders_that_cannot_be() -> None:
    linear = _dsa.BestFit(INT([0, 0]), INT([2, 2]), INT([1, 1]))
    for blocks, message in (((0, 2), "does not exist"), ((1, 1), "twice")):
        with pytest.raises(ValueError, match=message):
            linear.decode(order(*blocks))
    with pytest.raises(ValueError, match="does not exist"):
        linear.decode(order(-1))
    circle = _dsa.BestFit(INT([0, 3]), INT([2, 5]), INT([1, 1]), None, 4)
    assert circle.decode(order(0), order(1)).tolist() == [1, 0]
    for rest, stack in (((), (0, 1)), ((0, 1), ())):
        with pytest.raises(ValueError, match="alive across 0"):
            circle.decode(order(*rest), order(*stack))
    with pytest.raises(ValueError, match="twice"):
        circle.decode(order(0, 1), order(1))
