"""What the solvers reach, and how fast: medians, with their extremes.

Five tables: the decision question and the proof on MiniMalloc's six; heuristics there;
large problems; one decode of very large ones; the integer program on random problems
and on inference traces. With --peers one other instead: what solvers of other projects
reach, as far as they are installed, on all instances there are.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
from bench_bestfit import grown_megabytes, milliseconds, synthetic
from peer_table import ask, draw, instances, table
from peers import peers

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


def against_peers(options: argparse.Namespace) -> None:
    """Other projects' solvers, where installed, on every instance: a table, a plot."""
    answers = []
    asked = []
    for peer in peers(options.minimalloc):
        missing = peer.missing()
        if missing:
            print(f"{peer.name}: {missing}")
        else:
            asked.append(peer)
    for name, problem in instances(options.traces, options.sizes):
        for peer, limit in product(asked, sorted(options.limits)):
            if not peer.limited and limit != min(options.limits):
                continue
            answers.append(ask(peer, name, problem, limit))
            said = f"{name:<34}{peer.name:<26}{limit:>6g} s  {answers[-1].text}"
            print(said, flush=True)
    print("\n" + table(answers))
    if options.plot:
        draw(answers, options.plot)


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
    parser.add_argument("--peers", action="store_true", help="ask others, too")
    parser.add_argument("--limits", type=float, nargs="+", default=[1.0, 5.0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 10_000])
    parser.add_argument("--minimalloc", default="minimalloc", metavar="EXECUTABLE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="of --peers")
    options = parser.parse_args()
    if options.peers:
        against_peers(options)
        return
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


if __name__ == "__main__":
    main()
