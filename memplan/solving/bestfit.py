"""The paper's best fit (profile-guided memory optimization, section 3.2).

Repeat until every buffer is placed: take the lowest *offset line*, the leftmost among
equals; place there the buffer with the longest lifetime of those that fit inside it;
if none fits, lift the line to its lowest neighbour and merge them, or all three if both
neighbours are equally low. At first one line at offset 0 spans all time.

The paper leaves open, and here it is so: equal lifetimes go by size descending, then
by index. Lines of equal height that come to lie side by side, without a lift, stay
apart until one joins them. With one alignment for all, sizes are rounded up to it;
where alignments differ, a buffer goes to the line's height rounded up to its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan
from memplan.core.problem import FREE, Problem
from memplan.native import _dsa
from memplan.solving.clock import lifetimes, quietest_moment, spans
from memplan.solving.gapped import place_pieces
from memplan.solving.greedy import place_around
from memplan.solving.options import DEFAULTS, Options

Order: TypeAlias = npt.NDArray[np.int32]


def solve(problem: Problem, options: Options = DEFAULTS) -> Plan:
    """The Plan that best fit finds. Raises NoPlanError where fixed offsets collide."""
    return Plan.of(problem, best_fit(problem), "bestfit")


def best_fit(problem: Problem, order: Order | None = None) -> Int64Array:
    """Offsets in bytes, shape (n,).

    order: indices of all buffers, int32, shape (n,): of those that fit on a line, the
        first of this order is placed; None for the paper's, longest lifetime first.

    A skyline cannot show room beneath a fixed buffer: with fixed offsets, buffers go
    into the room between instead, in the same order (`place_around`). Nor can it show
    the room in the gaps of lifespans (`place_pieces`).
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
    there were no gaps, and then let down into them from the lowest up: none rises by
    that. Neither always wins.
    """
    direct = place_pieces(problem, order)
    # Fixed buffers may need each other's gaps.
    fixed = (problem.fixed != FREE).any()
    if fixed or problem.peak(direct) == lower_bound(problem):
        return direct
    whole = best_fit(replace(problem, gaps=None), order)
    lowest_first = np.argsort(whole, kind="stable").astype(np.int32)
    settled = place_pieces(problem, lowest_first)
    return min(direct, settled, key=problem.peak)


def _around(
    problem: Problem,
    order: Order,
    start: Int64Array,
    end: Int64Array,
    across: BoolArray,
) -> Int64Array:
    """The better of two ways to treat the buffers alive across the quietest moment.

    On a circle of offset lines they are buffers like any other. Or they are piled up
    from offset 0, in this order, and the rest is packed above on a clock cut open
    there. Neither always wins; mostly it is the circle.
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
