"""Lower bounds on the peak of any plan."""

from __future__ import annotations

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.problem import Pieces, Problem, pieces
from memplan.levels import levels


def live_bytes(problem: Problem) -> tuple[Int64Array, Int64Array]:
    """Times and the bytes needed from each time to the next, shape (m,).

    Without gaps, the padded bytes alive, but for the padding of one: only the topmost
    buffer need not be padded, and at best it is the one with most padding. Times ascend
    and start at 0 on a periodic clock. Frees at t come before allocations at t, since
    lifespans are half-open.

    A window left in a gap may lie in the padding of another buffer, so that padded
    sizes and windows must not be added. Instead offsets being multiples of the
    granularity, each unit of it has a first byte, and one owner at most: counted are
    the units whose first byte is used, or the exact bytes, whichever are more.
    """
    used = pieces(problem)
    units = _units(problem, used)
    moments, live = _summed(problem, used, units)
    spare = _spare(problem, used, units)
    if spare.any():
        live = live - _most_alive(problem, used, spare, moments)
    if problem.gaps is not None and problem.granularity > 1:
        exact = _summed(problem, used, used.end - used.begin)[1]
        live = np.maximum(live, exact)
    return moments, live


def padded_live_bytes(problem: Problem) -> tuple[Int64Array, Int64Array]:
    """The same times and the padded bytes alive, or the units of them used in gaps."""
    used = pieces(problem)
    return _summed(problem, used, _units(problem, used))


def lower_bound(problem: Problem) -> int:
    """Bytes no plan can do with less than.

    The most bytes needed at one moment (see `live_bytes`), the most that one buffer
    takes up, or the highest top of a fixed buffer, whichever is highest.
    """
    if not len(problem):
        return 0
    bound = max(_most_needed(problem), int(problem.taken.max()))
    fixed = problem.fixed >= 0
    if fixed.any():
        bound = max(bound, int((problem.fixed + problem.taken)[fixed].max()))
    return bound


def _most_needed(problem: Problem) -> int:
    """The most of `live_bytes`, found where it can be."""
    used = pieces(problem)
    units = _units(problem, used)
    moments, live = _summed(problem, used, units)
    most = int(live.max(initial=0))
    spare = _spare(problem, used, units)
    if spare.any():
        # What is less is less by a unit, and so cannot be the most but for padding.
        fullest = moments[live == most]
        most -= int(_most_alive(problem, used, spare, fullest).min())
    if problem.gaps is not None and problem.granularity > 1:
        exact = _summed(problem, used, used.end - used.begin)[1]
        most = max(most, int(exact.max(initial=0)))
    return most


def _units(problem: Problem, used: Pieces) -> Int64Array:
    """Bytes of the units whose first byte each piece uses; of a whole buffer, all."""
    unit = problem.granularity
    return (-(-used.end // unit) + -used.begin // unit) * unit


def _spare(problem: Problem, used: Pieces, units: Int64Array) -> Int64Array:
    """Bytes of its last unit that each piece leaves free, 0 if it counts for no unit.

    The top of the highest unit counted is at least so far beneath the unit's end.
    """
    unit = problem.granularity
    whole = used.end == problem.size[used.owner]
    end = np.where(whole, problem.taken[used.owner], used.end)
    return np.where(units > 0, -(-end // unit) * unit - end, 0)


def _most_alive(
    problem: Problem, used: Pieces, value: Int64Array, moments: Int64Array
) -> Int64Array:
    """The greatest `value` of the pieces in use from each of `moments` on, or 0.

    moments: ascending, shape (k,). Each piece covers a run of them, or two where it
    wraps around; a run is two overlapping ones of a power of two, which hand down what
    they know to their halves.
    """
    first = np.searchsorted(moments, used.lower)
    last = np.searchsorted(moments, used.upper)
    wraps = used.lower > used.upper
    count = len(moments)
    begin = np.concatenate([first, np.zeros_like(first[wraps])])
    end = np.concatenate([np.where(wraps, count, last), last[wraps]])
    values = np.concatenate([value, value[wraps]])
    covers = (begin < end) & (values > 0)
    begin, end, values = begin[covers], end[covers], values[covers]
    level = np.frexp((end - begin).astype(np.float64))[1] - 1
    best = np.zeros(count, dtype=np.int64)
    for power in range(int(level.max(initial=0)), -1, -1):
        here, length = level == power, 1 << power
        np.maximum.at(best, begin[here], values[here])
        np.maximum.at(best, end[here] - length, values[here])
        if power:
            half = length >> 1
            best[half:] = np.maximum(best[half:], best[:-half])
    return best


def _summed(
    problem: Problem, used: Pieces, weight: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Moments, and the weight of the pieces used from each to the next."""
    base = int(weight[used.lower > used.upper].sum())
    # These are moments whatever is used: where the clock starts, and every birth and
    # death even if a gap comes first or last.
    also = [np.zeros(int(problem.length is not None), dtype=np.int64)]
    if problem.gaps is not None:
        also += [problem.lower, problem.upper]
    moments, sums = levels(used.lower, used.upper, weight, np.concatenate(also))
    return moments, base + sums
