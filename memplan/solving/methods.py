"""The methods there are, by name; the modules behind them load when they are used."""

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
from memplan.solving.gapped import refuse_gaps
from memplan.solving.options import DEFAULTS, Options
from memplan.units import format_bytes

Function: TypeAlias = Callable[[Problem, Options], Plan]


@dataclass(frozen=True)
class Method:
    """A way to solve: one line for the user, and the function that does it.

    function: "module:name" of a function that takes a Problem and Options, and returns
    a Plan: the best it found, whether or not it keeps within `Options.capacity`.
    gaps: whether it takes problems with gaps in lifespans.
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
        "priorities, then exact search where that is small, then search",
        "memplan.solving.auto:solve",
    ),
    "bestfit": Method(
        "longest lifetime first, on the lowest offset line: good plans in no time",
        "memplan.solving.bestfit:solve",
    ),
    "bestfit-lifetime-sqrt-size": Method(
        "best fit by lifetime times the square root of size",
        "memplan.solving.priorities:by_lifetime_sqrt_size",
    ),
    "bestfit-sections-size": Method(
        "best fit by sections lived through times size",
        "memplan.solving.priorities:by_sections_size",
    ),
    "bestfit-sections": Method(
        "best fit by sections lived through",
        "memplan.solving.priorities:by_sections",
    ),
    "bestfit-area": Method(
        "best fit by lifetime times size", "memplan.solving.priorities:by_area"
    ),
    "bestfit-size": Method("best fit by size", "memplan.solving.priorities:by_size"),
    "skyline": Method(
        "the best of best fit's six priorities", "memplan.solving.priorities:solve"
    ),
    "search": Method(
        "randomised best fit, better the longer it may take",
        "memplan.solving.search:solve",
    ),
    "ejection": Method(
        "puts what ends too high back in lower: for thousands of buffers",
        "memplan.solving.ejection:solve",
        gaps=False,
    ),
    "exact": Method(
        "branch and bound: proves the least peak, for some hundreds of buffers",
        "memplan.solving.exact:solve",
        gaps=False,
    ),
    "mip": Method(
        "the paper's integer program, for some tens of buffers",
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
    does not take them, NoPlanError where fixed offsets leave no plan.
    With a capacity, raises InfeasibleError if it is proved that no plan keeps within
    it, and NoPlanError if the method found none.
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
            f"unknown: {method} found no plan within {_both_ways(capacity)}; the best "
            f"one needs {_both_ways(plan.peak)}, and none can do with less than "
            f"{_both_ways(plan.lower_bound)}; allow more time, or take another method",
            plan.peak,
            plan.lower_bound,
        )
    return plan.coming_from(seconds=time.perf_counter() - start)


def _refuse_below(capacity: int, bound: int, peak: int | None) -> None:
    """Raise InfeasibleError if no plan can do with the capacity."""
    if capacity < bound:
        raise InfeasibleError(
            f"does not fit: it is proved that no plan can do with less than "
            f"{_both_ways(bound)}, and the capacity is {_both_ways(capacity)}",
            peak,
            bound,
        )


def _both_ways(count: int) -> str:
    return f"{count:,} bytes ({format_bytes(count)})"
