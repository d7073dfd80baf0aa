"""Exact search: the least peak, proved; or the best plan so far, with an honest gap.

Canonical branch and bound in the manner of MiniMalloc (Moffitt, "MiniMalloc: a
lightweight memory allocator for hardware-accelerated machine learning", ASPLOS 2023),
with several rankings of the buffers in turn, on all cores. It supports any alignments,
fixed offsets and wrap-around lifespans. The kernel is compiled.

`Ladder` asks about one capacity after another. The lower bound comes first, then
capacities between there and the best peak. "Fits" lowers the peak, "never" raises the
bound, until they meet. Each capacity has its own portfolio of searches, which are
never restarted: if a share of nodes brings no answer, they go on later with more.

Without a time limit it does a fixed amount of work, and the same problem gives the same
plan and the same proof, on any number of threads and with any seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan, Provenance
from memplan.core.problem import FREE, Problem
from memplan.core.verify import verify_offsets
from memplan.errors import MemplanError
from memplan.native import _dsa
from memplan.solving.bestfit import best_of_six
from memplan.solving.options import DEFAULTS, Options, Progress
from memplan.solving.parts import Part, PartByPart
from memplan.solving.placing import quietest_moment, refuse_gaps, spans

# Placements in all searches together, if nothing else limits them: about half a
# minute on two cores.
DEFAULT_NODES = 40_000_000

# Rankings, searched in turn: W lifetime, A lifetime x size, T largest total of bytes in
# a section lived through, C sections, Z size, O overlapping buffers; all descending.
# Those with an M try only what may lie in a section where something must lie next. R
# and a number: a randomised ranking, which changes again and again.
ORDERS = [
    *("TWA", "MTZW", "CTA", "MTWA", "AWT", "OAT", "WAT"),
    *("R1", "R2", "R3", "R4", "R5"),
]

MOST_BUFFERS = 2000
MOST_UNITS = 1 << 42  # of a capacity

SLICE = 1000  # placements that a search makes in its turn
_SWIFT = 200  # buffers up to which a placement takes the same time, about
_SHARE = 8  # slices of each search in the first pass, at each capacity
_AT_ONCE = 4  # slices between looks at the keyboard
_MOST_PROBES = 10  # that wait for an answer at a time: they take memory
_SIXTEENTHS = (8, 12, 14, 4, 15, 10, 6)  # of the gap: where to ask, in this order


def paced(nodes: int, buffers: int) -> int:
    """`nodes`, or as many as take the same time where there are many buffers.

    Of 942 buffers a node takes 50 microseconds, of 200 some 5.
    """
    slower = max(1.0, buffers / _SWIFT)
    return math.ceil(nodes / slower)


@dataclass(frozen=True, eq=False)
class ExactResult:
    """What is known when the search ends.

    offsets: of the best plan, bytes, shape (n,); never worse than the incumbent.
    lower_bound: bytes; no plan needs less. proved_optimal: they have met.
    nodes: placements made. interrupted: by Ctrl-C. too_large: some part of the problem
    was not searched, because it has too many buffers.
    """

    offsets: Int64Array
    lower_bound: int
    proved_optimal: bool
    nodes: int
    interrupted: bool = False
    too_large: bool = False


def solve(problem: Problem, options: Options = DEFAULTS) -> Plan:
    """The best Plan found within the limits of `options`, or until Ctrl-C.

    With a capacity, ends as soon as a plan fits, or it is proved that none can: then
    the plan's lower bound exceeds the capacity.

    Raises NoPlanError where fixed offsets collide, UsageError for gaps in lifespans.
    """
    refuse_gaps(problem, "exact")
    start = time.perf_counter()
    incumbent, name = best_of_six(problem, options)
    if options.time_limit is not None:
        spent = time.perf_counter() - start
        options = replace(options, time_limit=max(0.0, options.time_limit - spent))
    found = improve(problem, incumbent, options)
    note = f"{found.nodes:,} nodes" if found.nodes else f"best fit by {name}"
    note += ", interrupted" * found.interrupted
    if found.too_large:
        note += f", not searched: more than {MOST_BUFFERS:,} buffers at a time"
    return Plan.of(
        problem,
        found.offsets,
        Provenance("exact", options.seed, note=note),
        proved_optimal=found.proved_optimal,
        bound=found.lower_bound,
    )


def improve(
    problem: Problem, incumbent: Int64Array, options: Options = DEFAULTS
) -> ExactResult:
    """Better offsets than `incumbent`, a plan for `problem`, or a proof of its worth.

    options: as for `solve`; `max_nodes` is DEFAULT_NODES, paced, where it and the time
    limit are None.

    Raises UsageError for gaps in lifespans.
    """
    refuse_gaps(problem, "exact")
    start = time.perf_counter()
    limit, most = options.time_limit, options.max_nodes
    if most is None:
        most = paced(DEFAULT_NODES, len(problem)) if limit is None else 1 << 62
    deadline = math.inf if limit is None else start + limit
    bound, capacity = lower_bound(problem), options.capacity

    def begin(part: Part) -> Ladder:
        whole = len(part.members) == len(problem)
        offsets = incumbent[part.members] if whole else best_of_six(part.problem)[0]
        # The whole's bound is not the part's: its floor may belong to another time.
        least = max(lower_bound(part.problem), bound if whole else 0)
        within = None if capacity is None else capacity - part.floor
        return Ladder(
            part.problem,
            offsets,
            least,
            threads=options.workers(),
            deadline=deadline,
            capacity=within,
        )

    parts = PartByPart(problem, incumbent, bound, begin)
    interrupted = False

    def nodes() -> int:
        return sum(ladder.nodes for _, ladder in parts.searches)

    try:
        while capacity is None or parts.bound <= capacity:
            if not parts.turn(parts.bound if capacity is None else capacity):
                break
            now = time.perf_counter()
            options.report(Progress(parts.peak, parts.bound, nodes(), now - start))
            if now >= deadline or nodes() >= most:
                break
    except KeyboardInterrupt:
        interrupted = True
    return ExactResult(
        parts.offsets,
        parts.bound,
        parts.peak <= parts.bound,
        nodes(),
        interrupted,
        any(
            ladder.too_large and part.floor + ladder.peak > parts.bound
            for part, ladder in parts.searches
        ),
    )


class Ladder:
    """The least peak of one problem, step by step.

    offsets: of the best plan so far, bytes, shape (n,), verified.
    over: there is nothing more to find out, or the problem is too large to begin.
    slice: placements that a search makes in its turn.
    """

    slice = SLICE
    turns = 0  # all ladders are equal where several parts are as high

    def __init__(
        self,
        problem: Problem,
        incumbent: Int64Array,
        lower: int,
        *,
        threads: int,
        deadline: float,
        capacity: int | None = None,
    ) -> None:
        """incumbent: a plan to begin with. lower: bytes, no plan needs less. threads:
        how many work at once; the offsets do not depend on it. deadline: when to stop,
        by `time.perf_counter`. capacity: bytes; ask only whether a plan fits, not
        for the least peak."""
        self.problem = problem
        self.offsets = incumbent
        self.over = False
        self._goal = 0
        self._threads, self._deadline = threads, deadline
        self._peaks = Peaks(problem)
        self._low = self._peaks.index(lower)
        self._high = self._peaks.index(problem.peak(incumbent))
        self._probes: dict[int, _dsa.ExactSearch] = {}
        self._spent = 0  # nodes of searches that are over
        self._steps = self._climb() if capacity is None else self._climb_to(capacity)

    @property
    def bound(self) -> int:
        """Bytes; no plan needs less, as far as is known."""
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

    def turn(self, goal: int) -> None:
        """A short run of searches. goal: bytes; no lower peak is of use."""
        self._goal = max(self._goal, goal)
        self.over = next(self._steps, _ENDED) is _ENDED

    def take(self, offsets: Int64Array) -> None:
        """Go on from these offsets, a plan, if they are better than the best so far."""
        if self.problem.peak(offsets) < self.peak:
            self.offsets = offsets
            self._high = self._peaks.index(self.peak)
            self._drop_answered()

    def _climb(self) -> Iterator[None]:
        """Narrow the gap between bound and peak, as far as the goal asks for it."""
        share = _SHARE
        while not self.too_large and self._open(self._lowest()):
            yield from self._ask(self._lowest(), share)
            yield from self._ask_above(max(1, share // 8))
            share *= 2

    def _climb_to(self, capacity: int) -> Iterator[None]:
        """The same for one capacity in bytes: does a plan fit?"""
        target = self._peaks.index(capacity + 1) - 1
        while not self.too_large and self._open(target):
            yield from self._ask(target, _AT_ONCE)

    def _lowest(self) -> int:
        # What is above the goal, if only by a byte, is not enough.
        return max(self._low, self._peaks.index(self._goal + 1) - 1)

    def _open(self, capacity: int) -> bool:
        return self._low <= capacity < self._high

    def _ask_above(self, share: int) -> Iterator[None]:
        """Ask about capacities between the lowest and the peak.

        A new peak or bound restarts it in the middle of the new gap: which capacities
        are easy to meet is a matter of luck, and each answer shrinks the gap.
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
            seconds = self._deadline - time.perf_counter()
            answer = probe.run(now, self.slice, self._threads, seconds)
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
            ORDERS,
            (problem.length or 0) if wraps else 0,
            beyond,
        )

    def _take(self, offsets: Int64Array) -> None:
        """A new best plan, in units."""
        offsets = offsets * self._peaks.unit
        wrong = verify_offsets(self.problem, offsets, self.problem.peak(offsets))
        if wrong:
            raise MemplanError(
                f"internal error in exact search: {wrong[0].message}; please report it"
            )
        self.offsets = offsets
        self._high = self._peaks.index(self.problem.peak(offsets))

    def _drop_answered(self) -> None:
        for capacity in [c for c in self._probes if not self._open(c)]:
            self._spent += self._probes.pop(capacity).nodes


class Peaks:
    """All peaks that a best plan can have, in bytes, ascending from `peaks[0]`, 0.

    The offsets of some best plan are multiples of a unit, sums of padded sizes; the
    topmost buffer counts without its padding. So a peak is a multiple of the unit, or
    one less the padding of a buffer: nothing need be asked about between two of these.

    unit: bytes that all offsets of some best plan are multiples of.
    """

    def __init__(self, problem: Problem) -> None:
        """The peaks of `problem`; of none, all integers."""
        unit = int(np.gcd.reduce(problem.padded)) or 1
        if (problem.alignment != problem.granularity).any():
            unit = int(np.gcd(unit, problem.granularity))
        fixed = problem.fixed[problem.fixed != FREE]
        self.unit = int(np.gcd.reduce(np.append(fixed, unit)))
        self._slack = problem.slack
        # What a peak may fall short of a multiple of the unit, descending.
        self._short: list[int] = np.unique(np.append(self._slack, 0))[::-1].tolist()

    def __getitem__(self, index: int) -> int:
        """The peak with this index, in bytes."""
        turns, place = divmod(index - 1, len(self._short))
        return (turns + 1) * self.unit - self._short[place]

    def index(self, least: int) -> int:
        """The index of the lowest peak of at least so many bytes."""
        units = -(-least // self.unit)
        rest = units * self.unit - least
        place = next(i for i, short in enumerate(self._short) if short <= rest)
        return (units - 1) * len(self._short) + place + 1

    def room(self, index: int) -> tuple[int, Int64Array | None]:
        """Units beneath a peak, and the buffers that may reach one beyond: 0 or 1.

        The latter int64, shape (n,), or None where no buffer may: those that do have
        enough padding to stand out.
        """
        peak = self[index]
        units = peak // self.unit
        beyond = (peak + self._slack) // self.unit - units
        return units, beyond if beyond.any() else None


_ENDED = object()
