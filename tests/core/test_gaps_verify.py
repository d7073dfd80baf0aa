"""The verifier and the lower bound on problems with gaps, held against every byte."""

from __future__ import annotations

import numpy as np
import pytest

from memplan.core.bounds import live_bytes, lower_bound
from memplan.core.plan import Plan, Requests, Warmup
from memplan.core.problem import Gaps, Problem
from memplan.core.verify import Failure, verify, verify_offsets
from tests.gap_samples import (
    colliding,
    gapped,
    least_peak,
    plainly_placed,
    random_gapped,
    window,
)
from tests.plans import changed
from tests.strategies import examples

INSTANCES = 3000


def test_it_agrees_with_a_check_of_every_byte() -> None:
    rng = np.random.default_rng(31)
    sound = gaps = 0
    for k in range(INSTANCES):
        problem = random_gapped(rng)
        offsets = plainly_placed(problem, rng.permutation(len(problem)))
        capacity = int((offsets + problem.size).max())
        if k % 2:
            for i in rng.integers(0, len(problem), 2).tolist():
                moved = int(rng.choice([0, *offsets, offsets[i] + 1, offsets[i] + 3]))
                offsets[i] = moved // problem.alignment[i] * problem.alignment[i]
        found = verify_offsets(problem, offsets, capacity)
        pairs = colliding(problem, offsets)
        overlaps = {v.buffers for v in found if v.failure is Failure.OVERLAP}
        assert overlaps <= pairs
        assert bool(overlaps) == bool(pairs)
        outside = {v.buffers for v in found if v.failure is not Failure.OVERLAP}
        beyond = np.flatnonzero(offsets + problem.size > capacity).tolist()
        assert outside == {(problem.label(i),) for i in beyond}
        sound += not found
        gaps += problem.gaps is not None
    assert gaps > INSTANCES * 0.8
    assert INSTANCES * 0.5 < sound < INSTANCES * 0.8  # both kinds, in numbers


def test_two_in_each_others_gaps_share_bytes_and_a_tick_more_is_found() -> None:
    problem = Problem.of([0, 3], [9, 6], [8, 8], gaps=Gaps.of([0], [3], [6]))
    assert verify_offsets(problem, np.array([0, 0]), 8) == []
    for lower, upper in ((2, 6), (3, 7)):
        late = Problem.of([0, lower], [9, upper], [8, 8], gaps=problem.gaps)
        tick = 2 if lower == 2 else 6
        assert [v.message for v in verify_offsets(late, np.array([0, 4]), 12)] == [
            f"buffers 0 and 1 are both alive at tick {tick} and share the bytes [4, 8)"
        ]


def test_a_window_still_in_use_is_respected_to_the_byte() -> None:
    gaps = Gaps.of([0], [3], [6], [2], [5])
    problem = Problem.of([0, 3, 3], [9, 6, 6], [8, 2, 3], gaps=gaps)
    assert verify_offsets(problem, np.array([0, 0, 5]), 8) == []
    assert len(verify_offsets(problem, np.array([0, 1, 5]), 8)) == 1
    assert len(verify_offsets(problem, np.array([0, 0, 4]), 8)) == 1


def test_a_top_that_is_never_used_must_lie_in_the_arena_too() -> None:
    gaps = Gaps.of([0], [0], [9], [0], [2])
    found = verify_offsets(Problem.of([0], [9], [8], gaps=gaps), np.array([0]), 7)
    assert [v.failure for v in found] == [Failure.OUTSIDE]


@pytest.mark.parametrize(("ends", "sound"), [(7, True), (8, False)])
def test_gaps_count_in_the_warm_up_and_in_the_step_after_it(
    ends: int, sound: bool
) -> None:
    """On the warm-up's clock the step begins at 5, and its gap is [6, 7)."""
    hot = Problem.of([0], [4], [8], gaps=Gaps.of([0], [1], [2]))
    before = Problem.of([0], [ends], [8], gaps=Gaps.of([0], [5], [6]))
    requests = Requests((0,), before.size, np.array([0]))
    plan = Plan.of(hot, np.array([0]), "bestfit")
    plan = changed(plan, warmup=Warmup(before, np.array([0]), requests, ticks=5))
    assert (verify(plan) == []) == sound


def needed(problem: Problem, tick: int) -> int:
    """Units whose first byte is in use in a tick, but for what the topmost leaves free
    at best; or bytes in use, if more."""
    unit = problem.granularity
    windows = [window(problem, i, tick) for i in range(len(problem))]
    firsts = [sum(byte % unit == 0 for byte in range(b, e)) for b, e in windows]
    counted = zip(firsts, windows, strict=True)
    spare = max((-e % unit for count, (b, e) in counted if count), default=0)
    return max(sum(firsts) * unit - spare, sum(end - begin for begin, end in windows))


@examples(80, gapped())
def test_live_bytes_tick_by_tick(problem: Problem) -> None:
    if problem.gaps is None:
        return
    moments, live = (array.tolist() for array in live_bytes(problem))
    assert moments == sorted(set(moments))
    ends = {*problem.lower.tolist(), *problem.upper.tolist()}
    assert ends <= set(moments)
    edges = zip(moments, [*moments[1:], moments[-1] + 1], strict=True)
    for (moment, last), count in zip(edges, live, strict=True):
        assert all(needed(problem, tick) == count for tick in range(moment, last))


def test_no_plan_does_better_than_the_bound() -> None:
    rng = np.random.default_rng(32)
    met = 0
    for k in range(1000):
        problem = random_gapped(rng, most=3, largest=6, fixed=k % 4 == 0)
        best = least_peak(problem)
        assert lower_bound(problem) <= best
        met += lower_bound(problem) == best
    assert met > 800


def test_a_window_in_the_padding_of_another_does_not_count_twice() -> None:
    """64 bytes do, though the padded size and the window make 127."""
    gaps = Gaps.of([1], [0], [4], [1], [64])
    problem = Problem.of([0, 0], [4, 9], [1, 64], alignment=64, gaps=gaps)
    assert verify_offsets(problem, np.array([0, 0]), 64) == []
    assert lower_bound(problem) == 64


@pytest.mark.parametrize(
    ("window", "bound"), [((0, 0), 10), ((0, 3), 12), ((4, 8), 13), ((0, 10), 19)]
)
def test_the_bound_counts_what_is_used(window: tuple[int, int], bound: int) -> None:
    """Never less than the largest buffer; no lifting to common divisors."""
    gaps = Gaps.of([0], [3], [6], *([value] for value in window))
    assert lower_bound(Problem.of([0, 3], [9, 6], [10, 9], gaps=gaps)) == bound
    even = Problem.of([0, 3], [9, 6], [10, 10], gaps=Gaps.of([0], [3], [6], [0], [3]))
    assert lower_bound(even) == 13


def test_a_buffer_that_is_never_used_still_needs_its_room() -> None:
    problem = Problem.of([2], [9], [8], gaps=Gaps.of([0], [2], [9]))
    moments, live = live_bytes(problem)
    assert (moments.tolist(), live.tolist()) == ([2, 9], [0, 0])
    assert lower_bound(problem) == 8
    assert verify(Plan.of(problem, np.array([0]), "bestfit")) == []
