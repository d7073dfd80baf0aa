"""The verifier and the lower bound, held against checks of every pair and byte."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import strategies as st

from memplan.arrays import Int64Array
from memplan.core.bounds import live_bytes, lower_bound
from memplan.core.plan import Plan, Requests, Stated, Warmup
from memplan.core.problem import Gaps, Problem
from memplan.core.verify import Failure, verify, verify_offsets
from memplan.solving.bestfit import best_fit
from tests.gap_samples import colliding as colliding_bytes
from tests.gap_samples import (
    gapped,
    least_peak,
    plainly_placed,
    random_gapped,
    window,
)
from tests.plans import changed
from tests.solving.exact_oracle import brute_force
from tests.strategies import examples, problems


def ticks_of(problem: Problem) -> list[int]:
    """For every buffer, the ticks it is alive in, as the bits of a number."""
    masks = []
    for lower, upper in zip(
        problem.lower.tolist(), problem.upper.tolist(), strict=True
    ):
        before = (1 << upper) - (1 << lower) if lower < upper else (1 << upper) - 1
        if lower > upper:
            before |= (1 << (problem.length or 0)) - (1 << lower)
        masks.append(before)
    return masks


def colliding(problem: Problem, offsets: Int64Array) -> set[tuple[str, str]]:
    """All pairs alive at the same time that share a byte, in quadratic time."""
    masks, start = ticks_of(problem), offsets.tolist()
    end = (offsets + problem.size).tolist()
    return {
        (problem.label(i), problem.label(j))
        for i, j in combinations(range(len(problem)), 2)
        if masks[i] & masks[j] and start[i] < end[j] and start[j] < end[i]
    }


def out_of_place(
    problem: Problem, offsets: Int64Array, capacity: int
) -> set[tuple[Failure, str]]:
    """What is wrong with single buffers."""
    wrong = {
        Failure.OUTSIDE: (offsets < 0) | (offsets + problem.size > capacity),
        Failure.MISALIGNED: offsets % problem.alignment != 0,
        Failure.MOVED: (problem.fixed >= 0) & (offsets != problem.fixed),
    }
    return {
        (failure, problem.label(i))
        for failure, where in wrong.items()
        for i in np.flatnonzero(where).tolist()
    }


MOVES = st.tuples(st.integers(0, 7), st.sampled_from([-4, -1, 1, 4, 20]))


@examples(250, problems(fixed=True, max_size=8), st.lists(MOVES, max_size=2), soak=9000)
def test_it_agrees_with_a_check_of_every_pair(
    problem: Problem, moves: list[tuple[int, int]]
) -> None:
    """Of sound plans, and of those with a buffer or two moved."""
    offsets = best_fit(problem)
    capacity = int((offsets + problem.size).max(initial=0))
    for i, by in moves if len(problem) else ():
        offsets[i % len(problem)] += by
    found = verify_offsets(problem, offsets, capacity)
    pairs = colliding(problem, offsets)
    overlaps = {v.buffers for v in found if v.failure is Failure.OVERLAP}
    assert overlaps <= pairs
    assert bool(overlaps) == bool(pairs)
    single = {
        (v.failure, v.buffers[0]) for v in found if v.failure is not Failure.OVERLAP
    }
    assert single == out_of_place(problem, offsets, capacity)
    assert found == [] or moves


@examples(60, problems(fixed=True))
def test_a_plan_loses_no_byte_unnoticed(problem: Problem) -> None:
    """Whatever is put one byte lower into a live neighbour, or below 0, is found."""
    offsets = best_fit(problem)
    capacity = int((offsets + problem.size).max(initial=0))
    for i in range(len(problem)):
        lower = offsets.copy()
        lower[i] -= 1
        wrong = colliding(problem, lower) or out_of_place(problem, lower, capacity)
        assert bool(verify_offsets(problem, lower, capacity)) == bool(wrong)


PROBLEM = Problem.of(
    [0, 2, 6], [5, 8, 9], [10, 20, 8], alignment=2, labels=["conv", "relu", "fc"]
)
PLAN = Plan.of(PROBLEM, np.array([0, 10, 0]), "bestfit")


def test_a_sound_plan() -> None:
    assert verify(PLAN) == []
    assert verify(Plan.of(Problem.of([], [], []), np.empty(0, np.int64), "x")) == []


@pytest.mark.parametrize(
    ("plan", "failure", "buffers", "message"),
    [
        (
            changed(PLAN, offsets=np.array([0, 8, 0])),
            Failure.OVERLAP,
            ("conv", "relu"),
            "buffers conv and relu are both alive at tick 2 and share the bytes "
            "[8, 10)",
        ),
        (
            changed(PLAN, offsets=np.array([0, 11, 0])),
            Failure.MISALIGNED,
            ("relu",),
            "buffer relu: offset 11 is not a multiple of 2",
        ),
        (
            changed(PLAN, offsets=np.array([-2, 10, 0])),
            Failure.OUTSIDE,
            ("conv",),
            "buffer conv: [-2, 8) leaves [0, 30)",
        ),
        (
            changed(PLAN, stated=Stated(28, PROBLEM.fingerprint())),
            Failure.OUTSIDE,
            ("relu",),
            "buffer relu: [10, 30) leaves [0, 28)",
        ),
        (
            Plan.of(
                Problem.of([0], [1], [4], fixed=64, labels=["w"]),
                np.array([60]),
                "bestfit",
                bound=0,
            ),
            Failure.MOVED,
            ("w",),
            "buffer w: offset 60, but it is fixed at 64",
        ),
        (
            Plan.of(Problem.of([0], [1], [4], fixed=0), np.array([4]), "x", bound=0),
            Failure.MOVED,
            ("0",),
            "buffer 0: offset 4, but it is fixed at 0",
        ),
        (
            changed(PLAN, offsets=np.array([0, 10])),
            Failure.MISSING,
            (),
            "2 offsets for 3 buffers",
        ),
        (
            changed(PLAN, offsets=np.array([0])),
            Failure.MISSING,
            (),
            "1 offsets for 3 buffers",
        ),
        (
            changed(PLAN, lower_bound=32),
            Failure.BOUND,
            (),
            "peak 30 is below the stated lower bound 32",
        ),
        (
            changed(PLAN, stated=Stated(30, "0" * 64)),
            Failure.FINGERPRINT,
            (),
            "the fingerprint is not that of the sizes and lifespans listed",
        ),
        (
            changed(PLAN, stated=Stated(40, PROBLEM.fingerprint())),
            Failure.PEAK,
            (),
            "the stated peak is 40, the buffers reach 30",
        ),
    ],
)
def test_every_failure_is_named_with_its_numbers(
    plan: Plan, failure: Failure, buffers: tuple[str, ...], message: str
) -> None:
    found = verify(plan)
    assert (failure, buffers, message) in [
        (violation.failure, violation.buffers, violation.message) for violation in found
    ]


def warmed_up(offset: int, upper: int, step: Problem, offsets: list[int]) -> Plan:
    """A plan for `step` after one warm-up buffer of 8 bytes alive in [0, upper)."""
    before = Problem.of([0], [upper], [8])
    requests = Requests((0,), before.size, np.array([0]))
    plan = Plan.of(step, np.array(offsets), "bestfit")
    return changed(plan, warmup=Warmup(before, np.array([offset]), requests, ticks=5))


def test_the_warm_up_may_not_collide_with_the_first_hot_step() -> None:
    step = Problem.of([0, 2], [2, 4], [8, 16], length=6)
    # Alive until tick 7 of its clock, which is tick 2 of the first hot step.
    assert verify(warmed_up(8, 7, step, [0, 0])) == []
    assert verify(warmed_up(8, 8, step, [0, 0]))[0].message == (
        "buffers warm-up 0 and 1 are both alive at tick 7 and share the bytes [8, 16)"
    )
    assert verify(warmed_up(12, 7, step, [0, 0]))[0].failure is Failure.OUTSIDE


def test_a_wrap_around_buffer_is_not_yet_alive_when_the_first_hot_step_begins() -> None:
    step = Problem.of([4], [2], [8], length=6)
    assert verify(warmed_up(0, 9, step, [0])) == []
    assert verify(warmed_up(0, 10, step, [0]))[0].failure is Failure.OVERLAP


def test_a_warm_up_needs_an_offset_for_every_buffer() -> None:
    plan = warmed_up(8, 7, Problem.of([0], [2], [16], length=6), [0])
    assert plan.warmup is not None
    short = replace(plan.warmup, offsets=np.empty(0, dtype=np.int64))
    found = verify(changed(plan, warmup=short))
    assert [violation.failure for violation in found] == [Failure.MISSING]


# ---- the verifier and the lower bound on problems with gaps, held against e


@pytest.mark.parametrize("times", [400, pytest.param(10_000, marks=pytest.mark.soak)])
def test_it_agrees_with_a_check_of_every_byte(times: int) -> None:
    rng = np.random.default_rng(31)
    sound = gaps = 0
    for k in range(times):
        problem = random_gapped(rng)
        offsets = plainly_placed(problem, rng.permutation(len(problem)))
        capacity = int((offsets + problem.size).max())
        if k % 2:
            for i in rng.integers(0, len(problem), 2).tolist():
                moved = int(rng.choice([0, *offsets, offsets[i] + 1, offsets[i] + 3]))
                offsets[i] = moved // problem.alignment[i] * problem.alignment[i]
        found = verify_offsets(problem, offsets, capacity)
        pairs = colliding_bytes(problem, offsets)
        overlaps = {v.buffers for v in found if v.failure is Failure.OVERLAP}
        assert overlaps <= pairs
        assert bool(overlaps) == bool(pairs)
        outside = {v.buffers for v in found if v.failure is not Failure.OVERLAP}
        beyond = np.flatnonzero(offsets + problem.size > capacity).tolist()
        assert outside == {(problem.label(i),) for i in beyond}
        sound += not found
        gaps += problem.gaps is not None
    assert gaps > times * 0.8
    assert times * 0.5 < sound < times * 0.8  # both kinds, in numbers


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
def test_live_bytes_in_gaps_tick_by_tick(problem: Problem) -> None:
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
    for k in range(400):
        problem = random_gapped(rng, most=3, largest=6, fixed=k % 4 == 0)
        best = least_peak(problem)
        assert lower_bound(problem) <= best
        met += lower_bound(problem) == best
    assert met > 320


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


# ---- lower bounds, held against counting tick by tick and against true opti


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


@examples(60, problems(max_size=5))
def test_no_plan_does_better(problem: Problem) -> None:
    assert lower_bound(problem) <= brute_force(problem)


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
