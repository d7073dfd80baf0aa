"""memplan's solvers beside those of other projects, on the same problems.

Every answer comes from a process of its own, within the time limit, and memplan's
verifier checks it. A peer that is not installed is left out. Instances: the recorded
samples, generated ones (bench/generated.py), and the CSV files of the folder that the
environment variable MEMPLAN_TRACES names.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.generated import generated
from bench.peers import Peer, peers
from bench.runner import ROOT, BenchError, Contender, Figures, Metric, Suite
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan
from memplan.core.problem import Problem
from memplan.core.verify import verify
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
