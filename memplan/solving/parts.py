"""Problems split into parts that can be packed independently, and searched in turns.

A buffer that is alive as long as anything is can lie at the bottom: in some best
packing it does. And where nothing is alive across a moment, what comes before it and
what comes after can be packed independently. Each may make the other possible again.
All this needs offsets that are free, one alignment for all, and no gaps in lifespans;
and a buffer at the bottom must have no padding, for at the very top it would need none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.problem import FREE, Problem
from memplan.solving.placing import lifetimes, quietest_moment, spans


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a problem that is left to pack.

    members: indices into the whole, int64, shape (m,); problem: those alone, m buffers;
    floor: bytes below it that are taken.
    """

    members: Int64Array
    problem: Problem
    floor: int


def take_apart(problem: Problem) -> tuple[Int64Array, list[Part]]:
    """Offsets of the buffers at the bottom, -1 for others, shape (n,); and the parts.

    A packing of every part, lifted by its floor, completes the offsets, and its peak is
    the highest of theirs; the least peaks of the parts make the least of the whole.
    """
    everyone = np.arange(len(problem), dtype=np.int64)
    offsets = np.full(len(problem), -1, dtype=np.int64)
    uniform = bool((problem.alignment == problem.granularity).all())
    tied = (problem.fixed != FREE).any() or problem.gaps is not None
    if not len(problem) or not uniform or tied:
        return offsets, [Part(everyone, problem, 0)]
    floor = 0
    if problem.length is not None:
        always = (lifetimes(problem) == problem.length) & (problem.slack == 0)
        floor = _stack(problem, everyone[always], 0, offsets)
        everyone = everyone[~always]
        rest = problem.take(everyone)
        start, end = spans(rest, quietest_moment(rest))
        if (end > problem.length).any():
            return offsets, [Part(everyone, rest, floor)]
    else:
        start, end = problem.lower, problem.upper
    parts = []
    pending = [(everyone, start, end, floor)] if len(everyone) else []
    while pending:
        members, start, end, floor = pending.pop()
        bottom = (start == start.min()) & (end == end.max())
        bottom &= problem.slack[members] == 0
        pieces = _pieces(start[~bottom], end[~bottom])
        if not bottom.any() and len(pieces) == 1:
            parts.append(Part(members, problem.take(members), floor))
            continue
        floor = _stack(problem, members[bottom], floor, offsets)
        members, start, end = members[~bottom], start[~bottom], end[~bottom]
        pending += [(members[k], start[k], end[k], floor) for k in pieces]
    return offsets, parts


def _stack(
    problem: Problem, members: Int64Array, floor: int, offsets: Int64Array
) -> int:
    """Put the members one above the other; return where the last one ends."""
    tops = floor + np.cumsum(problem.padded[members])
    offsets[members] = tops - problem.padded[members]
    return int(tops[-1]) if len(tops) else floor


def _pieces(start: Int64Array, end: Int64Array) -> list[Int64Array]:
    """Indices of those between two moments that nothing is alive across."""
    order = np.argsort(start, kind="stable")
    latest = np.maximum.accumulate(end[order])
    cuts = np.flatnonzero(start[order][1:] >= latest[:-1]) + 1
    return [np.sort(piece) for piece in np.split(order, cuts) if len(piece)]


class PartSearch(Protocol):
    """A search of one part, which can be run turn by turn.

    turns: taken so far. offsets, peak: of the best plan of the part so far, bytes.
    bound: bytes; no plan of the part needs less. over: no further turn is of use, or
    the limits are reached.
    """

    turns: int

    @property
    def offsets(self) -> Int64Array: ...
    @property
    def peak(self) -> int: ...
    @property
    def bound(self) -> int: ...
    @property
    def over(self) -> bool: ...

    def turn(self, goal: int) -> None:
        """Search for a while for a peak of `goal` bytes or less."""


S = TypeVar("S", bound=PartSearch)


class PartByPart(Generic[S]):
    """A problem whose parts are searched in turns; the highest part decides the peak.

    offsets: of the best plan so far, bytes, shape (n,). bound: bytes; no plan needs
    less. searches: each part and its search.
    """

    def __init__(
        self,
        problem: Problem,
        offsets: Int64Array,
        bound: int,
        begin: Callable[[Part], S],
    ) -> None:
        """offsets: a plan to begin with. begin: makes the search of a part."""
        self.problem, self.offsets, self.bound = problem, offsets, bound
        self._base, parts = take_apart(problem)
        self.searches = [(part, begin(part)) for part in parts if len(part.members)]
        self.learn()

    @property
    def peak(self) -> int:
        """Bytes of the best plan so far."""
        return self.problem.peak(self.offsets)

    def learn(self) -> None:
        """Put together the plans and bounds of the parts."""
        for part, search in self.searches:
            self._base[part.members] = search.offsets + part.floor
            self.bound = max(self.bound, part.floor + search.bound)
        if self.problem.peak(self._base) < self.peak:
            self.offsets = self._base.copy()

    def turn(self, goal: int) -> bool:
        """Search the highest part for a while; False if that is of no use.

        goal: bytes; a lower peak of the whole is not needed. Of parts equally high,
        the one with the fewest turns is searched.
        """
        if not self.searches or self.peak <= goal:
            return False
        high = [
            (part.floor + search.peak, -search.turns, -k)
            for k, (part, search) in enumerate(self.searches)
        ]
        top = max(high)
        part, search = self.searches[-top[2]]
        if top[0] <= goal or search.over:
            return False  # what the other parts do does not change the peak
        try:
            search.turn(goal - part.floor)
        finally:
            self.learn()
        return True
