"""Randomised search: never worse, repeatable, and stopped at any time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from puzzles import puzzle
from strategies import problems

from memplan.core.bounds import lower_bound
from memplan.core.problem import Problem
from memplan.core.verify import verify, verify_offsets
from memplan.native import _dsa
from memplan.solving.anytime import Search, default_orders
from memplan.solving.anytime import search as solve
from memplan.solving.bestfit import best_of_six
from memplan.solving.options import Options, Progress
from memplan.solving.placing import spans

HERE = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[2])))
QUICK = Options(iterations=300, threads=1)


@settings(max_examples=60, deadline=None)
@given(problems(fixed=True), st.integers(0, 1000))
def test_plans_verify_and_are_never_worse(problem: Problem, seed: int) -> None:
    plan = solve(problem, replace(QUICK, seed=seed))
    assert verify(plan) == []
    first, _ = best_of_six(problem)
    assert plan.peak <= int((first + problem.padded).max(initial=0))
    assert plan.lower_bound == lower_bound(problem) <= plan.peak


@pytest.mark.parametrize("length", [None, 400])
@pytest.mark.parametrize("n", [60, 1500])
def test_it_gets_better(n: int, length: int | None) -> None:
    problem = puzzle(n, length=length)
    first, _ = best_of_six(problem)
    before = int((first + problem.padded).max())
    assert before > lower_bound(problem)
    plan = solve(problem, Options(iterations=600))
    assert verify(plan) == []
    assert plan.peak < before


@pytest.mark.parametrize("kind", ["linear", "circle", "mixed", "fixed", "many"])
def test_the_same_seed_gives_the_same_plan(kind: str) -> None:
    """However many threads there are."""
    length = 300 if kind == "circle" else None
    problem = puzzle(1100 if kind == "many" else 100, length=length)
    if kind == "mixed":
        unit = np.where(np.arange(len(problem)) % 2, 1, 8)
        problem = replace(problem, alignment=unit)
    if kind == "fixed":
        fixed = np.where(np.arange(len(problem)) == 7, 512, -1)
        problem = replace(problem, fixed=fixed)
    found = [
        solve(problem, Options(iterations=400, seed=5, threads=threads))
        for threads in (1, 1, 2, 3, 9)
    ]
    assert len({plan.offsets.tobytes() for plan in found}) == 1
    other = solve(problem, Options(iterations=400, seed=6))
    assert other.offsets.tobytes() != found[0].offsets.tobytes()


def test_reaching_the_goal_does_not_depend_on_threads() -> None:
    problem = puzzle(60, seed=3)
    first, _ = best_of_six(problem)
    goal = int((first + problem.padded).max()) * 97 // 100
    found = {
        solve(problem, Options(capacity=goal, threads=k)).offsets.tobytes()
        for k in (1, 2, 6)
    }
    assert len(found) == 1


def test_the_same_bytes_whatever_the_hash_seed() -> None:
    code = (
        "import hashlib\n"
        "from memplan.core.planfile import dump_plan\n"
        "from memplan.solving.solve import solve\n"
        "from memplan.solving.options import Options\n"
        "from puzzles import puzzle\n"
        "problem = puzzle(80)\n"
        "options = Options(iterations=400, max_nodes=2000)\n"
        "for method in ('search', 'auto', 'bestfit'):\n"
        "    plan = solve(problem, method, options=options)\n"
        "    print(hashlib.sha256(dump_plan(plan)).hexdigest())\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": HERE},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in range(5)
    }
    assert len(outputs) == 1
    assert len(outputs.pop().split()) == 3


def test_slices_do_not_change_what_is_found() -> None:
    """Rounds are whole, whenever the caller looks at the clock."""
    problem = puzzle(100)
    offsets, _ = best_of_six(problem)
    whole = Search(problem, Options(iterations=30_000), offsets)
    whole.seek(0, time.perf_counter())
    parts = Search(problem, Options(iterations=30_000), offsets)
    for most in (7_500, 15_000, 30_000):
        parts.seek(0, time.perf_counter(), most)
    assert parts.tried == whole.tried >= 30_000
    assert parts.peak == whole.peak


@settings(max_examples=30, deadline=None)
@given(problems(periodic=False, alignment="none"), st.integers(1, 9))
def test_shifting_the_clock_changes_nothing(problem: Problem, shift: int) -> None:
    later = replace(problem, lower=problem.lower + shift, upper=problem.upper + shift)
    assert (
        solve(later, QUICK).offsets.tolist() == solve(problem, QUICK).offsets.tolist()
    )


@settings(max_examples=30, deadline=None)
@given(problems(), st.integers(1, 100))
def test_a_capacity_is_enough(problem: Problem, percent: int) -> None:
    """It ends at the first plan within the capacity, and not above what it was."""
    first, _ = best_of_six(problem)
    peak = int((first + problem.padded).max(initial=0))
    capacity = peak * percent // 100
    plan = solve(problem, replace(QUICK, capacity=capacity))
    assert verify(plan) == []
    assert plan.peak <= peak


def test_no_orders_and_no_time_leave_the_best_of_six() -> None:
    problem = puzzle(120)
    first, _ = best_of_six(problem)
    none = solve(problem, Options(iterations=0))
    assert none.offsets.tolist() == first.tolist()
    assert none.provenance.note == "0 orders tried"
    paper_only = solve(problem, Options(time_limit=0.0))
    assert verify(paper_only) == []


def test_a_time_limit_ends_it() -> None:
    plan = solve(puzzle(300), Options(time_limit=0.05, iterations=1 << 40))
    assert verify(plan) == []
    assert plan.peak > plan.lower_bound


def test_an_interrupt_keeps_the_best() -> None:
    problem = puzzle(120)
    seen: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        seen.append(progress)
        if progress.nodes > 200 and progress.seconds > 0:
            raise KeyboardInterrupt

    plan = solve(problem, Options(progress=interrupt))
    assert verify(plan) == []
    assert plan.provenance.note.endswith("interrupted")
    assert plan.peak == seen[-1].peak
    peaks = [progress.peak for progress in seen if progress.peak is not None]
    assert peaks == sorted(peaks, reverse=True)


def test_more_buffers_get_fewer_orders() -> None:
    orders = [default_orders(n) for n in (0, 10, 1000, 30_000, 1_000_000)]
    assert orders == sorted(orders, reverse=True)
    assert orders[-1] == 12


def kernel(problem: Problem, **changes: object) -> _dsa.Search:
    start, end = spans(problem)
    rows = np.zeros((2, len(problem)))
    arguments = {"classic": rows, "seed": 1, "period": problem.length or 0, **changes}
    return _dsa.Search(start, end, problem.padded, **arguments)  # type: ignore[arg-type]


def test_the_kernel_before_and_after() -> None:
    problem = puzzle(30)
    search = kernel(problem)
    assert (search.peak, search.packed, len(search.offsets)) == (None, 0, 0)
    search.advance(0, 10, 60.0, 60.0, 2)
    assert search.packed >= 10
    assert search.peak == int((search.offsets + problem.size).max())
    assert verify_offsets(problem, search.offsets, search.peak) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classic": np.zeros((0, 30))}, "rows of priorities"),
        ({"classic": np.zeros((2, 29))}, "rows of priorities"),
        ({"classic": np.full((1, 30), np.nan)}, "not finite"),
        ({"alignment": np.ones(3, dtype=np.int64)}, "differ in length"),
        ({"fixed": np.ones(3, dtype=np.int64)}, "differ in length"),
        ({"period": -1}, "period is negative"),
    ],
)
def test_the_kernel_refuses(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel(puzzle(30), **changes)
