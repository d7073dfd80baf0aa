"""Least peaks found the plain way, to hold the exact search against.

No code is shared with the solvers, nor any idea but one: a packing can be pushed
down until every buffer lies on the ground or on another one, and then it comes
about by placing buffers one by one, each as low as those before it allow.
"""

from __future__ import annotations

import numpy as np

from memplan.core.problem import Problem

NEVER = 1 << 60


def overlap(problem: Problem, i: int, k: int) -> bool:
    """Whether both are alive at some tick."""
    length = problem.length

    def runs(j: int) -> list[tuple[int, int]]:
        lower, upper = int(problem.lower[j]), int(problem.upper[j])
        if lower < upper:
            return [(lower, upper)]
        assert length is not None
        return [(lower, length), (0, upper)]

    return any(a < d and c < b for a, b in runs(i) for c, d in runs(k))


def brute_force(problem: Problem) -> int:
    """The least peak in bytes over all orders of placement; NEVER if there is none."""
    return _Orders(problem).least()


class _Orders:
    def __init__(self, problem: Problem) -> None:
        self.n = len(problem)
        self.size = problem.size.tolist()
        self.align = problem.alignment.tolist()
        self.fixed = problem.fixed.tolist()
        self.below = [
            [k for k in range(self.n) if k != i and overlap(problem, i, k)]
            for i in range(self.n)
        ]
        self.best = NEVER
        self.seen: set[tuple[object, ...]] = set()

    def least(self) -> int:
        self._place(frozenset(range(self.n)), [0] * self.n, 0)
        return self.best

    def _place(self, waiting: frozenset[int], tops: list[int], peak: int) -> None:
        if peak >= self.best:
            return
        if not waiting:
            self.best = peak
            return
        least = {i: self._least(i, waiting, tops) for i in waiting}
        state = (waiting, tuple(sorted(least.items())), peak)
        if state in self.seen:
            return
        self.seen.add(state)
        for i in sorted(waiting, key=lambda i: (least[i], -self.size[i])):
            if least[i] == NEVER:
                continue
            now = tops.copy()
            now[i] = least[i] + self.size[i]
            self._place(waiting - {i}, now, max(peak, now[i]))

    def _least(self, i: int, waiting: frozenset[int], tops: list[int]) -> int:
        least = max((tops[k] for k in self.below[i] if k not in waiting), default=0)
        if self.fixed[i] >= 0:
            return self.fixed[i] if least <= self.fixed[i] else NEVER
        return -(-least // self.align[i]) * self.align[i]


def stacked(problem: Problem) -> np.ndarray:
    """The worst of plans: all buffers one above the other, over the fixed ones."""
    offsets = problem.fixed.copy()
    top = int((problem.fixed + problem.size)[problem.fixed >= 0].max(initial=0))
    for i in np.flatnonzero(problem.fixed < 0):
        unit = int(problem.alignment[i])
        offsets[i] = -(-top // unit) * unit
        top = int(offsets[i] + problem.padded[i])
    return offsets
