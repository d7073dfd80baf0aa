"""Plans of random loops, for `soak.py`: some to be followed, some that never fit."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from memplan.applying.tables import ReplayArrays

UNIT = 512
SIZES = (100, 512, 4096, 30_000, 65_536, 1 << 20, 3 << 20)


@dataclass(frozen=True)
class Loop:
    """A step that repeats, and its plan.

    sizes: bytes asked for, in order. frees: per request, before which later one it is
    freed; their number where that is the step's end. offsets: bytes. elastic: steps may
    ask for less. marked: the program tells where its steps begin.
    """

    sizes: list[int]
    frees: list[int]
    offsets: list[int]
    elastic: bool
    marked: bool

    @property
    def arena(self) -> int:
        """Bytes of it."""
        ends = (at + size for at, size in zip(self.offsets, self.sizes, strict=True))
        return _rounded(max(ends))

    def arrays(self) -> ReplayArrays:
        """As the library takes it: marked, with a step of warm-up that is the same."""
        steps = 2 if self.marked else 1
        columns = [
            np.array(each, dtype=np.int64)
            for each in (
                self.sizes * steps,
                self.offsets * steps,
                [step * len(self.sizes) for step in range(steps)],
            )
        ]
        elastic = [False, self.elastic][-steps:] if self.marked else [False]
        none = np.zeros(steps * len(self.sizes), dtype=np.bool_)
        return ReplayArrays(*columns, steps - 1, steps, elastic, none, not self.marked)


def random_loop(rng: random.Random) -> Loop:
    """One time in five its offsets are wrong, at random: then conflicts abound."""
    count = rng.randrange(9, 60)
    sizes = [rng.choice(SIZES) for _ in range(count)]
    frees = [min(i + rng.randrange(1, 20), count) for i in range(count)]
    offsets = _first_fit(sizes, frees)
    if rng.random() < 0.2:
        most = max(offsets) // UNIT + 1
        offsets = [rng.randrange(most) * UNIT for _ in sizes]
    marked = rng.random() < 0.6
    return Loop(sizes, frees, offsets, marked and rng.random() < 0.5, marked)


def _first_fit(sizes: list[int], frees: list[int]) -> list[int]:
    live: list[tuple[int, int, int]] = []  # begin, end, freed before
    offsets = []
    for i, size in enumerate(map(_rounded, sizes)):
        live = sorted(block for block in live if block[2] > i)
        at = 0
        for begin, end, _ in live:
            if begin - at >= size:
                break
            at = end
        offsets.append(at)
        live.append((at, at + size, frees[i]))
    return offsets


def _rounded(size: int) -> int:
    return (size + UNIT - 1) // UNIT * UNIT
