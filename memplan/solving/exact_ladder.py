"""From a plan and a bound towards the least peak: capacities to ask, one after another.

Each capacity that is asked about has its own portfolio of searches, which are never
begun again: an answer that does not come within a share of nodes is waited for later,
with a greater share. The lower bound comes first, then capacities half way up from
there to the best peak. "Fits" brings the peak down, "never" the bound up; they meet.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.problem import FREE, Problem
from memplan.core.verify import verify_offsets
from memplan.errors import MemplanError, UsageError
from memplan.native import _dsa
from memplan.solving.clock import quietest_moment, spans
from memplan.solving.peaks import Peaks

RULES = (
    "canonical",
    "dominance",
    "sections",
    "unallocated",
    "monotone",
    "hatless",
    "stranded",
    "decomposition",
    "ranking",
    "tightest",
    "forced",
    "symmetry",
    "memo",
)

# Rankings, searched in turn: W lifetime, A lifetime x size, T largest total of bytes in
# a section lived through, C sections, Z size, O overlapping buffers; all descending.
# Those with an M try only what may lie in a section where something must lie next. R
# and a number: again and again with another ranking, in which there is chance.
ORDERS = (
    *("TWA", "MTZW", "CTA", "MTWA", "AWT", "OAT", "WAT"),
    *("R1", "R2", "R3", "R4", "R5"),
)

MOST_BUFFERS = 2000
MOST_UNITS = 1 << 42  # of a capacity

_SLICE = 1000  # placements that a search makes in its turn
_SWIFT = 200  # buffers up to which a placement takes the same time, about
_SHARE = 8  # slices of each search in the first pass, at each capacity
_AT_ONCE = 4  # slices between looks at the keyboard
_MOST_PROBES = 10  # that wait for an answer at a time: they take memory
_SIXTEENTHS = (8, 12, 14, 4, 15, 10, 6)  # of the gap: where to ask, in this order


def paced(nodes: int, buffers: int) -> int:
    """So many nodes, or as many as take as long with more buffers than a few.

    Of 942 buffers a node takes 50 microseconds, of 200 some 5.
    """
    slower = max(1.0, buffers / _SWIFT)
    return math.ceil(nodes / slower)


@dataclass(frozen=True)
class Tuning:
    """How to search; the answers do not depend on it.

    threads: how many work at once; the offsets do not depend on it, either.
    slice: placements that a search makes in its turn.
    deadline: when to stop, by `time.perf_counter`; most_nodes: placements in all.
    without: rules to do without, of RULES. orders: rankings, as in ORDERS.
    memo_bytes: for the failures each search remembers.
    """

    threads: int = 1
    deadline: float = math.inf
    most_nodes: int = 1 << 62
    without: tuple[str, ...] = ()
    orders: tuple[str, ...] = ORDERS
    memo_bytes: int = 1 << 22
    slice: int = _SLICE

    def __post_init__(self) -> None:
        """Raises UsageError for a rule or an order that there is not."""
        for kind, known, named in (
            ("rule", RULES, self.without),
            ("order", ORDERS, self.orders),
        ):
            unknown = sorted(set(named) - set(known))
            if unknown:
                listed = ", ".join(known)
                raise UsageError(f"there is no {kind} {unknown[0]!r}: take {listed}")


class Ladder:
    """The least peak of one problem, by and by.

    offsets: of the best plan so far, bytes, shape (n,), verified.
    goal: bytes; no lower peak is of use. May rise in the course of time.
    """

    def __init__(
        self, problem: Problem, incumbent: Int64Array, lower: int, tuning: Tuning
    ) -> None:
        """incumbent: a plan to begin with. lower: bytes, no plan needs less."""
        self.problem = problem
        self.offsets = incumbent
        self.goal = 0
        self._tuning = tuning
        self._peaks = Peaks(problem)
        self._low = self._peaks.index(lower)
        self._high = self._peaks.index(problem.peak(incumbent))
        self._probes: dict[int, _dsa.ExactSearch] = {}
        self._spent = 0  # nodes of searches that are over

    @property
    def lower(self) -> int:
        """Bytes that no plan needs less than, as far as is known."""
        return self._peaks[self._low]

    @property
    def peak(self) -> int:
        """Bytes of the best plan so far."""
        return self.problem.peak(self.offsets)

    @property
    def nodes(self) -> int:
        """Placements made in all searches."""
        return self._spent + sum(probe.nodes for probe in self._probes.values())

    @property
    def too_large(self) -> bool:
        """Whether there are more buffers, or bytes, than the search is made for."""
        return len(self.problem) > MOST_BUFFERS or self._high >= MOST_UNITS

    def climb(self) -> Iterator[None]:
        """Narrow the gap between bound and peak, as far as the goal asks for it.

        Yields after every short run of searches. Ends when there is nothing more to
        find out, or where the problem is too large to begin.
        """
        share = _SHARE
        while not self.too_large and self._open(self._lowest()):
            yield from self._ask(self._lowest(), share)
            yield from self._ask_above(max(1, share // 8))
            share *= 2

    def climb_to(self, capacity: int) -> Iterator[None]:
        """The same for one capacity in bytes: can a plan keep within it?"""
        target = self._peaks.index(capacity + 1) - 1
        while not self.too_large and self._open(target):
            yield from self._ask(target, _AT_ONCE)

    def take(self, offsets: Int64Array) -> None:
        """Go on from these offsets, a plan, if they are better than the best so far."""
        if self.problem.peak(offsets) < self.peak:
            self.offsets = offsets
            self._high = self._peaks.index(self.peak)
            self._drop_answered()

    def _lowest(self) -> int:
        # What is above the goal, if only by a byte, is not enough.
        return max(self._low, self._peaks.index(self.goal + 1) - 1)

    def _open(self, capacity: int) -> bool:
        return self._low <= capacity < self._high

    def _ask_above(self, share: int) -> Iterator[None]:
        """Ask about capacities between the lowest and the peak.

        With a new peak or bound it begins again, in the middle of the new gap: which
        capacities are easy to meet is a matter of luck, and the gap shrinks with each.
        """
        while True:
            gap = (self._lowest(), self._high)
            for capacity in self._rungs(*gap):
                yield from self._ask(capacity, share)
                if gap != (self._lowest(), self._high):
                    break
            else:
                return

    def _rungs(self, low: int, high: int) -> list[int]:
        """Capacities strictly between two: those already asked about, where near."""
        rungs: list[int] = []
        near = (high - low) // 32
        for part in _SIXTEENTHS:
            wanted = low + (high - low) * part // 16
            probes = [c for c in self._probes if low < c < high]
            rung = min(probes, key=lambda c: abs(c - wanted), default=wanted)
            rung = rung if abs(rung - wanted) <= near else wanted
            if low < rung < high and rung not in rungs:
                rungs.append(rung)
        return rungs

    def _ask(self, capacity: int, share: int) -> Iterator[None]:
        """Search for a plan with that peak or a lower one, for a share of slices."""
        while share > 0 and self._open(capacity):
            now = min(share, _AT_ONCE)
            share -= now
            probe = self._probe(capacity)
            seconds = self._tuning.deadline - time.perf_counter()
            answer = probe.run(now, self._tuning.slice, self._tuning.threads, seconds)
            if answer == "fits":
                self._take(probe.offsets())
            elif answer == "never":
                self._low = capacity + 1
            if answer != "open":
                self._drop_answered()
            yield

    def _probe(self, capacity: int) -> _dsa.ExactSearch:
        if capacity not in self._probes:
            if len(self._probes) == _MOST_PROBES:
                least = min(self._probes, key=lambda c: self._probes[c].nodes)
                self._spent += self._probes.pop(least).nodes
            self._probes[capacity] = self._new_probe(capacity)
        return self._probes[capacity]

    def _new_probe(self, capacity: int) -> _dsa.ExactSearch:
        problem, unit = self.problem, self._peaks.unit
        units, beyond = self._peaks.room(capacity)
        start, end = spans(problem, quietest_moment(problem))
        wraps = problem.length is not None and bool((end > problem.length).any())
        uniform = bool((problem.alignment == problem.granularity).all())
        alignment = np.ones_like(end) if uniform else problem.alignment // unit
        fixed = np.where(problem.fixed == FREE, FREE, problem.fixed // unit)
        return _dsa.ExactSearch(
            start,
            end,
            problem.padded // unit,
            alignment,
            fixed,
            units,
            list(self._tuning.orders),
            (problem.length or 0) if wraps else 0,
            list(self._tuning.without),
            self._tuning.memo_bytes,
            beyond,
        )

    def _take(self, offsets: Int64Array) -> None:
        """A new best plan, in units."""
        offsets = offsets * self._peaks.unit
        wrong = verify_offsets(self.problem, offsets, self.problem.peak(offsets))
        if wrong:
            raise MemplanError(
                f"exact search went wrong: {wrong[0].message}; please report it"
            )
        self.offsets = offsets
        self._high = self._peaks.index(self.problem.peak(offsets))

    def _drop_answered(self) -> None:
        for capacity in [c for c in self._probes if not self._open(c)]:
            self._spent += self._probes.pop(capacity).nodes
