"""The method for those who do not want to choose one.

The six priorities take milliseconds, and often reach the lower bound: then that is
all. Otherwise the problem is taken apart, and each part that is too high is searched:
briefly at random, then exactly if it is small and at random for what time is left; or
by ejection, in turn with random search, if it is large.
With gaps in lifespans there are the six priorities only.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan, Provenance
from memplan.core.problem import Problem
from memplan.solving import exact
from memplan.solving.ejection import Ejection
from memplan.solving.options import DEFAULTS, Options, Progress
from memplan.solving.parts import Part, take_apart
from memplan.solving.priorities import best_of_six
from memplan.solving.search import Search

# Exact search of more buffers than this seldom ends in the time that people wait.
MOST_FOR_EXACT = 500
_NODES = 3_000_000  # of exact search where there is no limit: some seconds
_BRIEFLY = 0.05  # of the limits, for the search before the exact one
_EXACTLY = 0.85  # of the limits, for both of them


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
    did: what was done, for people.
    """

    def __init__(self, problem: Problem, options: Options) -> None:
        self.problem, self.options = problem, options
        self.start = time.perf_counter()
        self.bound = lower_bound(problem)
        self.offsets, self.name = best_of_six(problem, options)
        self.nodes = 0
        self.did: list[str] = []

    def run(self) -> None:
        """Better offsets and bounds, until both meet or a limit is reached."""
        peak = self.problem.peak(self.offsets)
        if peak <= self._goal():
            at = "at the lower bound" if peak == self.bound else "within the capacity"
            self.did.append(f"best fit by {self.name} is {at}")
            return
        if self.problem.gaps is not None:
            self.did.append(
                f"best fit by {self.name}, the best of six priorities; with gaps in "
                "lifespans there is no search, and no proof but the lower bound's"
            )
            return
        base, parts = take_apart(self.problem)
        if len(parts) > 1:
            self.did.append(f"{len(parts):,} independent parts")
        parts.sort(key=lambda part: len(part.members))
        begun = [(part, self._begin(part, base)) for part in parts]
        self._keep_if_better(base)
        for part, search in begun:
            self.bound = max(self.bound, part.floor + search.bound)
        for part, search in begun:
            try:
                self._improve(part, search)
            finally:
                base[part.members] = search.offsets + part.floor
                self._keep_if_better(base)

    def _goal(self) -> int:
        return max(self.bound, self.options.capacity or 0)

    def _begin(self, part: Part, base: Int64Array) -> Search:
        """The search of a part, which has some offsets to begin with."""
        whole = len(part.members) == len(self.problem)
        offsets = self.offsets
        if not whole:
            offsets, _ = best_of_six(part.problem, self._options_for(part))
        base[part.members] = offsets + part.floor
        return Search(part.problem, self._options_for(part), offsets)

    def _options_for(self, part: Part) -> Options:
        """Whatever ends below the peak that the whole must have is good enough."""

        def report(progress: Progress) -> None:
            peak = self.problem.peak(self.offsets)
            if progress.peak is not None and len(part.members) == len(self.problem):
                peak = min(peak, progress.peak)
            seconds = time.perf_counter() - self.start
            nodes = self.nodes + progress.nodes
            self.options.report(Progress(peak, self.bound, nodes, seconds))

        goal = max(self._goal() - part.floor, 0)
        return replace(self.options, capacity=goal, progress=report)

    def _improve(self, part: Part, search: Search) -> None:
        """Lower offsets in `search`, and a higher bound, if limits allow."""
        search.options = self._options_for(part)  # the goal may be higher by now
        if search.done:
            return
        search.run(self.start, _BRIEFLY)
        if search.done:
            self.did.append(f"search reached the goal in {search.packed:,} orders")
            return
        count = len(part.members)
        if count > MOST_FOR_EXACT:
            self._eject(part, search)
            return
        if self._search_exactly(part, search):
            return
        before = search.packed
        search.run(self.start)
        self.did.append(f"search, {search.packed:,} orders")
        self.nodes += search.packed - before

    def _eject(self, part: Part, search: Search) -> None:
        """Lower offsets in `search`, of a part too large for exact search.

        Random search and ejection take turns, and whoever gained more last time gets
        more of the next; neither is the better one everywhere.
        """
        ejection = Ejection(part.problem, search.options, search.offsets)
        orders, portion, share = search.packed, 0.5, _BRIEFLY
        try:
            for after in (0.15, 0.3, 0.45, 0.6, 0.8, 1.0):
                before = search.peak
                # Without a time limit each has work of its own to do.
                timed = self.options.time_limit is not None
                turn = share + portion * (after - share) if timed else after
                search.run(self.start, turn)
                between = search.peak
                ejection.take(search.offsets)
                ejection.run(self.start, after)
                search.take(ejection.offsets)
                if before > between or between > search.peak:
                    better = before - between > between - search.peak
                    portion = 0.8 if better else 0.1
                share = after
        finally:
            search.take(ejection.offsets)
            self.nodes += ejection.placed + search.packed - orders
        self.did.append(
            f"{len(part.members):,} buffers are too many for exact search; search, "
            f"{search.packed:,} orders; ejection, {ejection.placed:,} placements"
        )

    def _search_exactly(self, part: Part, search: Search) -> bool:
        """Whether exact search has settled the part, or found what search did not.

        Where it gets further than search, more of that would be in vain.
        """
        before = search.peak
        options = self._options_for(part)
        if options.time_limit is not None:
            spent = time.perf_counter() - self.start
            left = max(options.time_limit * _EXACTLY - spent, 0.0)
            options = replace(options, time_limit=left)
        elif options.max_nodes is None:
            options = replace(options, max_nodes=_NODES)
        # No need to go below what the whole must have, in units of the part's sizes.
        unit = int(np.gcd.reduce(part.problem.padded))
        enough = (self.bound - part.floor) // unit * unit
        bound = max(search.bound, enough)
        if self.options.capacity is None:
            options = replace(options, capacity=None)
        found = exact.improve(part.problem, search.offsets, bound, options)
        search.take(found.offsets)
        self.nodes += found.nodes
        self.bound = max(self.bound, part.floor + found.lower_bound)
        self.did.append(
            f"exact search of {len(part.members):,} buffers, {found.nodes:,} nodes"
        )
        if found.interrupted:
            raise KeyboardInterrupt
        return found.proved_optimal or search.done or search.peak < before

    def _keep_if_better(self, offsets: Int64Array) -> None:
        if self.problem.peak(offsets) < self.problem.peak(self.offsets):
            self.offsets = offsets.copy()
