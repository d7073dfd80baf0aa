"""The method for those who do not want to choose one.

The six priorities take milliseconds, and often reach the lower bound: then that is
all. Otherwise the problem is taken apart, and the part that is highest is searched, at
random, by ejection and exactly by turns, until another is higher, or all are as low as
they can be or need be. With a time limit that goes on for all of it; without one it
gives up after a fixed effort for each part, and says so.

Gaps in lifespans are used by the six priorities, and at last by random search. Before
that, all searches take every buffer for used all its life, whole, where that may come
to less: what they find is a plan all the same, but what they prove does not hold.
"""

from __future__ import annotations

import time
from dataclasses import replace

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan, Provenance
from memplan.core.problem import Problem
from memplan.solving.options import DEFAULTS, Options, Progress
from memplan.solving.parts import Part, take_apart
from memplan.solving.priorities import best_of_six
from memplan.solving.race import Race
from memplan.solving.search import Search

_BARE_SHARE = 0.5  # of a time limit, for searches without the gaps


def solve(problem: Problem, options: Options = DEFAULTS) -> Plan:
    """The best Plan found; its note says how, and why so.

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

    offsets: bytes, shape (n,); bound: bytes that no plan can do with less than.
    did: what was done, for people. least: the bound without gaps.
    """

    def __init__(self, problem: Problem, options: Options) -> None:
        self.problem, self.options = problem, options
        self.start = time.perf_counter()
        self.bound = self.least = lower_bound(problem)
        self.gapped = problem.gaps is not None
        self.offsets, self.name = best_of_six(problem, options)
        self.races: list[tuple[Part, Race]] = []
        self.did: list[str] = []

    def run(self) -> None:
        """Better offsets and bounds, until both meet or a limit is reached."""
        if self._reached(f"best fit by {self.name} is"):
            return
        bare = replace(self.problem, gaps=None)
        self.least = lower_bound(bare)
        hopeless = self.gapped and 0 < (self.options.capacity or 0) < self.least
        if self.least < self.problem.peak(self.offsets) and not hopeless:
            self._race_all(bare)
        if self.gapped and not self._reached("without the gaps it is"):
            self._use_gaps()

    def _race_all(self, problem: Problem) -> None:
        """Each independent part of `problem` on its own."""
        base, parts = take_apart(problem)
        if len(parts) > 1:
            self.did.append(f"{len(parts):,} independent parts")
        self.races = [(part, self._race(part)) for part in parts]
        self._learn(base)
        if self._reached("taken apart, best fit is"):
            return
        try:
            self._take_turns(base)
        finally:
            self._learn(base)
            for part, race in self.races:
                self._say(part, race)

    def _use_gaps(self) -> None:
        """At random, from the best so far on."""
        search = Search(self.problem, self.options, self.offsets)
        try:
            search.run(self.start)
        finally:
            self.offsets = search.offsets
            self.did.append(f"search with the gaps, {search.tried:,} orders")

    def _reached(self, what: str) -> bool:
        """Whether the offsets are low enough; then `what` has done it."""
        peak = self.problem.peak(self.offsets)
        if peak <= self._goal():
            at = "at the lower bound" if peak == self.bound else "within the capacity"
            self.did.append(f"{what} {at}")
            return True
        return False

    def _take_turns(self, base: Int64Array) -> None:
        """The highest part comes next; of those as high, the one with fewest turns."""
        while self.races:
            goal = self._part_goal
            high = [
                (part.floor + race.peak, -race.turns, -k)
                for k, (part, race) in enumerate(self.races)
            ]
            top = max(high)
            part, race = self.races[-top[2]]
            if top[0] <= goal or race.spent or self._fails():
                return  # then what the other parts do does not matter
            self._turn(part, race, goal - part.floor)
            self._learn(base)

    def _turn(self, part: Part, race: Race, goal: int) -> None:
        if race.turns == 1 and race.small:
            capacity = self.options.capacity
            race.enter_exact(
                max(goal, 0), None if capacity is None else capacity - part.floor
            )
        race.turn(goal)

    def _goal(self) -> int:
        return max(self.bound, self.options.capacity or 0)

    @property
    def _part_goal(self) -> int:
        """What is enough without the gaps."""
        return max(self.least, self._goal())

    def _fails(self) -> bool:
        """Whether it is proved that nothing keeps within the capacity."""
        capacity = self.options.capacity
        return capacity is not None and self.bound > capacity

    def _race(self, part: Part) -> Race:
        """The race of a part, which has some offsets to begin with."""
        whole = len(part.members) == len(self.problem)
        offsets = self.offsets
        if not whole or self.gapped:
            enough = replace(self.options, capacity=max(0, self._goal() - part.floor))
            offsets, _ = best_of_six(part.problem, enough)

        def report(progress: Progress) -> None:
            peak = self.problem.peak(self.offsets)
            if progress.peak is not None and whole:
                peak = min(peak, progress.peak)
            seconds = time.perf_counter() - self.start
            tried = sum(race.tried for _, race in self.races)
            self.options.report(Progress(peak, self.bound, tried, seconds))

        options = replace(self.options, capacity=None, progress=report)
        if self.gapped and options.time_limit is not None:
            options = replace(options, time_limit=_BARE_SHARE * options.time_limit)
        return Race(part.problem, offsets, options, self.start)

    def _learn(self, base: Int64Array) -> None:
        """Put together what the races have found."""
        for part, race in self.races:
            base[part.members] = race.search.offsets + part.floor
            if not self.gapped:
                self.bound = max(self.bound, part.floor + race.bound)
        if self.problem.peak(base) < self.problem.peak(self.offsets):
            self.offsets = base.copy()

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
