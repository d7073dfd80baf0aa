"""memplan's solvers beside those of other projects, on the same problems.

Every answer comes from a process of its own, within the time limit, and memplan's
verifier checks it. Peers are imported where they are asked, and what is not installed
is left out. All take plain problems: linear clocks, one alignment for all (sizes are
handed over as multiples of it), no fixed offsets, no gaps. Instances: the recorded
samples, generated ones, and the CSV files of the folder that the
environment variable MEMPLAN_TRACES names.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bench.runner import ROOT, BenchError, Contender, Figures, Metric, Suite
from bench.worker import Worker
from memplan.arrays import Int64Array
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

Spans = tuple[Int64Array, Int64Array]  # births and deaths

LARGEST = 1 << 24  # bytes of one generated buffer
LOADING = 180.0  # seconds to import a peer
GRACE = 20.0  # seconds over twice the limit, until a peer is ended
FOLDER = Path(os.environ.get("MEMPLAN_TRACES", ROOT.parent / "shared" / "traces"))
GENERATED = {
    f"{kind}, {sizes}, {n:,}": (kind, sizes, n, alignment)
    for n in (1000, 10_000, 100_000)
    for kind, sizes, alignment in (
        ("uniform", "log-uniform", 512),
        ("geometric", "flat", 64),
        ("heavy", "few", 512),
        ("crowded", "log-uniform", 1),
    )
}
SMALL_FIRST = sorted(FOLDER.glob("*/*.csv"), key=lambda path: path.stat().st_size)
CASES: dict[str, Any] = {
    **{path.stem.split(".")[0]: path for path in SMALL_FIRST},
    **{path.stem: path for path in sorted((ROOT / "traces").glob("*.parquet"))},
    **GENERATED,
}


@dataclass(frozen=True)
class Peer:
    """A solver: offsets in bytes, shape (n,), of a problem and a limit in seconds, or
    None if it found none.

    needs: the package that it is. most: buffers; it is not asked
    about larger problems. circular: whether it takes lifespans that wrap around the end
    of a step.
    """

    name: str
    needs: str
    ask: Callable[[Problem, float], Int64Array | None]
    most: int = 1_000_000
    circular: bool = False


def peers(threads: int) -> list[Peer]:
    """All of them, memplan's own first."""
    found = [
        Peer(
            f"memplan {each}",
            "memplan",
            partial(_memplan, each, threads),
            circular=True,
        )
        for each in ("auto", "bestfit", "search", "ejection")
    ]
    for name, kind in (
        ("greedy by all", "GreedyByAllAllocator"),
        ("SuperMalloc", "SupermallocAllocator"),
        ("Tabu", "TabuSearchAllocator"),
        ("annealing", "SimulatedAnnealingAllocator"),
        ("TelaMalloc", "TelamallocAllocator"),
    ):
        ask_it = partial(omnimalloc, kind, threads)
        found.append(Peer(f"OmniMalloc {name}", "omnimalloc", ask_it))
    return [*found, Peer("CP-SAT", "ortools", partial(cp_sat, threads), most=2000)]


def _memplan(
    method: str, threads: int, problem: Problem, seconds: float
) -> Int64Array | None:
    try:
        return solve_problem(problem, method, Options(seconds, threads=threads)).offsets
    except NoPlanError:
        return None


def omnimalloc(
    allocator: str, threads: int, problem: Problem, seconds: float
) -> Int64Array:
    """One of OmniMalloc's allocators, by its class; it has limits of its own, in
    iterations, which are lifted where there is one in seconds."""
    import omnimalloc
    from omnimalloc import allocators

    omnimalloc.set_max_threads(threads)
    kind = getattr(allocators, allocator)
    given: dict[str, float] = {}
    for name in ("max_iterations", "max_backtracks"):
        if name in kind.__init__.__code__.co_varnames:
            given[name] = (1 << 31) - 1
    if "timeout" in kind.__init__.__code__.co_varnames:
        given["timeout"] = seconds
    rows = zip(*_columns(problem), strict=True)
    asked = tuple(
        omnimalloc.Allocation(id=i, size=size, start=lower, end=upper)
        for i, (lower, upper, size) in enumerate(rows)
    )
    offsets = np.zeros(len(problem), dtype=np.int64)
    for placed in omnimalloc.allocate(asked, allocator=kind(**given)):
        offsets[placed.id] = placed.offset
    return offsets


def cp_sat(threads: int, problem: Problem, seconds: float) -> Int64Array | None:
    """OR-tools: rectangles that do not overlap, and the bytes as a resource; told how
    high best fit is, and asked for the lowest."""
    from ortools.sat.python import cp_model

    unit = int(np.gcd.reduce(problem.padded))
    roof = problem.peak(best_fit(problem)) // unit
    model = cp_model.CpModel()
    peak = model.new_int_var(lower_bound(problem) // unit, roof, "peak")
    offsets, times, heights, sizes = [], [], [], []
    rows = zip(*_columns(problem), strict=True)
    for i, (lower, upper, padded) in enumerate(rows):
        size = padded // unit
        offset = model.new_int_var(0, roof - size, f"x{i}")
        model.add(offset + size <= peak)
        times.append(model.new_fixed_size_interval_var(lower, upper - lower, f"t{i}"))
        heights.append(model.new_fixed_size_interval_var(offset, size, f"b{i}"))
        offsets.append(offset)
        sizes.append(size)
    model.add_no_overlap_2d(times, heights)
    model.add_cumulative(times, sizes, peak)
    model.minimize(peak)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = threads
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return np.array([solver.value(x) * unit for x in offsets], dtype=np.int64)


def _columns(problem: Problem) -> tuple[list[int], list[int], list[int]]:
    """Ends of lifespans, and sizes as multiples of the alignment."""
    return problem.lower.tolist(), problem.upper.tolist(), problem.padded.tolist()


def generated(
    kind: str, sizes: str, n: int, *, alignment: int = 512, seed: int = 0
) -> Problem:
    """n buffers, with lives of a `kind` of LIVES and `sizes` of SIZES.

    alignment: bytes, of all; sizes are not rounded up to it here.
    """
    rng = np.random.default_rng(seed)
    lower, upper = LIVES[kind](rng, n)
    return Problem.of(lower, upper, SIZES[sizes](rng, n), alignment=alignment)


def _uniform(rng: np.random.Generator, n: int) -> Spans:
    """Born at any time, alive for up to a fiftieth of it all."""
    life = rng.integers(1, max(n // 50, 2), n)
    lower = rng.integers(0, 2 * n, n)
    return lower, lower + life


def _geometric(rng: np.random.Generator, n: int) -> Spans:
    """Born one after the other, alive for 60 births in the mean."""
    lower = np.arange(n)
    return lower, lower + rng.geometric(1 / 60, n)


def _heavy(rng: np.random.Generator, n: int) -> Spans:
    """Lives over four decades, each as likely as the next."""
    life = np.ceil(np.exp(rng.uniform(0, np.log(max(n / 10, 10)), n))).astype(np.int64)
    lower = rng.integers(0, 2 * n, n)
    return lower, lower + life


def _crowded(rng: np.random.Generator, n: int) -> Spans:
    """Few moments, very many alive at each."""
    ticks = 400
    lower = rng.integers(0, ticks, n)
    return lower, lower + rng.integers(1, ticks // 8, n)


LIVES: dict[str, Callable[[np.random.Generator, int], Spans]] = {
    "uniform": _uniform,
    "geometric": _geometric,
    "heavy": _heavy,
    "crowded": _crowded,
}


def _few(rng: np.random.Generator, n: int) -> Int64Array:
    """Eight values over two decades."""
    values = np.ceil(np.exp(rng.uniform(np.log(1 << 15), np.log(1 << 22), 8)))
    return rng.choice(values.astype(np.int64), n)


SIZES: dict[str, Callable[[np.random.Generator, int], Int64Array]] = {
    "log-uniform": lambda rng, n: np.ceil(
        np.exp(rng.uniform(np.log(256), np.log(LARGEST), n))
    ).astype(int),
    "flat": lambda rng, n: rng.integers(1, 1 << 20, n),
    "few": _few,
}


def problem_of(case: Any) -> Problem:
    """The problem of a file, or of the arguments of `generated`."""
    if isinstance(case, tuple):
        kind, sizes, n, alignment = case
        return generated(kind, sizes, n, alignment=alignment)
    if case.suffix == ".csv":
        return read_minimalloc(case)
    return step_problem(read_trace(case)).problem


def contenders(
    case: Any, args: argparse.Namespace, folder: Path
) -> Sequence[Contender]:
    """memplan's methods, and every peer that is installed and takes such a problem."""
    problem = problem_of(case)
    found = []
    for peer in peers(args.threads):
        reason = "" if len(problem) <= peer.most else "too large"
        if not find_spec(peer.needs):
            reason = f"{peer.needs} is not installed"
        if problem.length is not None and not peer.circular:
            reason = "takes no lifespans that wrap around"
        if reason:
            print(f"{peer.name} left out: {reason}")
        else:
            found.append(Contender(peer.name, partial(ask, peer, problem, args.limit)))
    return found


def ask(peer: Peer, problem: Problem, limit: float) -> Figures:
    """The peak over the lower bound, and seconds. Raises BenchError without a plan."""
    worker = Worker(loaded, peer, problem, limit)
    try:
        worker.answer(LOADING)
        offsets, seconds = worker.answer(2 * limit + GRACE)
    finally:
        worker.end()
    if offsets is None:
        raise BenchError("no plan")
    plan = Plan.of(problem, offsets, "peer")
    if verify(plan):
        raise BenchError("its plan does not verify")
    return {"ratio": plan.peak / lower_bound(problem), "seconds": seconds}


def loaded(peer: Peer, problem: Problem, limit: float) -> Callable[[], Any]:
    """What asks a peer, which has imported what it needs."""
    peer.ask(Problem.of([0, 0], [1, 1], [1, 2]), 1.0)

    def solve() -> tuple[Int64Array | None, float]:
        begin = time.perf_counter()
        return peer.ask(problem, limit), time.perf_counter() - begin

    return solve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=float, default=5.0, help="s per solver")


SUITE = Suite(
    summary="memplan's solvers beside those of other projects.",
    cases=CASES,
    contenders=contenders,
    metrics=(
        Metric("ratio", "peak / lower bound", 1, 4),
        Metric("seconds", "s", 1, 3),
    ),
    packages=("omnimalloc", "ortools", "highspy"),
    add_arguments=add_arguments,
)
