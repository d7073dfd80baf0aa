"""The integer program of a packing problem, as plain numbers.

Offsets and padded sizes count in units of bytes: the greatest common divisor of all
that matters, since big integers ruin the tolerances of solvers. The peak is counted in
the same units, but need not be a whole number: the topmost buffer needs no padding.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from memplan.arrays import BoolArray, Int64Array
from memplan.core.problem import FREE, Problem
from memplan.errors import UsageError
from memplan.solving.clock import lifetimes, spans

_BYTES_PER_PAIR = 16_000  # of the model, its file and the solver: measured, doubled
_FALLBACK_MEMORY = 2 << 30


@dataclass(frozen=True, eq=False)
class Model:
    """n buffers and m pairs that are alive at the same time.

    size, fixed: in units, int64, shape (n,); fixed is -1 where a buffer is free.
    slack: bytes of padding in each size, int64, shape (n,): they do not raise the peak.
    step: x must be a multiple of it, in units, int64, shape (n,); None for 1.
    first, second: the buffers of each pair, int64, shape (m,), first < second.
    settled: pairs whose first lies below the second, without loss; bool, shape (m,).
    floor, ceiling: the least peak is looked for between them, in bytes, both included.
    unit: bytes. grain: bytes that all peaks are multiples of, a divisor of the unit.
    start: offsets to begin with, in units, that keep to all of that; or None.
    """

    size: Int64Array
    slack: Int64Array
    step: Int64Array | None
    fixed: Int64Array
    first: Int64Array
    second: Int64Array
    settled: BoolArray
    floor: int
    ceiling: int
    unit: int
    grain: int
    start: Int64Array | None

    @property
    def most(self) -> int:
        """Units that no padded size ends above, if the peak is within the ceiling."""
        return int((self.ceiling + self.slack).max(initial=0)) // self.unit


def build(
    problem: Problem, offsets: Int64Array, bound: int, capacity: int | None = None
) -> Model:
    """The integer program, to be started from `offsets`.

    bound: bytes no plan can do with less than. Nothing above the offsets' peak is
    looked for, nor above the capacity (bytes) if that is lower.

    Raises UsageError for more pairs than memory allows.
    """
    unit = _unit(problem)
    mixed = bool((problem.alignment != problem.granularity).any())
    size = problem.padded // unit
    fixed = np.where(problem.fixed == FREE, FREE, problem.fixed // unit)
    start: Int64Array | None = offsets // unit
    ceiling = problem.peak(offsets)
    if capacity is not None and capacity < ceiling:
        ceiling, start = capacity, None
    first, second = pairs(problem)
    if problem.length is not None:
        bound = max(bound, clique_bytes(problem, first, second))
    twins = _twins(problem)
    settled = twins[first] == twins[second]
    if not mixed and (fixed == FREE).all() and not problem.slack.any():
        pinned = _pair_to_pin(size, first, second, twins)
        if pinned is not None:
            settled[pinned] = True
            if start is not None and start[first[pinned]] > start[second[pinned]]:
                # The same, turned upside down.
                start = ceiling // unit - start - size
    if start is not None:
        start = _twins_in_order(start, twins)
    return Model(
        size=size,
        slack=problem.slack,
        step=problem.alignment // unit if mixed else None,
        fixed=fixed,
        first=first,
        second=second,
        settled=settled,
        floor=bound,
        ceiling=ceiling,
        unit=unit,
        grain=int(np.gcd.reduce(np.append(problem.slack, unit))),
        start=start,
    )


def pairs(problem: Problem) -> tuple[Int64Array, Int64Array]:
    """Indices of all pairs that are alive at the same time, the lower one first.

    Pairs that are both fixed are left out. Raises UsageError for too many.
    """
    limit = most_pairs()
    count = _count_pairs(problem)
    if count > limit:
        raise UsageError(
            f"{len(problem):,} buffers make {count:,} pairs, and the memory of this "
            f"machine is enough for an integer program of {limit:,}; take --method "
            "auto, search or exact"
        )
    start, _ = spans(problem)
    life = lifetimes(problem)
    free = problem.fixed == FREE
    seconds = []
    for i in range(len(problem)):
        later = start[i + 1 :] - start[i]
        if problem.length is None:
            meet = (later < life[i]) & (-later < life[i + 1 :])
        else:
            meet = np.mod(later, problem.length) < life[i]
            meet |= np.mod(-later, problem.length) < life[i + 1 :]
        meet &= free[i] | free[i + 1 :]
        seconds.append(np.flatnonzero(meet) + i + 1)
    if not seconds:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    first = np.repeat(np.arange(len(problem)), [len(found) for found in seconds])
    return first.astype(np.int64), np.concatenate(seconds).astype(np.int64)


def clique_bytes(problem: Problem, first: Int64Array, second: Int64Array) -> int:
    """Bytes that a large set of buffers that all meet each other needs: padded ones,
    but for the topmost's.

    On a circle they need not all be alive at one moment to need room side by side, and
    solvers are slow to find that out. A greedy choice from each buffer on.
    """
    n = len(problem)
    meet = np.zeros((n, n), dtype=np.bool_)
    meet[first, second] = meet[second, first] = True
    largest = np.argsort(-problem.padded, kind="stable")
    best = 0
    for seed in range(n):
        # Those met by all chosen so far, the largest first.
        candidates, total = meet[seed].copy(), int(problem.padded[seed])
        spare = int(problem.slack[seed])
        for other in largest:
            if candidates[other]:
                total += int(problem.padded[other])
                spare = max(spare, int(problem.slack[other]))
                candidates &= meet[other]
        best = max(best, total - spare)
    return best


def most_pairs() -> int:
    """How many pairs fit into the memory that is free now."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        free = _FALLBACK_MEMORY
    return free // _BYTES_PER_PAIR


def _count_pairs(problem: Problem) -> int:
    """Pairs alive at the same time; on a circle some may be counted twice."""
    start, end = spans(problem)
    births = np.sort(start)
    inside = np.searchsorted(births, end) - np.searchsorted(births, start)
    count = int(inside.sum()) - len(problem)
    if problem.length is not None:
        count += int(np.searchsorted(births, end - problem.length).sum())
        return count
    # Of those born at the same tick, each was counted by the other.
    _, together = np.unique(start, return_counts=True)
    return count - int((together * (together - 1) // 2).sum())


def _unit(problem: Problem) -> int:
    """Bytes that offsets in some best packing, and padded sizes, are multiples of."""
    parts = [problem.padded, problem.fixed[problem.fixed != FREE]]
    if (problem.alignment != problem.granularity).any():
        parts.append(problem.alignment)
    return int(np.gcd.reduce(np.concatenate(parts)))


def _twins(problem: Problem) -> Int64Array:
    """A number for each buffer, the same for those that could change places."""
    numbers: dict[tuple[int, ...], int] = {}
    rows = np.stack(
        [problem.lower, problem.upper, problem.size, problem.alignment], axis=1
    )
    found = []
    for i, row in enumerate(rows.tolist()):
        alone = problem.fixed[i] != FREE
        key = (i,) if alone else tuple(row)
        found.append(numbers.setdefault(key, len(numbers)))
    return np.array(found, dtype=np.int64)


def _pair_to_pin(
    size: Int64Array, first: Int64Array, second: Int64Array, twins: Int64Array
) -> int | None:
    """The largest pair without twins: those are in order already."""
    alone = np.bincount(twins)[twins] == 1
    good = np.flatnonzero(alone[first] & alone[second])
    if not len(good):
        return None
    return int(good[np.argmax(size[first[good]] + size[second[good]])])


def _twins_in_order(start: Int64Array, twins: Int64Array) -> Int64Array:
    members = defaultdict(list)
    for i, number in enumerate(twins.tolist()):
        members[number].append(i)
    start = start.copy()
    for same in members.values():
        start[same] = np.sort(start[same])
    return start
