"""`memplan.solve`: one entry for traces, problems and plain arrays."""

from __future__ import annotations

import math

from memplan.arrays import Int64Like
from memplan.core.plan import Plan, Source
from memplan.core.problem import Problem
from memplan.errors import UsageError, expected
from memplan.solving.methods import METHOD_NAMES, solve_problem
from memplan.solving.options import DEFAULTS, Options
from memplan.trace.trace import Trace

__all__ = ["METHOD_NAMES", "Options", "solve"]


def solve(  # noqa: PLR0913 - a public verb: by name
    source: Trace | Problem | tuple[Int64Like, Int64Like, Int64Like],
    method: str = "auto",
    *,
    step: str | int = "hot",
    alignment: int | None = None,
    origin: Source | None = None,
    options: Options | None = None,
    time_limit: float | None = None,
    capacity: int | None = None,
    threads: int | None = None,
    seed: int = 0,
) -> Plan:
    """Plan the memory of a trace's hot step, or of a bare problem.

    source: a Trace, a Problem, or arrays (lower, upper, size) of integers with
        half-open lifespans, shape (n,) each.
    method: one of METHOD_NAMES.
    step: for a trace: "hot", "all" or a step's number.
    alignment: bytes that offsets are multiples of; the source's own when None (64
        for a trace recorded on a CPU, 1 for arrays).
    origin: where the source came from; written into the plan.
    time_limit, capacity, threads, seed: in seconds and bytes; see `Options`.
    options: all of those and more at once, instead of them.

    Raises TypeError for other sources, UsageError for an unknown method or step and for
    options that make no sense,
    InputError for lifespans or sizes that are not allowed, NoPlanError when no step
    repeats. With a capacity: InfeasibleError if it is proved that no plan fits,
    NoPlanError if none was found.
    """
    if options is None:
        options = Options(time_limit, capacity, threads, seed)
    elif Options(time_limit, capacity, threads, seed) != DEFAULTS:
        raise UsageError(
            "give either options, or a time limit, capacity, threads, seed"
        )
    if isinstance(source, Trace):
        from memplan.solving.from_trace import solve_trace

        return solve_trace(
            source,
            method,
            step=str(step),
            alignment=alignment,
            source=origin,
            options=options,
        )
    if step != "hot":
        raise UsageError(f"step {step}: a bare problem has no steps to choose from")
    if isinstance(source, Problem):
        problem = source
        if alignment is not None:
            problem = Problem.of(
                problem.lower,
                problem.upper,
                problem.size,
                alignment=alignment,
                fixed=problem.fixed,
                length=problem.length,
                labels=problem.labels,
                gaps=problem.gaps,
                rounding=math.gcd(problem.rounding, alignment),
            )
    else:
        problem = _from_arrays(source, 1 if alignment is None else alignment)
    plan = solve_problem(problem, method, options)
    return plan if origin is None else plan.coming_from(source=origin)


def _from_arrays(arrays: object, alignment: int) -> Problem:
    """The Problem of (lower, upper, size).

    Raises TypeError for what is no tuple or list, UsageError for what is not three.
    """
    if not isinstance(arrays, tuple | list):
        what = "a Trace, a Problem, the path of one, or arrays (lower, upper, size)"
        raise expected(what, arrays)
    if len(arrays) != 3:
        raise UsageError(
            f"solve arrays (lower, upper, size), not a {type(arrays).__name__} of "
            f"{len(arrays)}"
        )
    lower, upper, size = arrays
    return Problem.of(lower, upper, size, alignment=alignment)
