"""One problem, searched in three ways by turns, each with the others' best.

None finds what the others do: random orders get low soon where many buffers are small,
ejection where there are thousands of them, the exact search where few plans fit, and
only that one proves anything. A turn is some orders, some nodes and some placements,
about as long; the turns grow. All of it is counted, not timed, so that the same problem
gives the same plan on any number of threads, unless there is a time limit.
"""

from __future__ import annotations

import math
import time
from itertools import pairwise

from memplan.arrays import Int64Array
from memplan.core.problem import Problem
from memplan.solving.ejection import Ejection
from memplan.solving.exact_ladder import Ladder, Tuning, paced
from memplan.solving.options import Options, Progress
from memplan.solving.search import Search

# Exact search of more buffers than this seldom ends in the time that people wait.
MOST_FOR_EXACT = 1000
# Ejection of more takes hundreds of megabytes, and minutes to come anywhere.
MOST_FOR_EJECTION = 300_000
NODES = 4_000_000  # of exact search where there is no limit, paced: some seconds
_FIRST_SHARE = 0.05  # of what the other two try by themselves, in the first turn
_FIRST_NODES = 40_000  # paced
_DOUBLINGS = 4  # of all three, from turn to turn
_AT_FIRST = 0.25  # of the first turn's effort, for a small problem
# Turns without ejection where a capacity is asked for: most problems of so many are
# solved by then.
_ALONE = 3
_MOST_ALONE = 500


class Race:
    """Three searches of one problem, without gaps.

    search, ejection, ladder: at random, by ejection, and exactly; the ladder is None
    where that is not asked for. turns: taken so far.
    """

    def __init__(
        self, problem: Problem, offsets: Int64Array, options: Options, start: float
    ) -> None:
        """offsets: a plan to begin with. start: of the time limit, in seconds by
        `time.perf_counter`. options: their capacity is not looked at."""
        self.problem, self.options, self.start = problem, options, start
        self.small = len(problem) <= MOST_FOR_EXACT
        self.search = Search(problem, options, offsets)
        self.ejection = Ejection(problem, options, offsets)
        self.ladder: Ladder | None = None
        self.turns = 0
        self.closed = False  # nothing is left to find out by the exact search
        limit = options.time_limit
        self._deadline = math.inf if limit is None else start + limit
        free = limit is not None
        orders, nodes = options.iterations, options.max_nodes
        usual = self.search.usual
        self.most_orders = (1 << 62 if free else usual) if orders is None else orders
        self.most_nodes = 1 << 62 if nodes is None else nodes
        self._gives_up = nodes is None and not free
        self._decides = False  # it is asked for a capacity, not for the least peak
        self.most_placed = self.ejection.usual
        if orders is not None:  # as much less, or more, as was asked of the other
            self.most_placed = math.ceil(self.most_placed * orders / usual)
        self._usual, self._usually_placed = usual, self.most_placed
        if free and orders is None:
            self.most_placed = 1 << 62
        self._portion = 0.5  # of the two's effort, for random search
        if len(problem) > MOST_FOR_EJECTION:
            self.most_placed, self._portion = 0, 1.0

    @property
    def peak(self) -> int:
        """Bytes of the best plan so far."""
        return self.search.peak

    @property
    def bound(self) -> int:
        """Bytes that no plan needs less than."""
        exact = 0 if self.ladder is None else self.ladder.lower
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
    def spent(self) -> bool:
        """Whether nothing more will be tried: all is known, or the effort was made."""
        orders_left = self.search.tried < self.most_orders
        orders_left |= self.ejection.tried < self.most_placed
        nodes_left = self.ladder is not None and self.nodes < self.most_nodes
        return self.closed or self.late or not (orders_left or nodes_left)

    def enter_exact(self, goal: int, capacity: int | None) -> None:
        """Have the exact search take part: for any peak down to `goal` bytes, or, with
        a `capacity`, just for one that keeps within."""
        self._decides = capacity is not None
        if self._gives_up:
            self.most_nodes = self._paced(NODES)
        tuning = Tuning(
            threads=self.options.workers(),
            without=self.options.without,
            deadline=self._deadline,
            most_nodes=self.most_nodes,
            slice=paced(Tuning.slice, len(self.problem)),
        )
        self.ladder = Ladder(
            self.problem, self.search.offsets, self.search.bound, tuning
        )
        self.ladder.goal = goal
        if self.ladder.too_large:
            self.ladder = None
            return
        self._climb = (
            self.ladder.climb() if capacity is None else self.ladder.climb_to(capacity)
        )

    def turn(self, goal: int) -> None:
        """Search at random, exactly and by ejection, until a peak of `goal` bytes is
        reached or the turn is over. The goal may have risen since."""
        share = 2 * _FIRST_SHARE * 2 ** min(self.turns, _DOUBLINGS)
        self.turns += 1
        if self.small and self.turns == 1:
            share *= _AT_FIRST  # exact search comes next, and is often quicker
        peaks, ejected = [self.peak], self.ejection.tried
        for search in (self._at_random, self._exactly, self._by_ejection):
            if self.peak > goal and not self.closed:
                search(goal, share)
            peaks.append(self.peak)
        random, _, ejection = (a - b for a, b in pairwise(peaks))
        if self.ejection.tried > ejected:
            gained = random + 2 * ejection  # which comes on top of the other
            self._portion = 0.1 + 0.7 * (random / gained if gained else 0.5)

    def _at_random(self, goal: int, share: float) -> None:
        """share: of what is usual without a limit; so does ejection."""
        orders = max(1, round(self._usual * share * self._portion))
        orders = min(self.search.tried + orders, self.most_orders)
        self.search.seek(goal, orders, self.start)

    def _exactly(self, goal: int, share: float) -> None:
        if self.ladder is None:
            return
        self.ladder.take(self.search.offsets)
        self.ladder.goal = max(goal, self.ladder.goal)
        nodes = self._paced(_FIRST_NODES) * 2 ** min(self.turns - 1, _DOUBLINGS)
        try:
            self._climb_on(min(self.nodes + nodes, self.most_nodes))
        finally:
            self.search.take(self.ladder.offsets)

    def _by_ejection(self, goal: int, share: float) -> None:
        alone = self.small and self.turns == 1
        if self._decides:
            alone |= len(self.problem) <= _MOST_ALONE and self.turns <= _ALONE
        if not self.most_placed or alone:
            return
        self.ejection.take(self.search.offsets)
        placed = max(1, round(self._usually_placed * share * (1 - self._portion)))
        placed = min(self.ejection.tried + placed, self.most_placed)
        try:
            self.ejection.seek(goal, placed, self.start)
        finally:
            self.search.take(self.ejection.offsets)

    def _paced(self, nodes: int) -> int:
        """So many nodes, or fewer of many buffers: as long as of a few, or, where the
        least peak is asked for, less, for that of many is seldom proved."""
        many = paced(nodes, len(self.problem))
        return many if self._decides else paced(many, len(self.problem))

    def _climb_on(self, nodes: int) -> None:
        assert self.ladder is not None
        while self.nodes < nodes and not self.late:
            if next(self._climb, _ENDED) is _ENDED:
                self.closed = True
                return
            seconds = time.perf_counter() - self.start
            peak = self.ladder.peak
            self.options.report(Progress(peak, self.bound, self.nodes, seconds))


_ENDED = object()
