"""Problems with gaps in lifespans, and plain checks of them, byte by byte."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import strategies as st

from memplan.arrays import Int64Array
from memplan.core.problem import FREE, Gaps, Problem
from tests.strategies import problems

WIDE = 512  # bytes: more than any of these problems' plans need


def random_gapped(
    rng: np.random.Generator, most: int = 8, largest: int = 9, fixed: bool = False
) -> Problem:
    """Up to `most` buffers on a short clock, and gaps in most of them, if in any."""
    n, ticks = int(rng.integers(1, most + 1)), int(rng.integers(2, 12))
    lower = rng.integers(0, ticks, n)
    upper = lower + rng.integers(1, ticks, n)
    size = rng.integers(1, largest + 1, n)
    unit = [1, 4, rng.choice([1, 2, 4], n)][rng.integers(0, 3)]
    rows = []
    for i in range(n):
        cuts = rng.integers(lower[i], upper[i] + 1, 2 * rng.integers(0, 4))
        edges = sorted(set(cuts.tolist()))
        # Some gaps touch, some begin at birth, some end at death.
        starts = range(0, len(edges) - 1, rng.choice([1, 2]))
        for k in starts:
            window = sorted(rng.integers(0, size[i] + 1, 2).tolist())
            window = window if rng.random() < 0.5 else [0, 0]
            rows.append((i, edges[k], edges[k + 1], *window))
    rng.shuffle(rows)
    gaps = Gaps.of(*zip(*rows, strict=True)) if rows else None
    problem = Problem.of(lower, upper, size, alignment=unit, gaps=gaps)
    return with_some_fixed(rng, problem) if fixed else problem


def with_some_fixed(rng: np.random.Generator, problem: Problem) -> Problem:
    """Some buffers where a packing in a random order has put them."""
    offsets = plainly_placed(problem, rng.permutation(len(problem)))
    chosen = rng.random(len(problem)) < 0.4
    return Problem.of(
        problem.lower,
        problem.upper,
        problem.size,
        alignment=problem.alignment,
        fixed=np.where(chosen, offsets, FREE),
        gaps=problem.gaps,
    )


@st.composite
def gapped(draw: st.DrawFn, *, fixed: bool = False, max_size: int = 8) -> Problem:
    """Hypothesis's: `tests.strategies.problems` on a linear clock, and gaps."""
    plain = draw(problems(periodic=False, fixed=fixed, max_size=max_size))
    rows = []
    for i, buffer in enumerate(plain):
        moments = st.integers(buffer.lower, buffer.upper)
        edges = sorted(draw(st.sets(moments, max_size=5)))
        for k in range(0, len(edges) - 1, draw(st.sampled_from((1, 2)))):
            begin = draw(st.integers(0, buffer.size))
            end = draw(st.integers(begin, buffer.size))
            rows.append((i, edges[k], edges[k + 1], begin, end))
    return Problem.of(
        plain.lower,
        plain.upper,
        plain.size,
        alignment=plain.alignment,
        fixed=plain.fixed,
        gaps=Gaps.of(*zip(*rows, strict=True)) if rows else None,
    )


def window(problem: Problem, i: int, tick: int) -> tuple[int, int]:
    """The bytes of buffer `i` used in a tick, counted from its offset; [0, 0) none."""
    if not problem.lower[i] <= tick < problem.upper[i]:
        return 0, 0
    if problem.gaps is not None:
        columns = (column.tolist() for column in problem.gaps.columns)
        for buffer, lower, upper, begin, end in zip(*columns, strict=True):
            if buffer == i and lower <= tick < upper:
                return begin, end
    return 0, int(problem.size[i])


def used(problem: Problem) -> list[int]:
    """For each buffer, its bytes at offset 0, a bit each, WIDE of them for a tick."""
    pictures = []
    for i in range(len(problem)):
        bits = 0
        for tick in range(int(problem.upper[i])):
            begin, end = window(problem, i, tick)
            bits |= ((1 << end) - (1 << begin)) << (tick * WIDE)
        pictures.append(bits)
    return pictures


def colliding(problem: Problem, offsets: Int64Array) -> set[tuple[str, str]]:
    """All pairs that use a byte at the same time; offsets from 0, plans below WIDE."""
    assert (offsets >= 0).all()
    assert (offsets + problem.size).max(initial=0) <= WIDE
    placed = [
        bits << offset
        for bits, offset in zip(used(problem), offsets.tolist(), strict=True)
    ]
    return {
        (problem.label(i), problem.label(j))
        for i, j in combinations(range(len(problem)), 2)
        if placed[i] & placed[j]
    }


def plainly_placed(problem: Problem, order: Int64Array) -> Int64Array:
    """One by one, each buffer at the lowest multiple that collides with none before."""
    pictures, offsets = used(problem), problem.fixed.copy()
    taken = 0
    for i in np.flatnonzero(problem.fixed != FREE).tolist():
        taken |= pictures[i] << int(offsets[i])
    for i in [i for i in order.tolist() if problem.fixed[i] == FREE]:
        offset = 0
        while taken & (pictures[i] << offset):
            offset += int(problem.alignment[i])
        assert offset + problem.size[i] <= WIDE
        offsets[i] = offset
        taken |= pictures[i] << offset
    return offsets


def least_peak(problem: Problem) -> int:
    """The least peak of any plan, found by trying every offset; for tiny problems."""
    pictures = used(problem)

    def fits(top: int, i: int, taken: int) -> bool:
        if i == len(problem):
            return True
        highest = top - int(problem.size[i])
        places = range(0, highest + 1, int(problem.alignment[i]))
        if problem.fixed[i] != FREE:
            places = range(int(problem.fixed[i]), highest + 1, WIDE)[:1]
        return any(
            fits(top, i + 1, taken | pictures[i] << place)
            for place in places
            if not taken & (pictures[i] << place)
        )

    top = 0
    while not fits(top, 0, 0):
        top += 1
    return top
