"""Buffers with gaps in their lifespans: lowest place first, piece by piece.

A buffer with gaps is several rectangles of time and bytes that move together (see
`memplan.core.gaps`), and one that lies in another's gap shares its bytes. An offset
line cannot show that, nor can one interval for each pair of buffers: here every pair
of pieces that meet forbids an interval of offsets, and what is left is searched.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memplan.arrays import Int64Array
from memplan.core.pieces import Pieces, pieces
from memplan.core.problem import FREE, Problem
from memplan.errors import UsageError
from memplan.solving.fixed import refuse_collisions

_NOWHERE = -1  # an offset: not placed yet


def refuse_gaps(problem: Problem, method: str) -> None:
    """Raise UsageError if `problem` has gaps, which `method` cannot take."""
    if problem.gaps is None:
        return
    count = len(np.unique(problem.gaps.buffer))
    raise UsageError(
        f"{method} takes every buffer for one rectangle, all of its bytes all its "
        f"life, and lifespans here have gaps ({count:,} of {len(problem):,}); take "
        "auto, search, skyline or one of the bestfit methods"
    )


def place_pieces(problem: Problem, order: npt.NDArray[np.int32]) -> Int64Array:
    """Offsets in bytes, shape (n,): one by one, each buffer as low as it can go.

    A buffer takes the lowest multiple of its alignment at which none of its pieces
    touches a piece of those placed before it that is used at the same time. Fixed
    buffers come first, where they are.

    problem: on a linear clock, with gaps or without. order: indices of all buffers,
        int32, shape (n,); the fixed ones are passed over.

    Takes, for each buffer, one sort of those placed that its pieces meet.

    Raises NoPlanError if two fixed buffers collide.
    """
    refuse_collisions(problem)
    board = _Board(problem, pieces(problem))
    fixed = problem.fixed != FREE
    for i in np.flatnonzero(fixed).tolist():
        board.put(i, int(problem.fixed[i]))
    for i in order[~fixed[order]].tolist():
        board.put(i, board.lowest(i))
    return board.offsets


class _Board:
    """The pieces by birth, and where their owners lie, as far as they are placed."""

    def __init__(self, problem: Problem, used: Pieces) -> None:
        order = np.argsort(used.lower, kind="stable")
        self.owner, self.begin = used.owner[order], used.begin[order]
        self.lower, self.upper = used.lower[order], used.upper[order]
        self.end = used.end[order]
        # No piece before row k is used at or after the tick latest[k - 1].
        self.latest = np.maximum.accumulate(self.upper)
        # Pieces of buffer i are rows mine[first[i]:first[i + 1]].
        self.mine = np.argsort(self.owner, kind="stable")
        buffers = np.arange(len(problem) + 1)
        self.first = np.searchsorted(self.owner[self.mine], buffers).tolist()
        self.alignment = problem.alignment.tolist()
        self.offsets = np.full(len(problem), _NOWHERE, dtype=np.int64)
        self.place = np.full(len(used), _NOWHERE, dtype=np.int64)  # of the owner

    def put(self, i: int, offset: int) -> None:
        """Place buffer `i`."""
        self.offsets[i] = self.place[self._rows(i)] = offset

    def lowest(self, i: int) -> int:
        """The lowest offset at which buffer `i` touches nothing placed so far.

        Where a piece [b, e) of it meets one that takes [bottom, top), the offsets
        between bottom - e and top - b, both excluded, are forbidden.
        """
        after, before = [], []  # of each forbidden interval, the last free offsets
        for row in self._rows(i).tolist():
            lower, upper = self.lower[row], self.upper[row]
            # Those born before this one's end, from the first still used after its
            # birth: among them are all that it meets.
            start = int(np.searchsorted(self.latest, lower, side="right"))
            near = slice(start, int(np.searchsorted(self.lower, upper)))
            met = (self.place[near] != _NOWHERE) & (self.upper[near] > lower)
            place = self.place[near][met]
            before.append(place + (self.begin[near][met] - self.end[row]))
            after.append(place + (self.end[near][met] - self.begin[row]))
        if not after:
            return 0
        return _lowest_free(
            np.concatenate(before), np.concatenate(after), self.alignment[i]
        )

    def _rows(self, i: int) -> Int64Array:
        return self.mine[self.first[i] : self.first[i + 1]]


def _lowest_free(before: Int64Array, after: Int64Array, alignment: int) -> int:
    """The least multiple of `alignment`, from 0, in no open interval (before, after).

    Above the intervals taken so far, in ascending order of `before`, the next multiple
    will do as soon as it does not exceed the `before` of those that follow.
    """
    order = np.argsort(before, kind="stable")
    highest = np.zeros(len(order) + 1, dtype=np.int64)
    np.maximum.accumulate(after[order], out=highest[1:])
    np.maximum(highest, 0, out=highest)
    candidates = -(-highest // alignment) * alignment
    fits = candidates[:-1] <= before[order]
    return int(candidates[np.argmax(fits) if fits.any() else -1])
