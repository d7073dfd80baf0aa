"""Problems that are hard to pack, though it is known how low they can be packed."""

from __future__ import annotations

import numpy as np

from memplan.core.problem import Problem


def puzzle(
    n: int, seed: int = 0, *, height: int = 10_000, length: int | None = None
) -> Problem:
    """n buffers cut out of a rectangle: packed as they were, they end at `height`.

    All bytes are alive all the time, so that no plan ends below. length: of a clock on
    which the rectangle lies as a ring.
    """
    rng = np.random.default_rng(seed)
    ticks = length or 4 * n
    pieces = [(0, ticks, height)]
    while len(pieces) < n:
        weights = np.array([(b - a) * h for a, b, h in pieces], dtype=float)
        k = int(rng.choice(len(pieces), p=weights / weights.sum()))
        a, b, h = pieces[k]
        if rng.random() < 0.5 and b - a > 1:
            cut = int(rng.integers(a + 1, b))
            pieces[k : k + 1] = [(a, cut, h), (cut, b, h)]
        elif h > 1:
            cut = int(rng.integers(1, h))
            pieces[k : k + 1] = [(a, b, cut), (a, b, h - cut)]
    order = rng.permutation(n)
    lower = np.array([a for a, _, _ in pieces])[order]
    upper = np.array([b for _, b, _ in pieces])[order]
    size = np.array([h for _, _, h in pieces])[order]
    if length is not None:
        turn = length // 3
        life, lower = upper - lower, (lower + turn) % length
        upper = lower + life - np.where(lower + life > length, length, 0)
        # What lives all the time is alive from 0 on.
        lower, upper = (
            np.where(life == length, 0, lower),
            np.where(life == length, length, upper),
        )
    return Problem.of(lower, upper, size, length=length)
