"""The best nest that a search has found, and when the search has to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from memplan.arrays import Float64Array, Int64Array
from memplan.blocking.nest.orders import Blocking, Extents, Order
from memplan.blocking.search.result import Result

_EVERY = 0.1  # seconds between two reports


@dataclass(frozen=True)
class SearchProgress:
    """How far a search is: pJ of the best nest so far, how many were evaluated, and
    seconds since it began."""

    energy: float
    evaluated: int
    seconds: float


ProgressReport = Callable[[SearchProgress], None]


class OutOfTime(Exception):  # noqa: N818 - ends a search; it is no error
    """The time limit is over; the incumbent is what was found."""


class Incumbent:
    """Keeps the best of all nests offered."""

    def __init__(
        self,
        time_limit: float | None = None,
        progress: ProgressReport | None = None,
    ) -> None:
        self.order: Order | None = None
        self.extents: Extents = ()
        self.energy = math.inf
        self.evaluated = 0
        self._progress = progress
        self._limit = math.inf if time_limit is None else time_limit
        self._start = self._reported = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the search began."""
        return time.monotonic() - self._start

    def offer(self, energies: Float64Array, order: Order, extents: Int64Array) -> None:
        """Take note of nests, as the batch evaluator takes them.

        Raises OutOfTime after the limit.
        """
        best = int(np.argmin(energies))
        if energies[best] < self.energy:
            self.energy = float(energies[best])
            self.order = order
            self.extents = tuple(int(n) for n in extents[:, best])
        self.evaluated += len(energies)
        now = time.monotonic()
        if self._progress is not None and now - self._reported >= _EVERY:
            self._reported = now
            done = SearchProgress(self.energy, self.evaluated, now - self._start)
            self._progress(done)
        if now - self._start > self._limit:
            raise OutOfTime


def found_by(
    method: str, blocking: Blocking, incumbent: Incumbent, search: Callable[[], None]
) -> Result:
    """What `search`, which offers nests to the incumbent, finds until it ends, its time
    is over, or Ctrl-C. Raises these two again where there is no nest yet."""
    complete, interrupted = True, False
    try:
        search()
    except (OutOfTime, KeyboardInterrupt) as end:
        if incumbent.order is None:
            raise
        complete, interrupted = False, isinstance(end, KeyboardInterrupt)
    assert incumbent.order is not None
    order, extents = blocking.tidied(incumbent.order, incumbent.extents)
    return Result(
        blocking.nest(order, extents),
        method,
        incumbent.energy,
        incumbent.seconds,
        incumbent.evaluated,
        complete,
        interrupted=interrupted,
    )
