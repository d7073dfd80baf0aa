"""What the solvers reach, and how fast: medians, with their extremes.

Six tables: the decision question and the proof on MiniMalloc's six; heuristics there;
large problems; one decode of very large ones; the integer program on random problems
and on inference traces; and other solvers on the six, where they are installed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from bench_bestfit import grown_megabytes, milliseconds, synthetic

from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan
from memplan.core.problem import Problem
from memplan.core.verify import verify
from memplan.errors import NoPlanError
from memplan.solving.bestfit import best_fit
from memplan.solving.methods import solve_problem
from memplan.solving.options import Options
from memplan.trace.importers.minimalloc import read_minimalloc
from memplan.trace.liveness import step_problem
from memplan.trace.read import read_trace

ROOT = Path(__file__).resolve().parents[1]
SIX_CAPACITY = 1 << 20


@dataclass(frozen=True)
class Timed:
    """Runs of one method: seconds, ascending, and the worst of their plans."""

    seconds: list[float]
    plan: Plan | None

    @property
    def median(self) -> float:
        """Of the seconds."""
        return statistics.median(self.seconds)

    def text(self) -> str:
        """Peak/bound, status, and the times."""
        times = f"{self.median:>8.3f}{self.seconds[0]:>8.3f}{self.seconds[-1]:>8.3f}"
        if self.plan is None:
            return f"{'-':>9}  {'unknown':<9}{times}"
        return f"{_ratio(self.plan):>9.5f}  {self.plan.status:<9}{times}"


HEAD = f"{'peak/bound':>10}  {'status':<8}{'median s':>8}{'min':>8}{'max':>8}"


def timed(
    problem: Problem, method: str, repeats: int, options: Options | None = None
) -> Timed:
    """`repeats` runs with one seed after another; every plan is verified."""
    seconds, worst = [], None
    for seed in range(repeats):
        chosen = options or Options()
        chosen = Options(chosen.time_limit, chosen.capacity, chosen.threads, seed)
        begin = time.perf_counter()
        try:
            plan = solve_problem(problem, method, chosen)
        except NoPlanError:
            return Timed([time.perf_counter() - begin], None)
        seconds.append(time.perf_counter() - begin)
        if len(problem) <= 100_000 and verify(plan):
            raise SystemExit(f"{method}: a plan does not verify")
        if worst is None or plan.peak > worst.peak:
            worst = plan
    return Timed(sorted(seconds), worst)


def decisions(six: dict[str, Problem], repeats: int, limit: float | None) -> None:
    """1: does it fit into 1 MiB, and what is the least it fits into?"""
    for title, capacity in (("fits in 1 MiB?", SIX_CAPACITY), ("least peak", None)):
        print(f"\n{title:<18}{HEAD}")
        total = 0.0
        for name, problem in six.items():
            found = timed(problem, "auto", repeats, Options(limit, capacity))
            total += found.median
            print(f"{name:<18} {found.text()}", flush=True)
        print(f"{'sum of medians':<18} {total:>28.3f}")


def heuristics(six: dict[str, Problem], repeats: int, seconds: float) -> None:
    """2: milliseconds, and seconds of search, without exact search."""
    for method, options in (
        ("bestfit", Options()),
        ("bestfit-size", Options()),
        ("skyline", Options()),
        ("search", Options(time_limit=seconds)),
    ):
        print(f"\n{method:<18}{HEAD}")
        ratios = []
        for name, problem in six.items():
            found = timed(problem, method, repeats, options)
            assert found.plan is not None
            ratios.append(_ratio(found.plan))
            print(f"{name:<18} {found.text()}", flush=True)
        print(f"{'geometric mean':<18} {statistics.geometric_mean(ratios):>9.4f}")


def large(folder: Path, repeats: int) -> None:
    """3: problems of a thousand buffers and more."""
    print(f"\n{'large':<18}{HEAD}")
    for name, method, limit in (
        ("resnet50", "auto", None),
        ("S_1", "skyline", 0.3),
        ("S_1", "search", 5.0),
    ):
        path = folder / "idealloc" / f"{name}.csv"
        if path.exists():
            options = Options(time_limit=limit)
            found = timed(read_minimalloc(path), method, repeats, options)
            print(f"{name + ' ' + method:<18} {found.text()}", flush=True)


def decodes(sizes: list[int], repeats: int) -> None:
    """One run of best fit from plain numpy arrays, and what it adds to memory."""
    print(f"\n{'one decode':<18}{'median s':>10}{'min':>8}{'max':>8}{'grown MB':>10}")
    for n in sizes:
        problem = synthetic(n)
        grown = grown_megabytes(lambda p=problem: best_fit(p))
        ran = milliseconds(lambda p=problem: best_fit(p), repeats)
        seconds = [each / 1e3 for each in ran]
        row = (
            f"{statistics.median(seconds):>10.3f}{seconds[0]:>8.3f}{seconds[-1]:>8.3f}"
        )
        print(f"{f'{n:,} buffers':<18}{row}{grown:>10.1f}", flush=True)


def integer_programs(count: int, traces: Path) -> None:
    """4: random problems of up to 15 buffers, and recorded inference."""
    solvers = ["cbc", *(["highs"] if find_spec("highspy") else [])]
    print(
        f"\n{'mip':<24}{'proved':>8}{'of':>6}{'asked':>7}{'s in all':>10}{'max s':>8}"
    )
    for solver, mixed in product(solvers, (False, True)):
        proved = asked = 0
        seconds = []
        for problem in _random_problems(count, mixed):
            begin = time.perf_counter()
            plan = solve_problem(problem, "mip", Options(10.0, mip_solver=solver))
            seconds.append(time.perf_counter() - begin)
            proved += plan.proved_optimal
            asked += solver in plan.provenance.note
        row = (
            f"{proved:>8}{count:>6}{asked:>7}{sum(seconds):>10.2f}{max(seconds):>8.3f}"
        )
        kind = "mixed alignments" if mixed else "random"
        print(f"{f'{kind}, {solver}':<24}{row}", flush=True)
    print(f"\n{'inference':<32}{HEAD}")
    for path in sorted(traces.glob("*infer*.parquet")):
        problem = step_problem(read_trace(path)).problem
        for method in ("bestfit", "mip", "exact"):
            found = timed(problem, method, 3, Options(60.0))
            name = f"{path.stem[:22]} {method}"
            print(f"{name:<32} {found.text()}", flush=True)


def _random_problems(count: int, mixed: bool) -> Iterator[Problem]:
    rng = np.random.default_rng(0)
    for _ in range(count):
        n = int(rng.integers(2, 16))
        lower = rng.integers(0, 20, n)
        alignment = rng.choice([1, 2, 4, 64], n) if mixed else 1
        upper = lower + rng.integers(1, 15, n)
        yield Problem.of(lower, upper, rng.integers(1, 100, n), alignment=alignment)


def others(six: dict[str, Problem], seconds: float) -> None:
    """Other solvers, once each, on the decision question: peak/bound and seconds."""
    rivals: dict[str, Callable[[Problem, float], int | None]] = {}
    if find_spec("ortools"):
        rivals["CP-SAT"] = cp_sat
    if find_spec("highspy"):
        rivals["HiGHS"] = partial(_peak_within, "mip", "highs")
    rivals["CBC"] = partial(_peak_within, "mip", "cbc")
    rivals["memplan"] = partial(_peak_within, "auto", "cbc")
    print(f"\nfits in 1 MiB? within {seconds:g} s: seconds, or - for unknown")
    print(f"{'':<10}" + "".join(f"{name:>10}" for name in six))
    for name, rival in rivals.items():
        row = f"{name:<10}"
        # A process for each: HiGHS and OR-tools bring symbols of the same names.
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            process.submit(rival, Problem.of([0], [1], [1]), 1.0).result()
            for problem in six.values():
                begin = time.perf_counter()
                peak = process.submit(rival, problem, seconds).result()
                spent = time.perf_counter() - begin
                fits = peak is not None and peak <= SIX_CAPACITY
                row += f"{spent:>10.3f}" if fits else f"{'-':>10}"
        print(row, flush=True)


def cp_sat(problem: Problem, seconds: float) -> int | None:
    """OR-tools: rectangles that do not overlap, and the bytes as a resource."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    rows = zip(
        problem.lower.tolist(),
        problem.upper.tolist(),
        problem.size.tolist(),
        strict=True,
    )
    times, bytes_, sizes = [], [], []
    for i, (lower, upper, size) in enumerate(rows):
        offset = model.new_int_var(0, SIX_CAPACITY - size, f"x{i}")
        times.append(model.new_fixed_size_interval_var(lower, upper - lower, f"t{i}"))
        bytes_.append(model.new_fixed_size_interval_var(offset, size, f"b{i}"))
        sizes.append(size)
    model.add_no_overlap_2d(times, bytes_)
    model.add_cumulative(times, sizes, SIX_CAPACITY)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 8
    status = solver.solve(model)
    return SIX_CAPACITY if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None


def _peak_within(
    method: str, solver: str, problem: Problem, seconds: float
) -> int | None:
    options = Options(seconds, SIX_CAPACITY, mip_solver=solver)
    try:
        return solve_problem(problem, method, options).peak
    except NoPlanError:
        return None


def _ratio(plan: Plan) -> float:
    """Of the peak to what is alive at once: the same scale for all methods."""
    return plan.peak / lower_bound(plan.problem)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = ROOT.parent / "shared" / "traces"
    parser.add_argument("--traces", type=Path, default=default, metavar="DIR")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="some minutes less")
    options = parser.parse_args()
    repeats = max(5, options.repeats)
    quick = options.quick

    paths = sorted((options.traces / "minimalloc").glob("*.csv"))
    six = {path.name.split(".")[0]: read_minimalloc(path) for path in paths}
    if six:
        decisions(six, repeats, 5.0 if quick else None)
        heuristics(six, repeats, 0.5 if quick else 2.0)
    else:
        print(f"no traces in {options.traces}: synthetic and random problems only")
    large(options.traces, repeats)
    decodes([100_000] if quick else [100_000, 1_000_000], repeats)
    integer_programs(20 if quick else 200, ROOT / "traces")
    if six:
        others(six, 3.0 if quick else 10.0)


if __name__ == "__main__":
    main()
