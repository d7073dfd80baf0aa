"""Plan a trace, as a process of its own, and print as JSON what bench_paper shows.

    python scripts/bench/paper_solve.py TRACE PLAN [--prove SECONDS]

With --prove the exact methods solve the problem too, and then the integer program's
solver is asked outright (profile-guided memory optimization, section 5.2).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import memplan
from memplan.core.plan import Plan
from memplan.core.problem import Problem
from memplan.core.verify import verify_offsets
from memplan.solving import cbc
from memplan.solving.methods import solve_problem
from memplan.solving.mip import proved_bytes, restack
from memplan.solving.model import build
from memplan.solving.options import Options
from memplan.trace.liveness import step_problem

TIMED = 5  # of best fit, which takes too little time to be timed once


def facts(plan: Plan) -> dict[str, Any]:
    """How good `plan` is, and how it came about."""
    return {
        "method": plan.provenance.method,
        "peak": plan.peak,
        "lower_bound": plan.lower_bound,
        "status": plan.status,
        "seconds": plan.provenance.seconds,
        "note": plan.provenance.note,
    }


def best_fit(problem: Problem) -> dict[str, Any]:
    """The paper's heuristic: its facts, and its median time, the first left out."""
    plans = [solve_problem(problem, "bestfit") for _ in range(TIMED + 1)]
    seconds = statistics.median(plan.provenance.seconds for plan in plans[1:])
    return {**facts(plans[0]), "seconds": seconds}


def one_propagation(problem: Problem, steps: int) -> Problem:
    """The first of the `steps` that a problem on a circle spans, on a line of its own.

    That is what the paper solves: what outlives the step is alive to its end.
    """
    if problem.length is None:
        return problem
    end = problem.length // steps
    own = problem.lower < end
    lower, upper = problem.lower[own], problem.upper[own]
    upper = np.where((upper <= lower) | (upper > end), end, upper)
    return Problem.of(lower, upper, problem.size[own], alignment=problem.alignment[own])


def ask_solver(problem: Problem, time_limit: float) -> dict[str, Any]:
    """What the integer program's solver proves alone, from best fit's plan on.

    It is not told the lower bound, as `--method mip` would tell it.
    """
    start = solve_problem(problem, "bestfit")
    model = build(problem, start.offsets, bound=0)
    began = time.perf_counter()
    found = cbc.run(model, Options(time_limit=time_limit))
    seconds = time.perf_counter() - began
    peak = start.peak
    if found.offsets is not None:
        offsets = restack(problem, model, found.offsets)
        if not verify_offsets(problem, offsets, peak):
            peak = int((offsets + problem.padded).max(initial=0))
    bound = min(peak, proved_bytes(model, found))
    return {
        "method": "mip, asked",
        "peak": peak,
        "lower_bound": bound,
        "status": "optimal" if bound == peak else "feasible",
        "seconds": seconds,
        "note": f"cbc, {len(model.first):,} pairs, no bound given: {found.status}",
    }


def prove(problem: Problem, steps: int, time_limit: float) -> list[dict[str, Any]]:
    """The loop as it is planned, and one propagation alone, by several methods."""
    alone = one_propagation(problem, steps)
    loop_name = f"loop of {steps}" if problem.length is not None else "whole run"
    rows = []
    for name, each in ((loop_name, problem), ("one step", alone)):
        options = Options(time_limit=time_limit)
        found = [facts(solve_problem(each, m, options)) for m in ("exact", "mip")]
        rows += [
            {"problem": name, "buffers": len(each), **one}
            for one in (best_fit(each), *found)
        ]
    asked = ask_solver(alone, time_limit)
    return [*rows, {"problem": "one step", "buffers": len(alone), **asked}]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--prove", type=float, metavar="SECONDS")
    args = parser.parse_args()
    trace = memplan.read_trace(args.trace)
    step = step_problem(trace)
    plan = memplan.solve(trace)
    violations = memplan.verify(plan)
    if violations:
        print(f"the plan does not verify: {violations[0].message}", file=sys.stderr)
        return 1
    memplan.write_plan(plan, args.plan, force=True)
    entries = {
        "buffers": len(plan.problem),
        "steps": step.unrolled,
        "elastic": plan.elastic,
        "kinds": len(plan.kinds),
        "retained_bytes": step.persistent_bytes,
        "arena_bytes": plan.arena_bytes,
        "lower_bound": plan.lower_bound,
        "auto": facts(plan),
        "bestfit": best_fit(plan.problem),
    }
    if args.prove is not None:
        entries["proofs"] = prove(plan.problem, step.unrolled, args.prove)
    print(json.dumps(entries))
    return 0


if __name__ == "__main__":
    sys.exit(main())
