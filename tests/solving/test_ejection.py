"""Search by ejection: never worse, repeatable, stopped at any time, and often best."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from gap_samples import random_gapped
from hypothesis import given, settings
from hypothesis import strategies as st
from puzzles import puzzle
from strategies import problems

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan
from memplan.core.problem import FREE, Problem
from memplan.core.verify import verify
from memplan.errors import UsageError
from memplan.native import _dsa
from memplan.solving import auto, exact
from memplan.solving.anytime import Ejection, default_placements
from memplan.solving.anytime import ejection as solve
from memplan.solving.bestfit import best_of_six
from memplan.solving.options import Options, Progress

QUICK = Options(iterations=1, threads=1)  # one round


@settings(max_examples=40, deadline=None)
@given(problems(fixed=True), st.integers(0, 1000))
def test_plans_verify_and_are_never_worse(problem: Problem, seed: int) -> None:
    plan = solve(problem, replace(QUICK, seed=seed))
    assert verify(plan) == []
    first, _ = best_of_six(problem)
    assert plan.lower_bound == lower_bound(problem) <= plan.peak
    assert plan.peak <= problem.peak(first)


@settings(max_examples=40, deadline=None)
@given(problems(max_size=9))
def test_small_problems_are_seldom_above_the_optimum(problem: Problem) -> None:
    """What exact search proves is a plain reference: never below, and near."""
    least = exact.solve(problem, Options(threads=1))
    assert least.proved_optimal
    plan = solve(problem, QUICK)
    assert least.peak <= plan.peak
    assert plan.peak - least.peak <= int(problem.padded.max(initial=0))


def test_it_reaches_what_exact_search_proves() -> None:
    """Where the six priorities do not; the same every time, having no clock."""
    rng = np.random.default_rng(4)
    reached = missed = 0
    while reached + missed < 12:
        lower = rng.integers(0, 30, 14)
        upper = lower + rng.integers(1, 20, 14)
        problem = Problem.of(lower, upper, rng.integers(1, 200, 14))
        first, _ = best_of_six(problem)
        least = exact.solve(problem, Options(threads=1))
        if problem.peak(first) == least.peak:
            continue
        found = solve(problem, QUICK).peak == least.peak
        reached, missed = reached + found, missed + (not found)
    assert missed <= 1


@pytest.mark.parametrize("kind", ["linear", "circle", "mixed", "fixed", "aligned"])
def test_it_gets_better(kind: str) -> None:
    problem = _of_kind(kind, 1500)
    first, _ = best_of_six(problem)
    before = problem.peak(first)
    assert before > lower_bound(problem)
    plan = solve(problem, Options(iterations=20_000))
    assert verify(plan) == []
    assert plan.peak < before


def test_it_comes_near_the_bound_where_best_fit_does_not() -> None:
    n, rng = 3000, np.random.default_rng(1)
    lower = np.arange(n)
    upper = lower + rng.geometric(1 / 60, n)
    problem = Problem.of(lower, upper, rng.integers(1, 1 << 20, n), alignment=512)
    first, _ = best_of_six(problem)
    bound = lower_bound(problem)
    assert problem.peak(first) > 1.03 * bound
    plan = solve(problem, Options(iterations=150_000))
    assert verify(plan) == []
    assert plan.peak <= 1.01 * bound


@pytest.mark.parametrize("kind", ["linear", "circle", "mixed", "fixed", "aligned"])
def test_the_same_seed_gives_the_same_plan(kind: str) -> None:
    """However many threads there are."""
    problem = _of_kind(kind, 400)
    found = [
        solve(problem, Options(iterations=15_000, seed=5, threads=threads))
        for threads in (1, 2, 9)
    ]
    assert len({plan.offsets.tobytes() for plan in found}) == 1


def test_another_seed_gives_another_plan() -> None:
    problem = _of_kind("linear", 400)
    found = {
        solve(problem, replace(QUICK, seed=seed)).offsets.tobytes() for seed in (0, 1)
    }
    assert len(found) == 2


def test_slices_do_not_change_what_is_found() -> None:
    problem = _of_kind("linear", 400)
    offsets, _ = best_of_six(problem)
    whole = Ejection(problem, Options(iterations=60_000), offsets)
    whole.seek(0, time.perf_counter())
    parts = Ejection(problem, Options(iterations=60_000), offsets)
    for most in (15_000, 30_000, 60_000):
        parts.seek(0, time.perf_counter(), most)
    assert parts.tried == whole.tried >= 60_000
    assert parts.offsets.tolist() == whole.offsets.tolist()


@pytest.mark.parametrize("kind", ["linear", "circle", "mixed", "fixed", "aligned"])
def test_it_goes_on_from_a_better_plan(kind: str) -> None:
    """And from no worse one, and counts on."""
    problem = _of_kind(kind, 400)
    first, _ = best_of_six(problem)
    start = time.perf_counter()
    search = Ejection(problem, Options(threads=1), first)
    search.seek(0, start, 1)
    tried, peak = search.tried, search.peak
    other = Ejection(problem, Options(threads=1, seed=1), search.offsets)
    other.seek(peak - 1, start, 1 << 40)
    search.take(other.offsets)
    search.take(first)
    assert (search.tried, search.peak) == (tried, other.peak)
    search.seek(0, start, tried + 1)
    assert search.tried > tried
    assert search.peak <= other.peak < peak
    assert verify(Plan.of(problem, search.offsets, "ejection")) == []


@settings(max_examples=30, deadline=None)
@given(problems(), st.integers(1, 100))
def test_a_capacity_is_enough(problem: Problem, percent: int) -> None:
    """It ends at the first plan within the capacity, and not above what it was."""
    first, _ = best_of_six(problem)
    peak = problem.peak(first)
    capacity = peak * percent // 100
    plan = solve(problem, replace(QUICK, capacity=capacity))
    assert verify(plan) == []
    assert plan.peak <= peak


def test_no_placements_and_no_time_leave_the_best_of_six() -> None:
    problem = _of_kind("linear", 120)
    first, _ = best_of_six(problem)
    for options in (Options(iterations=0), Options(time_limit=0.0)):
        plan = solve(problem, options)
        assert problem.peak(first) <= plan.peak
        assert plan.provenance.note == "0 placements"


def test_a_time_limit_ends_it_within_a_round() -> None:
    problem = puzzle(300, height=1 << 40)
    plan = solve(problem, Options(time_limit=0.05, threads=2))
    assert verify(plan) == []


def test_ctrl_c_keeps_the_best_so_far() -> None:
    def interrupt(progress: Progress) -> None:
        if progress.nodes > 10_000:
            raise KeyboardInterrupt

    problem = puzzle(500, height=1 << 40)
    plan = solve(problem, Options(progress=interrupt))
    assert verify(plan) == []
    assert plan.provenance.note.endswith("placements, interrupted")
    first, _ = best_of_six(problem)
    assert plan.peak < problem.peak(first)


def test_fixed_buffers_stay_and_may_leave_no_room() -> None:
    """The lowest roof is out of reach: the free one cannot pass the fixed ones."""
    fixed = [0, 70, FREE, FREE]
    problem = Problem.of([0, 0, 0, 2], [4, 2, 4, 4], [40, 30, 35, 30], fixed=fixed)
    plan = solve(problem, QUICK)
    assert verify(plan) == []
    assert plan.offsets[:2].tolist() == [0, 70]
    assert plan.peak == exact.solve(problem).peak


def test_sizes_near_the_limit() -> None:
    """Keys of offsets no longer fit beside their numbers: sorted another way."""
    problem = puzzle(600, height=1 << 56)
    first, _ = best_of_six(problem)
    plan = solve(problem, Options(iterations=20_000))
    assert verify(plan) == []
    assert plan.peak < problem.peak(first)


def test_gaps_are_refused() -> None:
    with pytest.raises(UsageError, match="ejection does not support gaps"):
        solve(next(p for p in _gapped() if p.gaps is not None))


def test_auto_takes_it_for_large_parts() -> None:
    problem = _of_kind("aligned", 1500)
    plan = auto.solve(problem, Options(iterations=200))
    assert verify(plan) == []
    assert "too many for exact search; search, " in plan.provenance.note
    again = auto.solve(problem, Options(iterations=200, threads=1))
    assert again.offsets.tolist() == plan.offsets.tolist()


def test_denser_problems_get_fewer_placements() -> None:
    sparse = Problem.of(np.arange(100), np.arange(100) + 2, np.full(100, 1))
    dense = Problem.of(np.full(100, 0), np.full(100, 5), np.full(100, 1))
    assert default_placements(dense) < default_placements(sparse)
    assert default_placements(Problem.of([], [], [])) > 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"offsets": [0]}, "arrays differ"),
        ({"offsets": [-1, 0]}, "an offset is negative"),
        ({"offsets": [0, 3], "alignment": [1, 2]}, "not aligned"),
        ({"fixed": [4, -1]}, "not where it is fixed"),
        ({"fixed": [0]}, "arrays differ"),
        ({"size": [0, 1]}, "size > 0"),
    ],
)
def test_the_kernel_refuses(changed: dict[str, list[int]], message: str) -> None:
    columns = {"lower": [0, 0], "upper": [1, 1], "size": [2, 2], "offsets": [0, 2]}
    arrays = {
        name: np.array(values, dtype=np.int64)
        for name, values in (columns | changed).items()
    }
    with pytest.raises(ValueError, match=message):
        _dsa.Ejection(**arrays, seed=0)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0], "arrays differ"),
        ([8, -4], "an offset is negative"),
        ([8, 3], "not aligned"),
        ([2, 4], "not where it is fixed"),
    ],
)
def test_the_kernel_is_offered_no_nonsense(offsets: list[int], message: str) -> None:
    def column(*values: int) -> Int64Array:
        return np.array(values, dtype=np.int64)

    search = _dsa.Ejection(
        column(0, 0),
        column(1, 1),
        column(2, 2),
        column(8, 0),
        seed=0,
        alignment=column(2, 4),
        fixed=column(8, -1),
    )
    with pytest.raises(ValueError, match=message):
        search.offer(np.array(offsets, dtype=np.int64))
    assert search.offsets.tolist() == [8, 0]


def test_the_kernel_refuses_no_blocks() -> None:
    none = np.zeros(0, dtype=np.int64)
    with pytest.raises(ValueError, match="no blocks"):
        _dsa.Ejection(none, none, none, none, 0)


def _gapped() -> Iterator[Problem]:
    rng = np.random.default_rng(0)
    while True:
        yield random_gapped(rng)


def _of_kind(kind: str, n: int) -> Problem:
    """A puzzle that the six priorities do not solve."""
    problem = puzzle(n, length=n if kind == "circle" else None)
    if kind == "mixed":
        unit = np.where(np.arange(n) % 2, 1, 8)
        problem = replace(problem, alignment=unit)
    if kind == "aligned":
        problem = replace(problem, alignment=np.full(n, 64))
    if kind == "fixed":
        fixed = np.where(np.arange(n) == 7, 512, FREE)
        problem = replace(problem, fixed=fixed)
    return problem
