"""Lower bounds on the peak of any plan."""

from __future__ import annotations

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.pieces import Pieces, pieces
from memplan.core.problem import Problem


def live_bytes(problem: Problem) -> tuple[Int64Array, Int64Array]:
    """Times and the bytes needed from each time to the next, shape (m,) each.

    Without gaps, the padded bytes alive. Times ascend and start at 0 on a periodic
    clock. Frees at t come before allocations at t, since lifespans are half-open.

    A window left in a gap may lie in the padding of another buffer, so that padded
    sizes and windows must not be added. Instead offsets being multiples of the
    granularity, each unit of it has a first byte, and one owner at most: counted are
    the units whose first byte is used, or the exact bytes, whichever are more.
    """
    used, unit = pieces(problem), problem.granularity
    # ceil(end) - ceil(begin), in units: for a whole buffer, its padded size.
    units = (-(-used.end // unit) + -used.begin // unit) * unit
    moments, live = _summed(problem, used, units)
    if problem.gaps is not None and unit > 1:
        exact = _summed(problem, used, used.end - used.begin)[1]
        live = np.maximum(live, exact)
    return moments, live


def lower_bound(problem: Problem) -> int:
    """Bytes no plan can do with less than.

    The most bytes needed at one moment (see `live_bytes`), the largest padded size, or
    the highest top of a fixed buffer, whichever is highest. Rounded up to the
    granularity; without gaps it is a sum of padded sizes, and a multiple already.
    """
    if not len(problem):
        return 0
    bound = max(int(live_bytes(problem)[1].max()), int(problem.padded.max()))
    fixed, unit = problem.fixed >= 0, problem.granularity
    if fixed.any():
        bound = max(bound, int((problem.fixed + problem.padded)[fixed].max()))
    return -(-bound // unit) * unit


def _summed(
    problem: Problem, used: Pieces, weight: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Moments, and the weight of the pieces used from each to the next."""
    base = int(weight[used.lower > used.upper].sum())
    # These are moments whatever is used: where the clock starts, and every birth and
    # death even if a gap comes first or last.
    moments = [np.zeros(int(problem.length is not None), dtype=np.int64)]
    if problem.gaps is not None:
        moments += [problem.lower, problem.upper]
    times = np.concatenate([used.lower, used.upper, *moments])
    deltas = np.zeros(len(times), dtype=np.int64)
    deltas[: 2 * len(used)] = np.concatenate([weight, -weight])
    moment, where = np.unique(times, return_inverse=True)
    change = np.zeros(len(moment), dtype=np.int64)
    np.add.at(change, where, deltas)
    return moment, base + np.cumsum(change)
