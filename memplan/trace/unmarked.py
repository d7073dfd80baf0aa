"""A loop that no mark tells of, found in the sequence of requests itself.

A pipeline may call one part of itself twenty times within a single forward call, and a
program without modules marks nothing at all. Their loop shows all the same: the sizes
asked for repeat, again and again, and the largest block that is asked for repeatedly is
among them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memplan.arrays import Int64Array
from memplan.trace.steps import Timeline
from memplan.trace.trace import Mark

LEAST_PASSES = 3
MOST_PERIODS = 64  # candidates that are tried
LEAST_PART = 8  # one part in so many of the largest block must be in the loop
_STRIDES = 16  # of the largest block: so many may be in one pass


def unmarked_steps(line: Timeline) -> Timeline | None:
    """`line`, cut where each pass of its longest loop begins; None if there is none.

    The loop repeats at least LEAST_PASSES times with equal sizes, and the largest block
    that comes so often, and is freed, is in it; one that is small beside the largest
    of all is not worth a plan. Its passes begin where least is alive.
    """
    found = _longest_loop(line)
    if found is None:
        return None
    begin, period, count = found
    first = begin + _quietest(line, begin + period, period)
    first -= period if first - period >= begin else 0
    passes = (begin + count - first) // period
    if passes < LEAST_PASSES:
        return None
    cuts = first + period * np.arange(passes + 1, dtype=np.int64)
    cuts = cuts[cuts < len(line.size)]
    return replace(
        line,
        bounds=np.append(0, line.lower[cuts]),
        first=np.append(0, cuts),
        mark=Mark.NONE,
    )


def _longest_loop(line: Timeline) -> tuple[int, int, int] | None:
    """First request, requests a pass, and requests in all; among loops that cover
    nearly as many requests the one with the shortest pass."""
    size = line.size
    freed = size[line.upper != Timeline.NEVER]
    kinds, counts = np.unique(freed, return_counts=True)
    often = kinds[counts >= LEAST_PASSES]
    if not len(often) or often[-1] * LEAST_PART < kinds[-1]:
        return None
    places = np.flatnonzero(size == often[-1])
    best: tuple[int, int, int] | None = None
    for period in _periods(places):
        same = size[period:] == size[:-period]
        for begin, length in _runs(same):
            inside = np.searchsorted(places, [begin, begin + length + period])
            if length + period < LEAST_PASSES * period or inside[0] == inside[1]:
                continue
            # A longer pass must be worth it.
            if best is None or length + period > best[2] + best[2] // 8:
                best = begin, period, length + period
    return best


def _periods(places: Int64Array) -> list[int]:
    """Distances between requests for the largest block, ascending."""
    found: set[int] = set()
    for stride in range(1, min(_STRIDES, len(places) - 1) + 1):
        apart, often = np.unique(places[stride:] - places[:-stride], return_counts=True)
        found.update(apart[np.argsort(-often, kind="stable")][:4].tolist())
    return sorted(found)[:MOST_PERIODS]


def _runs(same: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[tuple[int, int]]:
    """Begin and length of the longest run of True, if there is one."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], same.astype(np.int8), [0]])))
    begins, ends = edges[::2], edges[1::2]
    if not len(begins):
        return []
    longest = int(np.argmax(ends - begins))
    return [(int(begins[longest]), int(ends[longest] - begins[longest]))]


def _quietest(line: Timeline, begin: int, period: int) -> int:
    """How far into the pass from request `begin` on the fewest bytes are alive."""
    rows = np.arange(begin, begin + period)
    moments = line.lower[rows]
    order = np.argsort(line.upper, kind="stable")
    gone = np.append(0, np.cumsum(line.size[order]))
    made = np.append(0, np.cumsum(line.size))
    freed = np.searchsorted(line.upper[order], moments, side="right")
    alive = made[rows] - gone[freed]
    return int(np.argmin(alive))
