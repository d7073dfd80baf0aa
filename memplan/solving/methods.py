"""The solvers by name; a solver is one file, and one entry of METHODS."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TypeAlias, cast

from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan
from memplan.core.problem import Problem
from memplan.errors import InfeasibleError, NoPlanError, UsageError
from memplan.solving.options import DEFAULTS, Options
from memplan.solving.placing import refuse_gaps
from memplan.units import format_bytes

Function: TypeAlias = Callable[[Problem, Options], Plan]


@dataclass(frozen=True)
class Method:
    """A way to solve: one line for the user, and the function that does it.

    function: "module:name" of a function from a Problem and Options to a Plan: the best
    found, whether or not it fits `Options.capacity`. Imported when it is first used.
    gaps: whether it supports gaps in lifespans.
    """

    summary: str
    function: str
    gaps: bool = True

    def load(self) -> Function:
        """The function itself; only now is its module imported."""
        module, name = self.function.split(":")
        return cast(Function, getattr(import_module(module), name))


METHODS = {
    "auto": Method(
        "best fit, then random, ejection and exact search in turns",
        "memplan.solving.auto:solve",
    ),
    "bestfit": Method(
        "best fit in the order of --priority; takes milliseconds",
        "memplan.solving.bestfit:solve",
    ),
    "search": Method(
        "best fit in random orders; better the longer it runs",
        "memplan.solving.anytime:search",
    ),
    "ejection": Method(
        "removes buffers and places them lower; for thousands of buffers",
        "memplan.solving.anytime:ejection",
        gaps=False,
    ),
    "exact": Method(
        "branch and bound; proves the lowest peak for a few hundred buffers",
        "memplan.solving.exact:solve",
        gaps=False,
    ),
    "mip": Method(
        "an integer program; for a few dozen buffers",
        "memplan.solving.mip:solve",
    ),
}
METHOD_NAMES = tuple(METHODS)


def solve_problem(
    problem: Problem, method: str = "auto", options: Options = DEFAULTS
) -> Plan:
    """A Plan for `problem`, with its lower bound and the seconds it took to find.

    method: a key of METHODS. The plan is not verified here: `core.verify` does that.

    Raises UsageError for any other name, and for gaps in lifespans where the method
    does not support them, NoPlanError where fixed offsets leave no plan.
    With a capacity, raises InfeasibleError if it is proved that no plan fits, and
    NoPlanError if the method found none.
    """
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise UsageError(f"there is no method {method!r}; the methods are {known}")
    if not METHODS[method].gaps:
        refuse_gaps(problem, method)
    start = time.perf_counter()
    capacity = options.capacity
    if capacity is not None:
        _refuse_below(capacity, lower_bound(problem), None)
    plan = METHODS[method].load()(problem, options)
    if capacity is not None and plan.peak > capacity:
        _refuse_below(capacity, plan.lower_bound, plan.peak)
        raise NoPlanError(
            f"unknown: {method} found no plan within {both_ways(capacity)}; the best "
            f"one needs {both_ways(plan.peak)}, and every plan needs at least "
            f"{both_ways(plan.lower_bound)}; allow more time or use another method",
            plan.peak,
            plan.lower_bound,
        )
    return plan.coming_from(seconds=time.perf_counter() - start)


def _refuse_below(capacity: int, bound: int, peak: int | None) -> None:
    """Raise InfeasibleError if every plan needs more than the capacity."""
    if capacity < bound:
        raise InfeasibleError(
            f"does not fit: it is proved that every plan needs at least "
            f"{both_ways(bound)}, and the capacity is {both_ways(capacity)}",
            peak,
            bound,
        )


def both_ways(count: int) -> str:
    """Bytes, exact and rounded."""
    return f"{count:,} bytes ({format_bytes(count)})"
