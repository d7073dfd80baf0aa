"""What a search is asked, and what it found."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from memplan.blocking.cost.placement import BufferMemory
from memplan.blocking.cost.timed_memories import FrontPoint
from memplan.blocking.nest.array import MappingSearch
from memplan.blocking.nest.nest import Nest
from memplan.errors import UsageError

METHODS = ("whole", "divisors")


@dataclass(frozen=True)
class SearchProgress:
    """How far a search is: pJ of the best nest so far, how many were evaluated, and
    seconds since it began."""

    energy: float
    evaluated: int
    seconds: float


ProgressReport = Callable[[SearchProgress], None]


class Space(str, Enum):
    """The nests that a bound or a proof is about."""

    WHOLE = "whole"
    DIVISORS = "divisors, window in one piece"


@dataclass(frozen=True)
class Options:
    """How to search.

    method: "whole": over all nests, any extents and the window's loops anywhere; the
    result has a bound, and is proved where it reaches that. "divisors": over those
    whose extents divide each other, with the window in one piece, all choices of
    buffers; proved.

    time_limit: seconds, after which the best so far is returned; threads: None for all.
    minimize: "energy", "cycles", or "edp", which
    is energy times cycles; front: also keep what lies between the least of both.
    target: only nests that code for these vectors runs well, of least energy; the
    register tile is the datapath then (`best_for_code`).
    Raises UsageError where these make no sense.
    """

    method: str = METHODS[0]
    time_limit: float | None = None
    threads: int | None = None
    minimize: str = "energy"
    front: bool = False
    target: str | None = None

    def __post_init__(self) -> None:
        check_time_limit(self.time_limit)
        if self.method not in METHODS:
            raise UsageError(
                f"there is no method {self.method!r}: take {', '.join(METHODS)}"
            )
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"threads is {self.threads}, and must be at least 1")
        if self.target is not None and (self.minimize != "energy" or self.front):
            raise UsageError(
                "nests for code are those of least energy: no other counts"
            )


def check_time_limit(time_limit: float | None) -> None:
    """Raises UsageError where it is negative or no number."""
    if time_limit is not None and not (math.isfinite(time_limit) and time_limit >= 0):
        raise UsageError(f"a time limit of {time_limit} seconds makes no sense")


@dataclass(frozen=True)
class Result:
    """The best nest found, and pJ of all its accesses.

    minimized: "energy", "cycles" or "edp"; value: that of the nest, in pJ, cycles or pJ
    times cycles, None for its energy; front: by cycles, where it was asked for.
    lower_bound: what no nest of `space` can do with less than; None if the method
    knows none. proved: whether the nest is known to be optimal in that space.
    complete: whether the search came to its end; it did not where time ran out, or
    Ctrl-C was pressed, which `interrupted` says. tried: nests evaluated, of "whole" and
    "divisors" partial ones, too. memories: of the buffers that have one, innermost
    first, those that take the least; None where the objective's own rule says.
    free_energy: pJ of the best nest found on the same datapath, whether code runs it
    well or not; None where that was not asked. mapping: how its datapath was chosen,
    if it was.
    """

    nest: Nest
    method: str
    energy: float
    seconds: float
    tried: int
    complete: bool
    lower_bound: float | None = None
    proved: bool = False
    memories: tuple[BufferMemory, ...] | None = None
    space: Space = Space.DIVISORS
    interrupted: bool = False
    minimized: str = "energy"
    value: float | None = None
    front: tuple[FrontPoint, ...] = ()
    free_energy: float | None = None
    mapping: MappingSearch | None = None

    @property
    def gap(self) -> float | None:
        """How far above the lower bound the nest is, relative to it; 0 if proved."""
        if self.proved:
            return 0.0
        value = self.energy if self.value is None else self.value
        return None if self.lower_bound is None else value / self.lower_bound - 1
