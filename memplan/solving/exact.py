"""Exact search: the least peak, proved; or the best plan so far, with an honest gap.

Canonical branch and bound in the manner of MiniMalloc (Moffitt, "MiniMalloc: a
lightweight memory allocator for hardware-accelerated machine learning", ASPLOS 2023),
several rankings of the buffers in turn, on all cores. Any alignments, fixed offsets and
wrap-around lifespans are taken as they are. The kernel is compiled.

Without a time limit it does a fixed amount of work, and the same problem gives the same
plan and the same proof, on any number of threads. There is no chance in it: the seed
changes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan, Provenance
from memplan.core.problem import Problem
from memplan.solving.exact_ladder import MOST_BUFFERS, Ladder, Tuning, paced
from memplan.solving.gapped import refuse_gaps
from memplan.solving.options import DEFAULTS, Options, Progress
from memplan.solving.parts import Part, take_apart
from memplan.solving.priorities import best_of_six

# Placements in all searches together, where nothing else limits them: about half a
# minute on two cores.
DEFAULT_NODES = 40_000_000


@dataclass(frozen=True, eq=False)
class ExactResult:
    """What is known when the search ends.

    offsets: of the best plan, bytes, shape (n,); never worse than the incumbent.
    lower_bound: bytes that no plan needs less than. proved_optimal: they have met.
    nodes: placements made. interrupted: by Ctrl-C. too_large: nothing was searched in
    some part of the problem, for it has too many buffers.
    """

    offsets: Int64Array
    lower_bound: int
    proved_optimal: bool
    nodes: int
    interrupted: bool = False
    too_large: bool = False


def solve(problem: Problem, options: Options = DEFAULTS) -> Plan:
    """The best Plan found within the limits of `options`, or until Ctrl-C.

    With a capacity, ends as soon as a plan keeps within it, or it is proved that none
    can: then the plan's lower bound exceeds the capacity.

    Raises NoPlanError where fixed offsets collide, UsageError for gaps in lifespans.
    """
    refuse_gaps(problem, "exact")
    start = time.perf_counter()
    incumbent, name = best_of_six(problem, options)
    if options.time_limit is not None:
        spent = time.perf_counter() - start
        options = replace(options, time_limit=max(0.0, options.time_limit - spent))
    found = improve(problem, incumbent, options=options)
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
    problem: Problem,
    incumbent: Int64Array,
    bound: int = 0,
    options: Options = DEFAULTS,
    tuning: Tuning | None = None,
) -> ExactResult:
    """Better offsets than `incumbent`, a plan for `problem`, or a proof of its worth.

    bound: bytes that are known to be needed. options: as for `solve`; `max_nodes` is
    DEFAULT_NODES, paced, where it and the time limit are None. tuning: rules and
    rankings; its threads and limits are those of the options, which may name more rules
    to leave out.

    Raises UsageError for gaps in lifespans, and for a rule that there is not.
    """
    refuse_gaps(problem, "exact")
    start = time.perf_counter()
    tuning = Tuning() if tuning is None else tuning
    limit, most = options.time_limit, options.max_nodes
    if most is None:
        most = paced(DEFAULT_NODES, len(problem)) if limit is None else 1 << 62
    tuning = replace(
        tuning,
        without=tuple(dict.fromkeys((*tuning.without, *options.without))),
        threads=options.workers(),
        deadline=math.inf if limit is None else start + limit,
        most_nodes=most,
    )
    climb = _Climb(problem, incumbent, max(bound, lower_bound(problem)), tuning)
    interrupted = False
    try:
        for _ in climb.steps(options.capacity):
            now = time.perf_counter()
            options.report(Progress(climb.peak, climb.lower, climb.nodes, now - start))
            if now >= tuning.deadline or climb.nodes >= tuning.most_nodes:
                break
    except KeyboardInterrupt:
        interrupted = True
    return ExactResult(
        climb.offsets,
        climb.lower,
        climb.peak <= climb.lower,
        climb.nodes,
        interrupted,
        climb.too_large,
    )


class _Climb:
    """The parts of a problem, each on its ladder; the highest matters."""

    def __init__(
        self, problem: Problem, incumbent: Int64Array, bound: int, tuning: Tuning
    ) -> None:
        self._problem, self._incumbent = problem, incumbent
        self._bound = bound
        self._base, parts = take_apart(problem)
        self._parts = [part for part in parts if len(part.members)]
        self._ladders = [
            Ladder(
                part.problem,
                self._start(part),
                max(lower_bound(part.problem), bound if self._is_whole else 0),
                tuning,
            )
            for part in self._parts
        ]

    @property
    def _is_whole(self) -> bool:
        # Not by its floor: what lies at the bottom may belong to another time.
        return [len(part.members) for part in self._parts] == [len(self._problem)]

    def _start(self, part: Part) -> Int64Array:
        """A plan for one part: the incumbent's, brought down, or best fit's."""
        if self._is_whole:
            return self._incumbent[part.members]
        return best_of_six(part.problem)[0]

    @property
    def lower(self) -> int:
        """Bytes: the highest bound of a part, or what was known of the whole."""
        tops = [
            part.floor + ladder.lower
            for part, ladder in zip(self._parts, self._ladders, strict=True)
        ]
        return max(self._bound, *tops) if tops else self._bound

    @property
    def peak(self) -> int:
        """Bytes of the best plan so far."""
        return self._problem.peak(self.offsets)

    @property
    def offsets(self) -> Int64Array:
        """The parts' plans put together, or the incumbent if that is no worse."""
        offsets: Int64Array = self._base.copy()
        for part, ladder in zip(self._parts, self._ladders, strict=True):
            offsets[part.members] = part.floor + ladder.offsets
        if self._problem.peak(offsets) < self._problem.peak(self._incumbent):
            return offsets
        return self._incumbent

    @property
    def nodes(self) -> int:
        """Placements made in all parts."""
        return sum(ladder.nodes for ladder in self._ladders)

    @property
    def too_large(self) -> bool:
        """Whether a part that is too high was not searched for its size."""
        lower = self.lower
        return any(
            ladder.too_large and part.floor + ladder.peak > lower
            for part, ladder in zip(self._parts, self._ladders, strict=True)
        )

    def steps(self, capacity: int | None) -> Iterator[None]:
        """Work on the highest part that can still be improved, in short runs."""
        climbs = {
            i: ladder.climb()
            if capacity is None
            else ladder.climb_to(capacity - part.floor)
            for i, (part, ladder) in enumerate(
                zip(self._parts, self._ladders, strict=True)
            )
        }
        while climbs and self.peak > max(self.lower, capacity or 0):
            if capacity is not None and self.lower > capacity:
                return
            highest = max(climbs, key=self._top)
            goal = self.lower if capacity is None else capacity
            if self._top(highest) <= goal:
                return
            self._ladders[highest].goal = goal - self._parts[highest].floor
            if next(climbs[highest], _ENDED) is _ENDED:
                return  # and what the other parts do does not matter
            yield

    def _top(self, i: int) -> int:
        return self._parts[i].floor + self._ladders[i].peak


_ENDED = object()
