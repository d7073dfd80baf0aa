"""The verifier, held against a check of every pair."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan, Requests, Stated, Warmup
from memplan.core.problem import Problem
from memplan.core.verify import Failure, verify, verify_offsets
from memplan.solving.bestfit import best_fit
from tests.plans import changed
from tests.strategies import examples, problems

INSTANCES = 10_000


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


def random_problem(rng: np.random.Generator) -> Problem:
    n, ticks = int(rng.integers(1, 9)), int(rng.integers(2, 12))
    lower = rng.integers(0, ticks, n)
    length = ticks if rng.random() < 0.5 else None
    upper = lower + rng.integers(1, ticks, n)
    if length is not None:
        upper -= np.where(upper > length, length, 0)
    unit = rng.choice([1, 2, 4], n) if rng.random() < 0.3 else 1
    size = rng.integers(1, 9, n)
    return Problem.of(lower, upper, size, alignment=unit, length=length)


def mutated(
    rng: np.random.Generator, problem: Problem, offsets: Int64Array
) -> Int64Array:
    """Offsets with one or two entries moved, swapped or drawn anew."""
    offsets = offsets.copy()
    for _ in range(rng.integers(1, 3)):
        i, j = rng.integers(0, len(problem), 2)
        kind = rng.integers(0, 3)
        if kind == 0:
            offsets[i] += rng.choice([-4, -1, 1, 4])
        elif kind == 1:
            offsets[i], offsets[j] = offsets[j], offsets[i]
        else:
            offsets[i] = rng.integers(0, 20)
    return offsets


def test_it_agrees_with_a_check_of_every_pair() -> None:
    rng = np.random.default_rng(20)
    sound = 0
    for k in range(INSTANCES):
        problem = random_problem(rng)
        offsets = best_fit(problem)
        capacity = Plan.of(problem, offsets, "bestfit").peak
        if k % 4:
            offsets = mutated(rng, problem, offsets)
        found = verify_offsets(problem, offsets, capacity)
        pairs = colliding(problem, offsets)
        overlaps = {
            violation.buffers
            for violation in found
            if violation.failure is Failure.OVERLAP
        }
        assert overlaps <= pairs
        assert bool(overlaps) == bool(pairs)
        single = {
            (violation.failure, violation.buffers[0])
            for violation in found
            if violation.failure is not Failure.OVERLAP
        }
        assert single == out_of_place(problem, offsets, capacity)
        sound += not found
    assert INSTANCES // 4 < sound < INSTANCES // 2  # both kinds, in numbers


@examples(60, problems(fixed=True))
def test_a_plan_loses_no_byte_unnoticed(problem: Problem) -> None:
    """Whatever is put one byte lower into a live neighbour, or below 0, is found."""
    offsets = best_fit(problem)
    capacity = int((offsets + problem.size).max(initial=0))
    assert verify_offsets(problem, offsets, capacity) == []
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


def test_every_kind_of_failure_is_tested_above() -> None:
    tested = test_every_failure_is_named_with_its_numbers.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {row[1] for row in tested} == set(Failure)


def test_freed_and_allocated_at_the_same_tick_do_not_collide() -> None:
    problem = Problem.of([0, 3], [3, 5], [8, 8])
    assert verify_offsets(problem, np.array([0, 0]), 8) == []
    later = Problem.of([0, 2], [3, 5], [8, 8])
    assert len(verify_offsets(later, np.array([0, 0]), 8)) == 1


@pytest.mark.parametrize(("lower", "upper"), [(0, 2), (5, 7), (6, 8), (0, 8), (7, 1)])
def test_wrap_around_buffers_collide_at_both_ends(lower: int, upper: int) -> None:
    problem = Problem.of([6, lower], [1, upper], [4, 4], length=8)
    found = verify_offsets(problem, np.array([0, 2]), 6)
    assert [violation.failure for violation in found] == [Failure.OVERLAP]
    assert "share the bytes [2, 4)" in found[0].message
    between = Problem.of([6, 1], [1, 6], [4, 4], length=8)
    assert verify_offsets(between, np.array([0, 0]), 4) == []


def test_one_that_overlaps_many_is_reported_with_each() -> None:
    problem = Problem.of([0, 0, 0, 1], [2, 2, 2, 2], [4, 4, 4, 9])
    found = verify_offsets(problem, np.array([0, 4, 8, 2]), 12)
    assert {violation.buffers for violation in found} == {
        ("0", "3"),
        ("1", "3"),
        ("2", "3"),
    }


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


def test_the_bound_of_a_plan_is_its_problems() -> None:
    assert PLAN.lower_bound == lower_bound(PROBLEM) == 30
