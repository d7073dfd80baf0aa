"""Lifetimes, and where best to cut a periodic clock open."""

from __future__ import annotations

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.bounds import padded_live_bytes
from memplan.core.problem import Problem


def lifetimes(problem: Problem) -> Int64Array:
    """Ticks each buffer lives, shape (n,): upper - lower, across the period's end."""
    if problem.length is None:
        return problem.upper - problem.lower
    around = problem.length - problem.lower + problem.upper
    return np.where(problem.wraps, around, problem.upper - problem.lower)


def quietest_moment(problem: Problem) -> int:
    """The tick of the clock that the fewest padded bytes are alive across.

    A buffer that is born at a tick, or dies at it, is not alive across it. The
    earliest among equals, so that 0 comes first; 0 on a linear clock.
    """
    if problem.length is None:
        return 0
    moments, live = padded_live_bytes(problem)
    born = np.zeros(len(moments), dtype=np.int64)
    np.add.at(born, np.searchsorted(moments, problem.lower), problem.padded)
    # The end of the period is its beginning, which is on the list.
    across = (live - born)[moments < problem.length]
    return int(moments[np.argmin(across)])


def spans(problem: Problem, moment: int = 0) -> tuple[Int64Array, Int64Array]:
    """Half-open lifespans [start, end), shape (n,) each, counted from `moment`.

    On a periodic clock 0 <= start < length, and end exceeds the length for a buffer
    that is alive across the moment. A linear clock stays as it is.
    """
    if problem.length is None:
        return problem.lower, problem.upper
    start = np.mod(problem.lower - moment, problem.length)
    return start, start + lifetimes(problem)
