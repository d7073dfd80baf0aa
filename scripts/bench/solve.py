"""memplan's solvers beside those of other projects, on the same problems.

Every answer comes from a process of its own, within the time limit, and memplan's
verifier checks it. Peers are imported where they are asked, and what is not installed
is left out. All take plain problems: linear clocks, one alignment for all (sizes are
handed over as multiples of it), no fixed offsets, no gaps. Instances: the recorded
samples, generated ones (bench/generated.py), and the CSV files of the folder that the
environment variable MEMPLAN_TRACES names.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from bench.generated import generated
from bench.runner import ROOT, BenchError, Contender, Figures, Metric, Suite
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

    def missing(self) -> str:
        """What is not installed, or nothing."""
        return "" if find_spec(self.needs) else f"{self.needs} is not installed"


def peers(threads: int) -> list[Peer]:
    """All of them, memplan's own first."""
    ours = [
        Peer(
            f"memplan {method}",
            "memplan",
            partial(_memplan, method, threads),
            circular=True,
        )
        for method in ("auto", "bestfit", "search", "ejection")
    ]
    omni = [
        Peer(f"OmniMalloc {name}", "omnimalloc", partial(omnimalloc, kind, threads))
        for name, kind in (
            ("greedy by all", "GreedyByAllAllocator"),
            ("SuperMalloc", "SupermallocAllocator"),
            ("Tabu", "TabuSearchAllocator"),
            ("annealing", "SimulatedAnnealingAllocator"),
            ("TelaMalloc", "TelamallocAllocator"),
        )
    ]
    return [
        *ours,
        *omni,
        Peer("CP-SAT", "ortools", partial(cp_sat, threads), most=2000),
    ]


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
        reason = peer.missing() or ("" if len(problem) <= peer.most else "too large")
        if problem.length is not None and not peer.circular:
            reason = "takes no lifespans that wrap around"
        if reason:
            print(f"{peer.name} left out: {reason}")
        else:
            found.append(Contender(peer.name, partial(ask, peer, problem, args.limit)))
    return found


def ask(peer: Peer, problem: Problem, limit: float) -> Figures:
    """The peak over the lower bound, and seconds. Raises BenchError without a plan."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, peer, problem, limit))
    process.start()
    theirs.close()
    try:
        if not ours.poll(LOADING):
            raise BenchError("too slow to load")
        ours.recv()
        if not ours.poll(2 * limit + GRACE):
            raise BenchError("too slow")
        seconds, offsets, reason = ours.recv()
    except EOFError:
        raise BenchError("crashed") from None
    finally:
        process.kill()
        process.join()
    if offsets is None:
        raise BenchError(reason or "no plan")
    plan = Plan.of(problem, offsets, "peer")
    if verify(plan):
        raise BenchError("its plan does not verify")
    return {"ratio": plan.peak / lower_bound(problem), "seconds": seconds}


def _work(pipe: Connection, peer: Peer, problem: Problem, limit: float) -> None:
    """Send a line when the peer is loaded; then seconds, offsets, and why there are
    none."""
    try:
        peer.ask(Problem.of([0, 0], [1, 1], [1, 2]), 1.0)
        pipe.send("loaded")
        begin = time.perf_counter()
        offsets = peer.ask(problem, limit)
        pipe.send((time.perf_counter() - begin, offsets, ""))
    except Exception as error:
        pipe.send("failed")
        text = " ".join(str(error).split())[:60]
        pipe.send((0.0, None, f"{type(error).__name__}: {text}"))


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
