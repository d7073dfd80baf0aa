"""Values in the memory of a result, before that is written.

A result has memory of its own, since the caller keeps it. Until the operator that
writes it runs, that memory is free for values that are gone by then, so arena and
result need no more together than the bytes that are live.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.plan import Plan
from memplan.core.problem import Problem

ALIGNMENT = 64  # bytes, of every storage
LITTLE = 0.01  # of arena and result: tensors in a result are made at every call


@dataclass(frozen=True)
class Loan:
    """Buffers, by number, at offsets in the memory of a result.

    problem: these in order, then the result itself, which takes all of it.
    """

    offsets: dict[int, int]
    problem: Problem

    @property
    def plan(self) -> Plan:
        """The same as a plan, which can be verified."""
        offsets = np.array([*self.offsets.values(), 0], dtype=np.int64)
        return Plan.of(self.problem, offsets, "lend")


def lend(problem: Problem, wanted: Sequence[int], born: int, size: int) -> Loan | None:
    """The buffers that lower the peak of an arena if they lie in a result's memory.

    problem: all buffers of the arena. wanted: those that may lie there, by number; they
    end before the clock is at `born`, when the result is written. size: its bytes. By
    turns the largest buffer that is live at the peak and fits is moved. None if that
    saves little.
    """
    starts, ends = problem.lower, problem.upper
    sizes = problem.padded
    changes = np.zeros(int(max(ends.max(initial=0), born)) + 1, dtype=np.int64)
    np.add.at(changes, starts, sizes)
    np.add.at(changes, ends, -sizes)
    level = np.cumsum(changes)
    before = level.max()
    offsets: dict[int, int] = {}
    left = sorted(wanted, key=lambda each: -sizes[each])
    while True:
        peak = int(np.argmax(level))
        moved = next(
            (
                (each, at)
                for each in left
                if starts[each] <= peak < ends[each]
                and (at := _lowest(problem, sizes, offsets, each)) + sizes[each] <= size
            ),
            None,
        )
        if moved is None:
            break
        each, offsets[each] = moved
        left.remove(each)
        level[starts[each] : ends[each]] -= sizes[each]
    highest = level.max(initial=0)
    if LITTLE * (before + size) > before - highest:
        return None
    for each in reversed(list(offsets)):  # what was moved in vain goes back
        life = slice(starts[each], ends[each])
        if level[life].max() + sizes[each] <= highest:
            level[life] += sizes[each]
            del offsets[each]
    lent = list(offsets)
    rows = Problem.of(
        [*starts[lent], born],
        [*ends[lent], born + 1],
        [*problem.size[lent], size],
        alignment=ALIGNMENT,
    )
    return Loan(offsets, rows)


def _lowest(
    problem: Problem, sizes: Int64Array, offsets: dict[int, int], new: int
) -> int:
    """The lowest offset at which a buffer overlaps none of those placed."""
    taken = sorted(
        (at, int(at + sizes[each]))
        for each, at in offsets.items()
        if problem.lower[each] < problem.upper[new]
        and problem.lower[new] < problem.upper[each]
    )
    lowest = 0
    for start, end in taken:
        if start - lowest >= sizes[new]:
            break
        lowest = max(lowest, end)
    return lowest
