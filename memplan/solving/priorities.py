"""Six orders of priority for best fit, none the best everywhere.

The decoder is the paper's (profile-guided memory optimization, section 3.2): the
lowest offset line first, and on it the buffer that comes first in some order. The
paper's order is by lifetime. Equal merits go by lifetime, then by size, both
descending, then by index. A *section* is a stretch of time in which nothing is
allocated or freed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from memplan.arrays import Float64Array, Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan, Provenance
from memplan.core.problem import Problem
from memplan.solving.bestfit import best_fit
from memplan.solving.clock import lifetimes
from memplan.solving.options import DEFAULTS, Options, Progress

# From ticks lived, sections lived and bytes, each of shape (n,), to merits; in the
# order in which they are tried: the paper's first.
MERITS: dict[str, Callable[[Float64Array, Float64Array, Float64Array], Float64Array]]
MERITS = {
    "lifetime": lambda life, sections, size: life,
    "lifetime-sqrt-size": lambda life, sections, size: life * np.sqrt(size),
    "sections-size": lambda life, sections, size: sections * size,
    "sections": lambda life, sections, size: sections,
    "area": lambda life, sections, size: life * size,
    "size": lambda life, sections, size: size,
}


def section_lifetimes(problem: Problem) -> Int64Array:
    """Sections each buffer lives through, int64, shape (n,)."""
    times = [problem.lower, problem.upper]
    if problem.length is not None:
        times.append(np.array([0, problem.length], dtype=np.int64))
    moments = np.unique(np.concatenate(times))
    born, dies = np.searchsorted(moments, problem.lower), problem.upper
    lived = np.searchsorted(moments, dies) - born
    lived += np.where(problem.wraps, len(moments) - 1, 0)
    return lived.astype(np.int64)


def merits(problem: Problem) -> dict[str, Float64Array]:
    """The six merits of each buffer by name, positive, shape (n,) each."""
    measured = (lifetimes(problem), section_lifetimes(problem), problem.padded)
    life, sections, size = (array.astype(np.float64) for array in measured)
    return {name: merit(life, sections, size) for name, merit in MERITS.items()}


def ranked(problem: Problem, merit: Float64Array) -> npt.NDArray[np.int32]:
    """Indices of all buffers, the highest merit first, int32, shape (n,)."""
    order = np.lexsort((-problem.padded, -lifetimes(problem), -merit))
    return order.astype(np.int32)


def solve(problem: Problem, options: Options = DEFAULTS) -> Plan:
    """The best Plan of all six orders; the first of equals."""
    offsets, name = best_of_six(problem, options)
    return Plan.of(problem, offsets, Provenance("skyline", note=f"by {name}"))


def best_of_six(
    problem: Problem, options: Options = DEFAULTS
) -> tuple[Int64Array, str]:
    """Offsets in bytes, shape (n,), and the name of the order they come from.

    Stops at the lower bound, within the capacity if there is one, or when time is up.
    Raises NoPlanError where fixed offsets collide.
    """
    start = time.perf_counter()
    bound = lower_bound(problem)
    goal = max(bound, options.capacity or 0)
    # The paper's order alone needs no floats, and is often enough.
    best, winner = best_fit(problem), "lifetime"
    peak = problem.peak(best)
    if peak <= goal:
        return best, winner
    for tried, (name, merit) in enumerate(merits(problem).items()):
        seconds = time.perf_counter() - start
        options.report(Progress(peak, bound, tried, seconds))
        if options.time_limit is not None and seconds >= options.time_limit:
            break
        if name == "lifetime":
            continue
        offsets = best_fit(problem, ranked(problem, merit))
        if problem.peak(offsets) < peak:
            best, winner, peak = offsets, name, problem.peak(offsets)
        if peak <= goal:
            break
    return best, winner


def _solve_by(name: str, problem: Problem, options: Options = DEFAULTS) -> Plan:
    offsets = best_fit(problem, ranked(problem, merits(problem)[name]))
    return Plan.of(problem, offsets, f"bestfit-{name}")


by_lifetime_sqrt_size = partial(_solve_by, "lifetime-sqrt-size")
by_sections_size = partial(_solve_by, "sections-size")
by_sections = partial(_solve_by, "sections")
by_area = partial(_solve_by, "area")
by_size = partial(_solve_by, "size")
