"""Lower bounds on the peak of any plan."""

from __future__ import annotations

import numpy as np

from memplan.core.problem import Int64Array, Problem


def live_bytes(problem: Problem) -> tuple[Int64Array, Int64Array]:
    """Times and the padded bytes alive from each time to the next, shape (m,) each.

    Times ascend and start at 0 on a periodic clock. Frees at t come before
    allocations at t, since lifespans are half-open.
    """
    wraps = problem.wraps
    base = int(problem.padded[wraps].sum())
    times = np.concatenate([problem.lower, problem.upper])
    deltas = np.concatenate([problem.padded, -problem.padded])
    if problem.length is not None:
        times = np.append(times, 0)
        deltas = np.append(deltas, 0)
    moments, where = np.unique(times, return_inverse=True)
    change = np.zeros(len(moments), dtype=np.int64)
    np.add.at(change, where, deltas)
    return moments, base + np.cumsum(change)


def lower_bound(problem: Problem) -> int:
    """Bytes no plan can do with less than.

    The largest sum of padded sizes alive at one moment, or the highest top of a
    fixed buffer, if higher. Rounded up to the greatest common divisor of the
    padded sizes, where offsets are free to be sums of sizes.
    """
    if not len(problem):
        return 0
    bound = int(live_bytes(problem)[1].max())
    fixed = problem.fixed >= 0
    if fixed.any():
        return max(bound, int((problem.fixed + problem.padded)[fixed].max()))
    if (problem.alignment == problem.granularity).all():
        unit = int(np.gcd.reduce(problem.padded))
        bound = -(-bound // unit) * unit
    return bound
