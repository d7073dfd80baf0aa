"""The default method: quick heuristics first, then three searches in turns.

Best fit by six priorities takes milliseconds, and often reaches the lower bound: then
that is all. Otherwise the problem is split into parts, and the highest part is searched
at random, by ejection and exactly, in turns, until another part is higher or all are as
low as they can or need to be. Each search starts from the others' best plan. Random
orders get low soon where many buffers are small, ejection where there are thousands,
the exact search where few plans fit; and only that one proves anything.

Turns grow. Between random search and ejection a turn is divided by how much each has
gained per second of processor time. That time is modelled from counts of work, not
measured, so that the same problem gives the same plan on any number of threads, unless
there is a time limit. Without one the search gives up after a fixed effort per part.

Gaps in lifespans are used by best fit, and at the end by random search. Before that,
all searches treat every buffer as used whole and all its life, if that can come to
less: what they find is a plan all the same, but what they prove does not hold.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan, Provenance
from memplan.core.problem import Problem
from memplan.solving.anytime import UNLIMITED, Anytime, Ejection, Search
from memplan.solving.bestfit import best_of_six
from memplan.solving.exact import SLICE, Ladder, paced
from memplan.solving.options import DEFAULTS, Options, Progress
from memplan.solving.parts import Part, PartByPart

# Exact search of more buffers than this seldom ends in an acceptable time.
MOST_FOR_EXACT = 1000
# Ejection of more takes hundreds of megabytes, and minutes to improve anything.
MOST_FOR_EJECTION = 300_000
NODES = 4_000_000  # of exact search where there is no limit, paced: some seconds
_BARE_SHARE = 0.5  # of a time limit, for searches without the gaps
_FIRST_NODES = 40_000  # paced
_FIRST_SECONDS = 0.23  # of random search and ejection together, in the first turn
_AT_FIRST = 0.25  # of that, for a small problem
_DOUBLINGS = 4  # of all three, from turn to turn
_LEAST_SHARE = 0.2  # of a turn, for random search and for ejection
_FIRST_SHARE = 0.75  # of a turn, for random search of many buffers at first
# With a capacity, turns without ejection: most problems of so many buffers are solved
# by then.
_ALONE = 3
_MOST_ALONE = 500


def solve(problem: Problem, options: Options = DEFAULTS) -> Plan:
    """The best Plan found; its note says how it was found, and why the search ended.

    Ctrl-C ends it with the best so far. Raises NoPlanError where fixed offsets collide.
    """
    attempt = _Attempt(problem, options)
    try:
        attempt.run()
    except KeyboardInterrupt:
        attempt.did.append("interrupted")
    made = Provenance("auto", options.seed, note="; ".join(attempt.did))
    return Plan.of(problem, attempt.offsets, made, bound=attempt.bound)


class _Attempt:
    """What is known of a problem so far: always some offsets, and a bound.

    offsets: bytes, shape (n,); bound: bytes; no plan needs less.
    did: what was done, for people. least: the bound without gaps.
    """

    def __init__(self, problem: Problem, options: Options) -> None:
        self.problem, self.options = problem, options
        self.start = time.perf_counter()
        self.bound = self.least = lower_bound(problem)
        self.gapped = problem.gaps is not None
        self.offsets, self.name = best_of_six(problem, options)
        self.races: list[Race] = []
        self.did: list[str] = []

    def run(self) -> None:
        """Better offsets and bounds, until both meet or a limit is reached."""
        if self._reached(f"best fit by {self.name} is"):
            return
        if not self.gapped:
            self._race_all(self.problem)
            return
        bare = replace(self.problem, gaps=None)
        self.least = lower_bound(bare)
        most = self.problem.peak(self.offsets) - 1  # that is worth searching for
        if self.options.capacity is not None:
            most = min(most, self.options.capacity)
        if self.least <= most:
            self._race_all(bare)
            if self._reached("without the gaps it is"):
                return
        search = Search(self.problem, self.options, self.offsets)
        try:
            search.seek(search.goal, self.start)
        finally:
            self.offsets = search.offsets
            self.did.append(f"search with the gaps, {search.tried:,} orders")

    def _race_all(self, problem: Problem) -> None:
        """Each independent part of `problem` on its own."""
        parts = PartByPart(problem, self.offsets, self.bound, self._race)
        self._learn(parts)
        if len(parts.searches) > 1:
            self.did.append(f"{len(parts.searches):,} independent parts")
        if self._reached("taken apart, best fit is"):
            return
        capacity = self.options.capacity
        try:
            while capacity is None or self.bound <= capacity:
                if not parts.turn(self._part_goal):
                    break
                self._learn(parts)
        finally:
            self._learn(parts)
            for part, race in parts.searches:
                self._say(part, race)

    def _learn(self, parts: PartByPart[Race]) -> None:
        self.offsets = parts.offsets
        if not self.gapped:
            self.bound = parts.bound

    def _reached(self, what: str) -> bool:
        """Whether the offsets are low enough; then `what` has done it."""
        peak = self.problem.peak(self.offsets)
        if peak <= self._goal:
            at = "at the lower bound" if peak == self.bound else "within the capacity"
            self.did.append(f"{what} {at}")
            return True
        return False

    @property
    def _goal(self) -> int:
        return max(self.bound, self.options.capacity or 0)

    @property
    def _part_goal(self) -> int:
        """What is enough without the gaps."""
        return max(self.least, self._goal)

    def _race(self, part: Part) -> Race:
        """The race of a part, which has some offsets to begin with."""
        whole = len(part.members) == len(self.problem)
        offsets = self.offsets
        if not whole or self.gapped:
            enough = replace(self.options, capacity=max(0, self._goal - part.floor))
            offsets, _ = best_of_six(part.problem, enough)

        def report(progress: Progress) -> None:
            peak = self.problem.peak(self.offsets)
            if progress.peak is not None and whole:
                peak = min(peak, progress.peak)
            seconds = time.perf_counter() - self.start
            tried = sum(race.tried for race in self.races)
            self.options.report(Progress(peak, self.bound, tried, seconds))

        capacity = self.options.capacity
        capacity = None if capacity is None else capacity - part.floor
        options = replace(self.options, capacity=None, progress=report)
        if self.gapped and options.time_limit is not None:
            options = replace(options, time_limit=_BARE_SHARE * options.time_limit)
        race = Race(part.problem, offsets, options, self.start, capacity)
        self.races.append(race)
        return race

    def _say(self, part: Part, race: Race) -> None:
        """Add what was done for a part, unless best fit was enough."""
        if not race.turns:
            return
        count, orders = len(part.members), race.search.tried
        low = part.floor + race.peak <= self._part_goal
        if race.ladder is None and low:
            self.did.append(f"search reached the goal in {orders:,} orders")
            return
        tried = f"search, {orders:,} orders"
        if race.ejection.tried:
            tried += f"; ejection, {race.ejection.tried:,} placements"
        tried += ", without the gaps" * self.gapped
        if race.ladder is not None:
            tried = (
                f"exact search of {count:,} buffers, {race.nodes:,} nodes, and {tried}"
            )
        elif not race.small:
            tried = f"{count:,} buffers are too many for exact search; {tried}"
        if not low and not race.closed:
            tried += ", until time was up" if race.late else ", given up after that"
        self.did.append(tried)


class Race:
    """Three searches of one problem without gaps, each with the others' best.

    search, ejection, ladder: at random, by ejection, and exactly; the ladder is None in
    the first turn, and where there are too many buffers. turns: taken so far.
    """

    def __init__(
        self,
        problem: Problem,
        offsets: Int64Array,
        options: Options,
        start: float,
        capacity: int | None = None,
    ) -> None:
        """offsets: a plan to begin with. start: of the time limit, in seconds by
        `time.perf_counter`. capacity: bytes; ask only whether a plan fits, not for the
        least peak. The one of the options is ignored."""
        self.problem, self.options, self.start = problem, options, start
        self.small = len(problem) <= MOST_FOR_EXACT
        self.search = Search(problem, options, offsets)
        self.ejection = Ejection(problem, options, offsets)
        self.ladder: Ladder | None = None
        self.turns = 0
        self._capacity = capacity
        limit, orders, nodes = options.time_limit, options.iterations, options.max_nodes
        self._deadline = math.inf if limit is None else start + limit
        self._most_nodes = UNLIMITED if nodes is None else nodes
        if nodes is None and limit is None:
            self._most_nodes = self._paced(NODES)
        if orders is not None:  # as much less, or more, as was asked of the other
            usual = self.ejection.usual * orders / self.search.usual
            self.ejection.most = math.ceil(usual)
        if len(problem) > MOST_FOR_EJECTION:
            self.ejection.most = 0
        # Of random search, of its and ejection's time.
        self._share = 0.5 if self.small else _FIRST_SHARE

    @property
    def offsets(self) -> Int64Array:
        """Of the best plan so far, bytes, shape (n,)."""
        return self.search.offsets

    @property
    def peak(self) -> int:
        """Bytes of the best plan so far."""
        return self.search.peak

    @property
    def bound(self) -> int:
        """Bytes; no plan needs less."""
        exact = 0 if self.ladder is None else self.ladder.bound
        return max(self.search.bound, exact)

    @property
    def nodes(self) -> int:
        """Nodes of the exact search."""
        return 0 if self.ladder is None else self.ladder.nodes

    @property
    def tried(self) -> int:
        """Orders, placements and nodes."""
        return self.search.tried + self.ejection.tried + self.nodes

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return time.perf_counter() >= self._deadline

    @property
    def closed(self) -> bool:
        """Whether the exact search has nothing left to find out."""
        return self.ladder is not None and self.ladder.over

    @property
    def over(self) -> bool:
        """Whether nothing more will be tried: all is known, or the effort was made."""
        nodes_left = self.ladder is not None and self.nodes < self._most_nodes
        left = _left(self.search) or _left(self.ejection) or nodes_left
        return self.closed or self.late or not left

    def turn(self, goal: int) -> None:
        """Search at random, exactly and by ejection, until a peak of `goal` bytes is
        reached or the turn is over. The goal may have risen since the last turn."""
        if self.turns == 1 and self.small:
            self._enter_exact()
        seconds = _FIRST_SECONDS * 2 ** min(self.turns, _DOUBLINGS)
        nodes = self._paced(_FIRST_NODES) * 2 ** min(self.turns - 1, _DOUBLINGS)
        self.turns += 1
        if self.small and self.turns == 1:
            seconds *= _AT_FIRST  # exact search comes next, and is often quicker
        share = self._share if _left(self.ejection) else 1.0
        random = self._seek(self.search, goal, seconds * share)
        if self.ladder is not None:
            self._exactly(self.ladder, goal, nodes)
        if self._ejects:
            share = share if _left(self.search) else 0.0
            ejection = self._seek(self.ejection, goal, seconds * (1 - share))
            gained = random + ejection
            share = random / gained if gained else self._share
            self._share = min(max(share, _LEAST_SHARE), 1 - _LEAST_SHARE)

    @property
    def _ejects(self) -> bool:
        if not _left(self.ejection) or (self.small and self.turns == 1):
            return False
        alone = len(self.problem) <= _MOST_ALONE and self.turns <= _ALONE
        return self._capacity is None or not alone

    def _seek(self, search: Anytime, goal: int, seconds: float) -> float:
        """Run one of the two for so many modelled seconds; bytes it gained a second."""
        if self.peak <= goal or self.closed:
            return 0.0
        search.take(self.search.offsets)
        before, spent = self.peak, search.effort
        try:
            search.seek(goal, self.start, effort=spent + seconds)
        finally:
            self.search.take(search.offsets)
        return (before - self.peak) / max(search.effort - spent, 1e-9)

    def _enter_exact(self) -> None:
        """Have the exact search take part from now on."""
        ladder = Ladder(
            self.problem,
            self.offsets,
            self.search.bound,
            threads=self.options.workers(),
            deadline=self._deadline,
            capacity=self._capacity,
        )
        ladder.slice = paced(SLICE, len(self.problem))
        self.ladder = None if ladder.too_large else ladder

    def _exactly(self, ladder: Ladder, goal: int, nodes: int) -> None:
        ladder.take(self.offsets)
        most = min(self.nodes + nodes, self._most_nodes)
        try:
            while self.peak > goal and ladder.nodes < most and not self.late:
                ladder.turn(goal)
                if ladder.over:
                    break
                seconds = time.perf_counter() - self.start
                progress = Progress(ladder.peak, self.bound, ladder.nodes, seconds)
                self.options.report(progress)
        finally:
            self.search.take(ladder.offsets)

    def _paced(self, nodes: int) -> int:
        """`nodes`, or fewer of many buffers: as many as take the same time, or, where
        the least peak is asked for, less, for that of many is seldom proved."""
        many = paced(nodes, len(self.problem))
        return many if self._capacity is not None else paced(many, len(self.problem))


def _left(search: Anytime) -> bool:
    return search.tried < search.most
