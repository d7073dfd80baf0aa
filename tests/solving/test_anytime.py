"""Random search and ejection: never worse, repeatable, and stopped at any time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from puzzles import puzzle

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan
from memplan.core.problem import FREE, Problem
from memplan.core.verify import verify, verify_offsets
from memplan.native import _dsa
from memplan.solving import exact
from memplan.solving.anytime import (
    Anytime,
    Ejection,
    Search,
    ejection,
    search,
)
from memplan.solving.bestfit import best_of_six
from memplan.solving.methods import solve_problem
from memplan.solving.options import Options, Progress
from memplan.solving.placing import spans
from tests.strategies import examples, problems

HERE = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[2])))
ROUND = Options(iterations=1, threads=1)  # of ejection
# Tries that take some tenths of a second, by the method.
FEW = {"search": 400, "ejection": 15_000}
KINDS = {"search": Search, "ejection": Ejection}
by_method = pytest.mark.parametrize("method", FEW)
methods = st.sampled_from(sorted(FEW))


def quick(method: str, **options: int) -> Options:
    return Options(iterations=1 if method == "ejection" else 300, threads=1, **options)  # type: ignore[arg-type]


def of_kind(kind: str, n: int) -> Problem:
    """A puzzle that the six priorities do not solve."""
    problem = puzzle(n, length=n if kind == "circle" else None)
    number = np.arange(n)
    if kind == "mixed":
        return replace(problem, alignment=np.where(number % 2, 1, 8))
    if kind == "aligned":
        return replace(problem, alignment=np.full(n, 64))
    if kind == "fixed":
        return replace(problem, fixed=np.where(number == 7, 512, FREE))
    return problem


@examples(80, problems(fixed=True), methods, st.integers(0, 1000))
def test_plans_verify_and_are_never_worse(
    problem: Problem, method: str, seed: int
) -> None:
    plan = solve_problem(problem, method, quick(method, seed=seed))
    assert verify(plan) == []
    first, _ = best_of_six(problem)
    assert plan.lower_bound == lower_bound(problem) <= plan.peak
    assert plan.peak <= problem.peak(first)


@examples(40, problems(), methods, st.integers(1, 100))
def test_a_capacity_is_enough(problem: Problem, method: str, percent: int) -> None:
    """It ends at the first plan within the capacity, and not above what it was."""
    peak = problem.peak(best_of_six(problem)[0])
    options = quick(method, capacity=peak * percent // 100)
    plan = (
        search(problem, options) if method == "search" else ejection(problem, options)
    )
    assert verify(plan) == []
    assert plan.peak <= peak


@by_method
@pytest.mark.parametrize("kind", ["linear", "circle", "mixed", "fixed", "aligned"])
def test_it_gets_better_and_the_same_seed_gives_the_same_plan(
    kind: str, method: str
) -> None:
    """However many threads there are."""
    problem = of_kind(kind, 400 if method == "ejection" else 100)
    few = FEW[method]
    found = [
        solve_problem(problem, method, Options(iterations=few, seed=5, threads=k))
        for k in (1, 2, 9)
    ]
    assert verify(found[0]) == []
    assert lower_bound(problem) <= found[0].peak
    assert found[0].peak < problem.peak(best_of_six(problem)[0])
    assert len({plan.offsets.tobytes() for plan in found}) == 1
    other = solve_problem(problem, method, Options(iterations=few, seed=6))
    assert other.offsets.tobytes() != found[0].offsets.tobytes()


@pytest.mark.parametrize("length", [None, 400])
@pytest.mark.parametrize(("method", "tries"), [("search", 400), ("ejection", 20_000)])
def test_many_buffers(method: str, tries: int, length: int | None) -> None:
    """Of random search, in the packer for more than it keeps in lists."""
    problem = puzzle(1500, length=length)
    plan = solve_problem(problem, method, Options(iterations=tries))
    assert verify(plan) == []
    assert plan.peak < problem.peak(best_of_six(problem)[0])


@by_method
def test_slices_do_not_change_what_is_found(method: str) -> None:
    """Rounds are whole, whenever the caller looks at the clock."""
    problem = of_kind("linear", 400 if method == "ejection" else 100)
    offsets, _ = best_of_six(problem)
    most = 4 * FEW[method] if method == "ejection" else 12_000
    whole = KINDS[method](problem, Options(iterations=most), offsets)
    whole.seek(0, time.perf_counter())
    parts = KINDS[method](problem, Options(iterations=most), offsets)
    for part in (most // 4, most // 2, most):
        parts.seek(0, time.perf_counter(), part)
    assert parts.tried == whole.tried >= most
    assert parts.offsets.tolist() == whole.offsets.tolist()


@by_method
def test_no_tries_and_no_time_leave_the_best_of_six(method: str) -> None:
    problem = of_kind("linear", 120)
    first, _ = best_of_six(problem)
    none = solve_problem(problem, method, Options(iterations=0))
    assert none.offsets.tolist() == first.tolist()
    assert none.provenance.note == f"0 {KINDS[method].tries}"
    assert verify(solve_problem(problem, method, Options(time_limit=0.0))) == []


@by_method
def test_an_interrupt_keeps_the_best(method: str) -> None:
    problem = puzzle(500, height=1 << 40)
    seen: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        seen.append(progress)
        if progress.nodes > FEW[method] // 2:
            raise KeyboardInterrupt

    plan = solve_problem(problem, method, Options(progress=interrupt))
    assert verify(plan) == []
    assert plan.provenance.note.endswith(f"{KINDS[method].tries}, interrupted")
    assert plan.peak == seen[-1].peak
    peaks = [progress.peak for progress in seen if progress.peak is not None]
    assert peaks == sorted(peaks, reverse=True)


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
        for seed in range(2)
    }
    assert len(outputs) == 1
    assert len(outputs.pop().split()) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classic": np.zeros((0, 30))}, "rows of priorities"),
        ({"classic": np.zeros((2, 29))}, "rows of priorities"),
        ({"classic": np.full((1, 30), np.nan)}, "not finite"),
        ({"alignment": np.ones(3, dtype=np.int64)}, "differ in length"),
        ({"fixed": np.ones(3, dtype=np.int64)}, "differ in length"),
        ({"taken": np.zeros(30, dtype=np.int64)}, "0 < taken <= size"),
        ({"period": -1}, "period is negative"),
    ],
)
def test_the_kernel_of_search(changes: dict[str, object], message: str) -> None:
    problem = puzzle(30)
    start, end = spans(problem)
    arguments = {"classic": np.zeros((2, 30)), "seed": 1}
    kernel = _dsa.Search(start, end, problem.padded, **arguments)  # type: ignore[arg-type]
    assert (kernel.peak, kernel.packed, len(kernel.offsets)) == (None, 0, 0)
    kernel.advance(0, 10, 60.0, 60.0, 2)
    assert kernel.packed >= 10
    assert kernel.peak == problem.peak(kernel.offsets)
    assert verify_offsets(problem, kernel.offsets, kernel.peak) == []
    with pytest.raises(ValueError, match=message):
        _dsa.Search(start, end, problem.padded, **arguments | changes)  # type: ignore[arg-type]


# ---- ejection alone


@examples(40, problems(max_size=9))
def test_small_problems_are_seldom_above_the_optimum(problem: Problem) -> None:
    """What exact search proves is a plain reference: never below, and near."""
    least = exact.solve(problem, Options(threads=1))
    assert least.proved_optimal
    plan = ejection(problem, ROUND)
    assert least.peak <= plan.peak
    assert plan.peak - least.peak <= int(problem.padded.max(initial=0))


@pytest.mark.parametrize("kind", ["circle", "mixed", "fixed"])
def test_it_goes_on_from_a_better_plan(kind: str) -> None:
    """And from no worse one, and counts on."""
    problem = of_kind(kind, 400)
    first, _ = best_of_six(problem)
    start = time.perf_counter()
    one: Anytime = Ejection(problem, Options(threads=1), first)
    one.seek(0, start, 1)
    tried, peak = one.tried, one.peak
    other = Ejection(problem, Options(threads=1, seed=1), one.offsets)
    other.seek(peak - 1, start, 1 << 40)
    one.take(other.offsets)
    one.take(first)
    assert (one.tried, one.peak) == (tried, other.peak)
    one.seek(0, start, tried + 1)
    assert one.tried > tried
    assert one.peak <= other.peak < peak
    assert verify(Plan.of(problem, one.offsets, "ejection")) == []


def test_fixed_buffers_stay_and_may_leave_no_room() -> None:
    """The lowest roof is out of reach: the free one cannot pass the fixed ones."""
    fixed = [0, 70, FREE, FREE]
    problem = Problem.of([0, 0, 0, 2], [4, 2, 4, 4], [40, 30, 35, 30], fixed=fixed)
    plan = ejection(problem, ROUND)
    assert verify(plan) == []
    assert plan.offsets[:2].tolist() == [0, 70]
    assert plan.peak == exact.solve(problem).peak


def test_sizes_near_the_limit() -> None:
    """Keys of offsets no longer fit beside their numbers: sorted another way."""
    problem = puzzle(600, height=1 << 56)
    plan = ejection(problem, Options(iterations=20_000))
    assert verify(plan) == []
    assert plan.peak < problem.peak(best_of_six(problem)[0])


def column(*values: int) -> Int64Array:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"offsets": column(0)}, "arrays differ"),
        ({"offsets": column(-1, 0)}, "an offset is negative"),
        ({"offsets": column(0, 3), "alignment": column(1, 2)}, "not aligned"),
        ({"fixed": column(4, -1)}, "not where it is fixed"),
        ({"fixed": column(0)}, "arrays differ"),
        ({"size": column(0, 1)}, "size > 0"),
        (dict.fromkeys(("lower", "upper", "size", "offsets"), column()), "no blocks"),
    ],
)
def test_the_kernel_of_ejection_refuses(
    changed: dict[str, Int64Array], message: str
) -> None:
    columns = {
        "lower": column(0, 0),
        "upper": column(1, 1),
        "size": column(2, 2),
        "offsets": column(0, 2),
    }
    with pytest.raises(ValueError, match=message):
        _dsa.Ejection(**columns | changed, seed=0)
