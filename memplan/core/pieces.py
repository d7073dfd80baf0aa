"""What buffers use, piece by piece: rectangles of time and bytes, around their gaps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.problem import Problem


@dataclass(frozen=True, eq=False)
class Pieces:
    """The rectangles of time and bytes that buffers use, disjoint for each buffer.

    By owner, then by time; every array has shape (m,), int64.

    owner: index of the buffer. lower, upper: ticks, as a buffer's lifespan, which may
    wrap around where the clock is periodic. begin, end: bytes [begin, end) counted
    from the buffer's offset, never empty.
    """

    owner: Int64Array
    lower: Int64Array
    upper: Int64Array
    begin: Int64Array
    end: Int64Array

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def table(self) -> Int64Array:
        """owner, lower, upper, begin and end, shape (5, m)."""
        columns = (self.owner, self.lower, self.upper, self.begin, self.end)
        return np.stack(columns).astype(np.int64)


def pieces(problem: Problem) -> Pieces:
    """What the buffers use, all of it once; without gaps, each buffer whole.

    Around and between its gaps a buffer is used whole. One with a single gap that is
    as long as its life has no piece, or only the gap's window.
    """
    everyone = np.arange(len(problem), dtype=np.int64)
    if problem.gaps is None:
        none = np.zeros(len(problem), dtype=np.int64)
        return Pieces(everyone, problem.lower, problem.upper, none, problem.size)
    gaps = problem.gaps
    # A buffer is whole from its birth or the end of a gap to the next gap or its
    # death: in the order of time, each beginning belongs to one end.
    owner = np.concatenate([everyone, gaps.buffer])
    lower = np.concatenate([problem.lower, gaps.upper])
    upper = np.concatenate([gaps.lower, problem.upper])
    ends_owner = np.concatenate([gaps.buffer, everyone])
    lower = lower[np.lexsort((lower, owner))]
    upper = upper[np.lexsort((upper, ends_owner))]
    owner = np.sort(owner)
    whole, partial = lower < upper, gaps.partial
    owner = np.concatenate([owner[whole], gaps.buffer[partial]])
    lower = np.concatenate([lower[whole], gaps.lower[partial]])
    upper = np.concatenate([upper[whole], gaps.upper[partial]])
    count = int(np.count_nonzero(whole))
    begin = np.concatenate([np.zeros(count, dtype=np.int64), gaps.begin[partial]])
    end = np.concatenate([problem.size[owner[:count]], gaps.end[partial]])
    order = np.lexsort((lower, owner))
    return Pieces(*(column[order] for column in (owner, lower, upper, begin, end)))
