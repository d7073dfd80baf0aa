"""What a user may ask of any method, and what a method tells while it works."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from memplan.cores import cores
from memplan.errors import UsageError

MIP_SOLVERS = ("cbc", "highs")
MAX_SEED = (1 << 63) - 1


@dataclass(frozen=True)
class Progress:
    """How far a method has come.

    peak: bytes of the best plan so far, None before there is one.
    lower_bound: bytes that no plan can do with less than.
    nodes: what the method counts: decoded orders, or nodes of a search tree.
    seconds: since the method began.
    """

    peak: int | None
    lower_bound: int
    nodes: int
    seconds: float


@dataclass(frozen=True)
class Options:
    """How to solve; a method takes no heed of what it has no use for.

    time_limit: seconds; None leaves the limit to the method. With one, how good the
        plan is depends on the machine; without, the same seed gives the same plan.
    capacity: bytes; asks only whether the buffers fit, and in how many ways does not
        matter. None asks for the least peak.
    threads: how many may work at once; None for one a core.
    seed: of the random choices, not negative.
    progress: called now and then, from the thread that called the method.
    iterations: orders that `search` decodes; None for as many as it thinks best.
    max_nodes: nodes that `exact` visits; None for as many as it thinks best.
    mip_solver: one of MIP_SOLVERS.
    without: pruning rules that `exact` is to do without, of
        `memplan.solving.exact_ladder.RULES`: slower, with the same answers.

    Raises UsageError for values that make no sense.
    """

    time_limit: float | None = None
    capacity: int | None = None
    threads: int | None = None
    seed: int = 0
    progress: Callable[[Progress], None] | None = None
    iterations: int | None = None
    max_nodes: int | None = None
    mip_solver: str = "cbc"
    without: tuple[str, ...] = ()

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
        if self.mip_solver not in MIP_SOLVERS:
            known = ", ".join(MIP_SOLVERS)
            raise UsageError(f"there is no solver {self.mip_solver!r}: take {known}")

    def workers(self) -> int:
        """How many threads to start."""
        return cores() if self.threads is None else self.threads

    def report(self, progress: Progress) -> None:
        """Hand `progress` to whoever wants to know."""
        if self.progress is not None:
            self.progress(progress)


DEFAULTS = Options()
