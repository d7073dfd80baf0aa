"""Options that every method takes, and the progress it reports."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from memplan.cores import cores
from memplan.errors import UsageError

MIP_SOLVERS = ("cbc", "highs")
# Of best fit, in the order in which they are tried; the first is the paper's.
PRIORITIES = (
    "lifetime",
    "lifetime-sqrt-size",
    "sections-size",
    "sections",
    "area",
    "size",
)
BEST = "best"  # the best plan of all priorities
MAX_SEED = (1 << 63) - 1


@dataclass(frozen=True)
class Progress:
    """How far a method has come.

    peak: bytes of the best plan so far, None before there is one.
    lower_bound: bytes; no plan needs less.
    nodes: what the method counts: decoded orders, or nodes of a search tree.
    seconds: since the method began.
    """

    peak: int | None
    lower_bound: int
    nodes: int
    seconds: float


@dataclass(frozen=True)
class Options:
    """How to solve; a method ignores the options that do not concern it.

    time_limit: seconds; None leaves the limit to the method. With a limit the plan
        depends on the machine; without one the same seed gives the same plan.
    capacity: bytes; stop at the first plan that fits. None asks for the least peak.
    threads: at most so many at once; None for one per core.
    seed: of the random choices, not negative.
    progress: called now and then, from the thread that called the method.
    iterations: orders that `search` decodes; None for the method's default.
    max_nodes: nodes that `exact` visits; None for the method's default.
    mip_solver: one of MIP_SOLVERS.
    priority: of best fit: one of PRIORITIES, or BEST.

    Raises UsageError for values that make no sense.
    """

    time_limit: float | None = None
    capacity: int | None = None
    threads: int | None = None
    seed: int = 0
    progress: Callable[[Progress], None] | None = None
    iterations: int | None = None
    max_nodes: int | None = None
    mip_solver: str = MIP_SOLVERS[0]
    priority: str = PRIORITIES[0]

    def __post_init__(self) -> None:
        limit = self.time_limit
        if limit is not None and not (math.isfinite(limit) and limit >= 0):
            raise UsageError(f"a time limit of {limit} seconds makes no sense")
        for name, least in (
            ("capacity", 0),
            ("threads", 1),
            ("iterations", 0),
            ("max_nodes", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} is {value}, and must be at least {least}")
        if not 0 <= self.seed <= MAX_SEED:
            raise UsageError(f"seed {self.seed} is not from 0 to {MAX_SEED}")
        for what, value, known in (
            ("solver", self.mip_solver, MIP_SOLVERS),
            ("priority", self.priority, (*PRIORITIES, BEST)),
        ):
            if value not in known:
                raise UsageError(
                    f"there is no {what} {value!r}; use one of {', '.join(known)}"
                )

    def workers(self) -> int:
        """How many threads to start."""
        return cores() if self.threads is None else self.threads

    def report(self, progress: Progress) -> None:
        """Call the progress callback, if there is one."""
        if self.progress is not None:
            self.progress(progress)


DEFAULTS = Options()
