"""Problems that are hard to pack, and whose least peak is known by construction.

All of them are a rectangle of time and bytes that was cut into buffers without waste,
at least in one section: packed as they were cut, they end at its height, and no plan
ends below, for in that section all bytes are alive. What solvers see is the pieces in a
random order. Several ways to cut, since none is hard for every search.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from memplan.core.problem import Problem
from tests.solving.puzzles import puzzle

Piece = tuple[int, int, int, int]  # ticks [left, right), bytes [low, top)


class Hard(NamedTuple):
    """A problem, and the peak in bytes that its best plan has."""

    name: str
    problem: Problem
    peak: int


def hard_problems() -> list[Hard]:
    """Some of 150 to 500 buffers."""
    found = []
    for n, live, seed, spare in (
        *((310, 17, 0, 0.0), (310, 19, 1, 0.0), (370, 67, 2, 0.0), (370, 50, 3, 0.0)),
        *((450, 30, 104, 0.0), (200, 12, 5, 0.0)),
        *((310, 17, 30, 0.01), (250, 25, 32, 0.04)),
    ):
        problem = swept(n, live, seed, spare=spare)
        found.append(Hard(f"swept-{n}-{live}-{spare}", problem, MEBI))
    for seed, n in enumerate((150, 250, 350, 500)):
        cut = puzzle(n, seed + 10, height=MEBI)
        found.append(Hard(f"guillotine-{n}", cut, MEBI))
    return found


def unsolved_problems() -> list[Hard]:
    """A few that are not packed in 250,000 nodes, though they can be."""
    return [
        Hard(f"spare-{n}-{live}", swept(n, live, seed, spare=0.04), MEBI)
        for n, live, seed in ((310, 17, 30), (370, 67, 31), (500, 40, 33))
    ]


MEBI = 1 << 20


def swept(
    n: int, live: int, seed: int, *, unit: int = 1024, spare: float = 0.0
) -> Problem:
    """About `live` buffers side by side at a time; now and then a few neighbours end,
    and others begin in their place.

    The cuts are no guillotine's. spare: the share of buffers that are made smaller by
    up to a third, none of them in one moment, about the middle.
    """
    rng = np.random.default_rng(seed)
    levels = MEBI // unit
    marks = np.sort(rng.choice(np.arange(1, levels), live - 1, replace=False)).tolist()
    edges = [0, *marks, levels]
    alive = [(0, low, top) for low, top in pairwise(edges)]
    pieces: list[Piece] = []
    tick = 0
    while len(pieces) + len(alive) < n:
        tick += int(rng.integers(1, 4))
        first = int(rng.integers(len(alive)))
        count = min(int(rng.integers(1, 4)), len(alive) - first)
        ended = alive[first : first + count]
        pieces += [(born, tick, low, top) for born, low, top in ended]
        low, top = ended[0][1], ended[-1][2]
        wanted = count + int(rng.integers(-1, 2)) + (len(alive) < live)
        wanted = max(1, min(wanted, top - low, n - len(pieces) - len(alive) + count))
        cuts = rng.choice(np.arange(low + 1, top), wanted - 1, replace=False)
        edges = [low, *np.sort(cuts).tolist(), top]
        alive[first : first + count] = [(tick, a, b) for a, b in pairwise(edges)]
    tick += 3
    pieces += [(born, tick, low, top) for born, low, top in alive]
    return _shuffled(pieces, unit, rng, spare)


def _shuffled(
    pieces: list[Piece], unit: int, rng: np.random.Generator, spare: float = 0.0
) -> Problem:
    middle = max(right for _, right, _, _ in pieces) // 2
    rows = []
    for left, right, low, top in pieces:
        size = (top - low) * unit
        if rng.random() < spare and not left <= middle < right:
            size = max(unit, int(size * rng.uniform(0.67, 1)) // unit * unit)
        rows.append((left, right, size))
    columns = np.array(rows, dtype=np.int64)[rng.permutation(len(rows))]
    return Problem.of(columns[:, 0], columns[:, 1], columns[:, 2])
