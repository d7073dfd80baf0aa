"""The methods there are, by name; the modules behind them load when they are used."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import cast

from memplan.core.plan import Plan
from memplan.core.problem import Problem
from memplan.errors import UsageError


@dataclass(frozen=True)
class Method:
    """A way to solve: one line for the user, and the function that does it.

    function: "module:name" of a function that takes a Problem and returns a Plan.
    """

    summary: str
    function: str

    def load(self) -> Callable[[Problem], Plan]:
        """The function itself; only now is its module imported."""
        module, name = self.function.split(":")
        return cast(Callable[[Problem], Plan], getattr(import_module(module), name))


METHODS = {
    "bestfit": Method(
        "longest lifetime first, on the lowest offset line: good plans in no time",
        "memplan.solve.bestfit:solve",
    ),
}
METHOD_NAMES = tuple(METHODS)


def solve_problem(problem: Problem, method: str = "bestfit") -> Plan:
    """A Plan for `problem`, with its lower bound and the seconds it took to find.

    method: a key of METHODS. Raises UsageError for any other name, NoPlanError where
    fixed offsets leave no plan. The plan is not verified here: `core.verify` does that.
    """
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise UsageError(f"there is no method {method!r}; the methods are {known}")
    run = METHODS[method].load()
    start = time.perf_counter()
    plan = run(problem)
    return replace(plan, seconds=time.perf_counter() - start)
