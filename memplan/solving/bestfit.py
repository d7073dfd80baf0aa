"""The paper's best fit (profile-guided memory optimization, section 3.2).

Repeat until every buffer is placed: take the lowest *offset line*, the leftmost among
equals; place there the buffer with the highest priority of those that fit inside it;
if none fits, lift the line to its lowest neighbour and merge them, or all three if both
neighbours are equally low. At first one line at offset 0 spans all time.

The paper's priority is lifetime; five others are here, and none is the best everywhere.
The paper gives no rule for ties: equal priorities go by lifetime, then by size, both
descending, then by index. Lines of equal height that end up side by side without a
lift stay separate until one joins them. With one alignment for all, sizes are rounded
up to it; with several, a buffer goes to the line's height rounded up to its own.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Float64Array, Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan, Provenance
from memplan.core.problem import FREE, Problem
from memplan.native import _dsa
from memplan.solving.options import BEST, DEFAULTS, PRIORITIES, Options, Progress
from memplan.solving.placing import (
    lifetimes,
    place_around,
    place_pieces,
    quietest_moment,
    spans,
)

Order: TypeAlias = npt.NDArray[np.int32]


def solve(problem: Problem, options: Options = DEFAULTS) -> Plan:
    """The Plan that best fit finds by `options.priority`.

    Raises NoPlanError where fixed offsets collide.
    """
    name = options.priority
    if name == BEST:
        offsets, name = best_of_six(problem, options)
    elif name == PRIORITIES[0]:
        return Plan.of(problem, best_fit(problem), "bestfit")
    else:
        offsets = best_fit(problem, ranked(problem, merits(problem)[name]))
    return Plan.of(problem, offsets, Provenance("bestfit", note=f"by {name}"))


def best_of_six(
    problem: Problem, options: Options = DEFAULTS
) -> tuple[Int64Array, str]:
    """Offsets in bytes, shape (n,), by the best of six priorities, and its name.

    Stops at the lower bound, within the capacity if there is one, or when time is up.
    Raises NoPlanError where fixed offsets collide.
    """
    start = time.perf_counter()
    bound = lower_bound(problem)
    goal = max(bound, options.capacity or 0)
    # The paper's order alone needs no floats, and is often enough.
    best, winner = best_fit(problem), PRIORITIES[0]
    peak = problem.peak(best)
    if peak <= goal:
        return best, winner
    for tried, (name, merit) in enumerate(merits(problem).items()):
        seconds = time.perf_counter() - start
        options.report(Progress(peak, bound, tried, seconds))
        if options.time_limit is not None and seconds >= options.time_limit:
            break
        if name == PRIORITIES[0]:
            continue
        offsets = best_fit(problem, ranked(problem, merit))
        if problem.peak(offsets) < peak:
            best, winner, peak = offsets, name, problem.peak(offsets)
        if peak <= goal:
            break
    return best, winner


def merits(problem: Problem) -> dict[str, Float64Array]:
    """The six merits of each buffer by priority, positive, shape (n,) each.

    They are made of ticks lived, sections lived and bytes. A section is a stretch of
    time in which nothing is allocated or freed.
    """
    measured = (lifetimes(problem), section_lifetimes(problem), problem.padded)
    life, sections, size = (array.astype(np.float64) for array in measured)
    return {
        "lifetime": life,
        "lifetime-sqrt-size": life * np.sqrt(size),
        "sections-size": sections * size,
        "sections": sections,
        "area": life * size,
        "size": size,
    }


def section_lifetimes(problem: Problem) -> Int64Array:
    """Sections each buffer lives through, int64, shape (n,)."""
    times = [problem.lower, problem.upper]
    if problem.length is not None:
        times.append(np.array([0, problem.length], dtype=np.int64))
    moments = np.unique(np.concatenate(times))
    lived = np.searchsorted(moments, problem.upper)
    lived -= np.searchsorted(moments, problem.lower)
    lived += np.where(problem.wraps, len(moments) - 1, 0)
    return lived.astype(np.int64)


def ranked(problem: Problem, merit: Float64Array) -> Order:
    """Indices of all buffers, the highest merit first, int32, shape (n,)."""
    order = np.lexsort((-problem.padded, -lifetimes(problem), -merit))
    return order.astype(np.int32)


def best_fit(problem: Problem, order: Order | None = None) -> Int64Array:
    """Offsets in bytes, shape (n,).

    order: indices of all buffers, int32, shape (n,), the highest priority first; None
        for the paper's, longest lifetime first.

    A skyline cannot represent free space below a fixed buffer; problems with fixed
    offsets use `place_around` in the same order. Those with gaps in lifespans use
    `place_pieces`.
    """
    if order is None:
        order = _dsa.longest_first(lifetimes(problem), problem.padded)
    if problem.gaps is not None:
        return _with_gaps(problem, order)
    if (problem.fixed != FREE).any():
        return place_around(problem, order=order)
    start, end = spans(problem, quietest_moment(problem))
    period = problem.length or 0
    across = (end > period) & (period > 0)
    if across.any():
        return _around(problem, order, start, end, across)
    return _decoder(problem, start, end).decode(order)


def _with_gaps(problem: Problem, order: Order) -> Int64Array:
    """The better of two ways to pack buffers with gaps in their lifespans.

    They are placed in this order, each as low as it can go. Or they are packed as if
    there were no gaps, and then lowered into them from the bottom up, which never
    raises one. Neither is always better.
    """
    direct = place_pieces(problem, order)
    # Fixed buffers may need each other's gaps.
    fixed = (problem.fixed != FREE).any()
    if fixed or problem.peak(direct) == lower_bound(problem):
        return direct
    settled = settle(problem, best_fit(replace(problem, gaps=None), order))
    return min(direct, settled, key=problem.peak)


def settle(problem: Problem, offsets: Int64Array) -> Int64Array:
    """Offsets of buffers lowered into each other's gaps, from the bottom up."""
    lowest_first = np.argsort(offsets, kind="stable").astype(np.int32)
    return place_pieces(problem, lowest_first)


def _around(
    problem: Problem,
    order: Order,
    start: Int64Array,
    end: Int64Array,
    across: BoolArray,
) -> Int64Array:
    """The better of two ways to treat the buffers alive across the quietest moment.

    On a circle of offset lines they are buffers like any other. Or they are stacked
    from offset 0, in this order, and the rest is packed above them on a clock cut open
    there. Neither is always better; usually the circle is.
    """
    decoder = _decoder(problem, start, end, problem.length)
    circle = decoder.decode(order)
    if problem.peak(circle) == lower_bound(problem):
        return circle
    pile = decoder.decode(order[~across[order]], stack=order[across[order]])
    return min(circle, pile, key=problem.peak)


def _decoder(
    problem: Problem, start: Int64Array, end: Int64Array, period: int | None = None
) -> _dsa.BestFit:
    # Padded sizes stack up to multiples of the granularity by themselves.
    uniform = bool((problem.alignment == problem.granularity).all())
    alignment = None if uniform else problem.alignment
    return _dsa.BestFit(start, end, problem.padded, alignment, period or 0)
