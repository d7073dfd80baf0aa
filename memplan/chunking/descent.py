"""The way down to a budget: search, build, measure, and aim lower where that fails."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar
from weakref import WeakKeyDictionary

from memplan.chunking.curve import live_within
from memplan.chunking.options import ChunkOptions
from memplan.chunking.recompute import Base, as_cheap, bases
from memplan.chunking.search import Search
from memplan.chunking.timing import Costs
from memplan.chunking.trial import Digest, Trial
from memplan.graph.capture import Exports, Target
from memplan.graph.program import Program

BUILT = 3  # modules that are built for a goal, not only estimated
STEPS_DOWN = 24  # at most, of the search for the least budget
MISSES = 2  # budgets that are missed, each lower than the one before
NEAR = 0.95  # bisection ends when the highest failed budget is this near the best
ROUNDS = 6  # goals for a budget, if modules need more than estimated
ATTEMPTS = 2  # of them with the same values computed again
LOWER = 0.7  # times a peak or budget that is too much or kept too slowly: the next
FURTHER = (0.25, 0.5, 0.9, 0.97, 1)  # times the lowest peak found, less a byte: next
LITTLE = 0.999  # of the lowest peak, above which a step has brought next to nothing
LOWERED = 5  # goals that are tried for a budget
LARGE = 1 / 16  # of a peak, for a storage that limits it
ANCHORED = 4  # of a limited time, one part goes to plans that are fast, from above
DEAR = 0.25  # of a run, by which an estimate of time may be wrong
SPARE = 0.9  # of an estimate, at most, where more is searched for as well

Made = TypeVar("Made")
Until = Literal["settled", "fast", "fits"]
"""A module keeps to the limit, and is known to be fast enough, is found so, or may be
slow."""
Peaks = tuple[int, int]
"""The estimated and the measured peak of a module, in bytes."""


class Bench(Protocol[Made]):
    """Makes modules of trials, and measures them.

    before: bytes that the model needs. internal_errors: how many regions or modules
    each defect of memplan dropped. interrupted: whether Ctrl-C ended a `fastest`.
    """

    before: int
    internal_errors: Counter[str]
    interrupted: bool

    def build(self, trials: Mapping[str, Trial], limit: int) -> Made | None:
        """The correct module of a trial for each part; None if there is none."""

    def peak(self, module: Made) -> int:
        """The bytes that it needs, as measured."""

    def settled(self, module: Made, enough: float) -> bool:
        """Whether it is known already to take at most `enough` times the model's time,
        so that no other need be built."""

    def fastest(self, modules: Sequence[Made], enough: float) -> Made:
        """The fastest of some modules, at least one, timed; more thoroughly where a
        ratio is above `enough`. Raises KeyboardInterrupt if Ctrl-C ended that before
        one was timed."""

    def slowdown(self, module: Made) -> float:
        """The time over the model's, of a module that `fastest` gave."""

    def is_fast(self, module: Made, enough: float) -> bool:
        """Whether that is not clearly above `enough`."""


@dataclass
class Tried:
    """A search of a program and of what it computes again.

    Of the present budget: the largest room in which it found nothing, and for how many
    goals what it found needed more than estimated.
    """

    search: Search
    failed: int = 0
    short: int = 0


class Tries:
    """The searches of a program; each is made when it is first needed.

    Those whose ATTEMPTS fell short come last.
    """

    def __init__(
        self, program: Program, costs: Costs, search: Callable[[Base], Search]
    ) -> None:
        """search: makes the search that begins with a base."""
        self.known: list[Tried] = []
        self._search = search
        first = as_cheap(program)
        self._first = len(first)
        self._more = bases(first, costs.beside, self._limiting)

    def __iter__(self) -> Iterator[Tried]:
        last = [tried for tried in self.known if tried.short >= ATTEMPTS]
        yield from [tried for tried in self.known if tried.short < ATTEMPTS]
        for base in self._more:
            yield self._begun(base)
        yield from last

    def _begun(self, base: Base) -> Tried:
        self.known.append(Tried(self._search(base)))
        return self.known[-1]

    def as_cheap(self, tried: Tried) -> list[Tried]:
        """Others whose programs take no more arithmetic than that of this one."""
        if tried not in self.known[: self._first]:
            return []
        while len(self.known) < self._first:
            self._begun(next(self._more))
        return [each for each in self.known[: self._first] if each is not tried]

    @property
    def lowest(self) -> Trial:
        """The trial with the lowest peak that any of the searches has made."""
        return min((each.search.best for each in self.known), key=lambda one: one.peak)

    def _limiting(self) -> Set[str]:
        """The larger storages at the peak of the last one's best trial."""
        best = self.known[-1].search.best
        live = live_within(best.program, best.profile)
        return {name for name, size in live if size >= LARGE * best.peak}


class Descent(Generic[Made]):
    """Searches the parts of a model for a budget, and for the least one.

    nearest: the module that came nearest to the last budget. interrupted: whether
    Ctrl-C ended a search.
    """

    def __init__(
        self,
        exports: Exports,
        bench: Bench[Made],
        costs: Costs,
        whole: float,
        options: ChunkOptions,
        built: int = BUILT,
    ) -> None:
        """whole: seconds of a run of the model. built: modules built for a goal."""
        self.nearest: Made | None = None
        self.interrupted = False
        self._exports, self._bench, self._costs = exports, bench, costs
        self._whole, self._options, self._built = whole, options, built
        self._tries: dict[str, Tries] = {}  # of each part
        self._over = 1.0  # the estimate over the measured peak of the last module
        # Of the trials in a module.
        self._digests: WeakKeyDictionary[Made, list[Digest]] = WeakKeyDictionary()
        self._slow: set[Digest] = set()  # trials in modules that are not fast enough
        self._used: list[Tried] = []  # what the trials of a goal began with
        # Of each way that was built for a limit; None: its results differ, or it fits.
        self._known: dict[object, Peaks | None] = {}
        limit = options.time_limit
        self._stop = math.inf if limit is None else time.monotonic() + limit

    def fastest(self, modules: Sequence[Made]) -> tuple[Made, bool]:
        """The fastest of some modules, at least one; whether it is fast enough."""
        enough = self._options.enough
        module = self._bench.fastest(modules, enough)
        fast = self._bench.is_fast(module, enough)
        self.interrupted = self.interrupted or self._bench.interrupted
        if not fast:
            self._slow.update(*(self._digests.get(each, []) for each in modules))
        return module, fast

    def fast_within(self, limit: int) -> tuple[Made | None, bool]:
        """The fastest module found within `limit` bytes, and whether it is fast enough;
        None if none keeps to it.

        A lower budget leads to other regions, so where none is found, or only slow
        ones, lower budgets are tried until MISSES of all find nothing.
        """
        fitting: list[Made] = []
        nearest: Made | None = None
        aim, goal, missed = limit, 0, 0
        for _ in range(LOWERED):
            try:
                found = self.within(aim, goal, limit)
                near = [each for each in (nearest, self.nearest) if each is not None]
                nearest = min(near, key=self._bench.peak, default=None)
                if not found and self.nearest is not None:  # it may keep to `limit`
                    found = [self.nearest]
                within = [each for each in found if self._bench.peak(each) <= limit]
                missed += not within
                if within:
                    best, fast = self.fastest(within)
                    fitting.append(best)
                    if fast:
                        return best, True
            except KeyboardInterrupt:
                if not fitting:
                    raise
                self.interrupted = True
                break
            if missed == MISSES or self.interrupted or time.monotonic() >= self._stop:
                break
            wider = int(limit * self._over)
            if within and not goal and limit < SPARE * wider:
                goal = wider  # what fits needs less than estimated: so may others
            else:
                aim = goal = int(LOWER * aim)
        self.nearest = nearest
        if not fitting:
            return None, False
        return min(fitting, key=self._bench.slowdown), False

    def found_within(self, limit: int) -> tuple[Made | None, bool]:
        """As `fast_within`; but where that finds none, the module with the lowest peak
        may keep to the limit. If it does not, it is `nearest`."""
        module, fast = self.fast_within(limit)
        if module is None:
            lowest = self.lowest()
            if lowest is not None and self._bench.peak(lowest) <= limit:
                return self.fastest([lowest])
        return module, fast

    def lowest(self) -> Made | None:
        """The module with the lowest peak that is found, however slow; None if none
        needs less than the model.

        Goes on from `nearest` in smaller and smaller steps, each until one brings next
        to nothing, and then to the lowest that was estimated on the way.
        """
        best = self.nearest
        steps = [share for share in FURTHER for _ in range(STEPS_DOWN)]
        known = self._bench.before
        while steps and not self.interrupted and time.monotonic() < self._stop:
            before = self._bench.before if best is None else self._bench.peak(best)
            share = steps.pop(0)
            goal = min(int(share * before) - 1, known)
            try:
                self.within(goal, until="fits")
            except KeyboardInterrupt:
                self.interrupted = True
            after = before if self.nearest is None else self._bench.peak(self.nearest)
            if after > LITTLE * before:
                steps = [each for each in steps if each > share]
            if after < before:
                best = self.nearest
                if not steps and self._least_known() < after:
                    steps, known = [1], self._least_known()
        self.nearest = best
        return best

    def least(self) -> tuple[Made | None, bool]:
        """The module with the lowest peak, and whether it is fast enough; None if none
        needs less than the model.

        If the lowest of all is too slow, bisects between its peak and the model's, for
        which half of a limited time is left. A module that is too slow, or seems so,
        counts only if all are. If time is limited, a part of it goes first to those
        that are fast and save less, so that there is one.
        """
        peak, stop, now = self._bench.peak, self._stop, time.monotonic()
        best: Made | None = None
        high, limit = self._bench.before, int(LOWER * self._bench.before)
        self._stop = now + (stop - now) / ANCHORED
        while stop < math.inf and (module := self._fast(limit, high)) is not None:
            best, high = module, peak(module)
            limit = high // 2
            if self.interrupted or time.monotonic() >= self._stop:
                break
        near = [each for each in (best, self.nearest) if each is not None]
        self.nearest = min(near, key=peak, default=None)
        self._stop = now + (stop - now) / 2
        lowest = self.lowest()
        self._stop = stop
        if lowest is None and best is None and self.interrupted:
            raise KeyboardInterrupt
        if lowest is None or (self.interrupted and best is not None):
            self.nearest = best
            return best, True
        try:
            slow, fast = self.fastest([lowest])
        except KeyboardInterrupt:
            if best is None:
                raise
            self.interrupted, self.nearest = True, best
            return best, True
        low, good = peak(lowest), self._seems_fast(slow)
        while not good and low <= NEAR * high and not self.interrupted:
            limit = max(low + 1, math.isqrt(low * high))
            module = self._fast(limit, high)
            if module is not None:
                best, high = module, peak(module)
            if module is None or peak(module) > limit:
                low = limit
            if time.monotonic() >= self._stop:
                break
        self.nearest = best or slow
        return (slow, fast) if good or best is None else (best, True)

    def _fast(self, limit: int, high: int) -> Made | None:
        """The fastest module that a search within `limit` bytes finds, if it seems fast
        enough and needs less than `high`."""
        try:
            found = self.within(limit, until="fast")
            found = found or ([] if self.nearest is None else [self.nearest])
            lower = [each for each in found if self._bench.peak(each) < high]
            module = self.fastest(lower)[0] if lower else None
        except KeyboardInterrupt:
            self.interrupted = True
            return None
        return module if module is not None and self._seems_fast(module) else None

    def _seems_fast(self, module: Made) -> bool:
        """Whether it is fast enough also by its time as measured, sure or not."""
        module, fast = self.fastest([module])
        return fast and self._bench.slowdown(module) <= self._options.enough

    def within(
        self,
        limit: int,
        first: int = 0,
        most: int = 0,
        until: Until = "settled",
    ) -> list[Made]:
        """Correct modules whose measured peak is at most `limit` bytes, best first.

        first: bytes of the first estimates; 0 for `limit`. most: one that is fast
        enough may need so many bytes; 0 for `limit`. until: what ends the building of
        others. Raises KeyboardInterrupt if Ctrl-C ended the search before there was
        one.
        """
        most = most or limit
        goal = lowest = first or limit
        seen: set[Peaks] = set()
        self.nearest, self._known = None, {}
        for tries in self._tries.values():
            for tried in tries.known:
                tried.short = tried.failed = 0
        rounds = 0
        while rounds < ROUNDS:
            good, short = self._built_for(goal, limit, most, until)
            lower = short and goal and min(short)[0] <= goal
            if good or not lower or time.monotonic() >= self._stop:
                return good  # nothing lower is known
            estimated, measured = min(short, key=lambda pair: pair[1])
            wanted = limit * estimated / measured
            if rounds and measured - estimated < limit:  # what lies beside may stay
                wanted = min(wanted, limit - (measured - estimated))
            goal = int(min(goal * 0.97, wanted))
            lowest = min(lowest, goal)
            if seen.issuperset(short):  # the same again: go on below all goals so far
                goal = lowest
                continue
            seen.update(short)
            rounds += 1
            for tried in self._used:
                tried.short += 1
                if tried.short == ATTEMPTS:  # other values are computed again
                    goal = limit
        return []

    def _built_for(
        self, goal: int, limit: int, most: int, until: Until
    ) -> tuple[list[Made], list[Peaks]]:
        """Modules for a goal that keep to `limit`, or one with which it ends and that
        keeps to `most`; the peaks of the others. None is built twice for a limit."""
        good: list[Made] = []
        ways = {_mark(trials): trials for trials in self._trials(goal)}
        short = [self._known[mark] for mark in ways if mark in self._known]
        built = 0
        for mark, trials in ways.items():
            if mark in self._known or (built and self._is_dear(trials)):
                continue
            try:
                module = self._bench.build(trials, limit)
            except KeyboardInterrupt:
                self.interrupted = True
                break
            self._known[mark] = None
            if module is None:
                continue
            self._digests[module] = [each.digest for each in trials.values()]
            needs = self._bench.peak(module)
            self._over = self._estimated(trials) / max(1, needs)
            if self.nearest is None or needs < self._bench.peak(self.nearest):
                self.nearest = module
            if needs <= most and self._ends(until, module):
                return [module], []
            if needs <= limit:
                good.append(module)
            else:
                self._known[mark] = self._estimated(trials), needs
                short.append(self._known[mark])
            built += 1
            if built == self._built * (2 if until == "fast" else 1):
                break
        if self.interrupted and not good:
            raise KeyboardInterrupt
        return good, [peaks for peaks in short if peaks is not None]

    def _ends(self, until: Until, module: Made) -> bool:
        """Whether no other module need be built beside one that fits."""
        if until == "fits" or self._bench.settled(module, self._options.enough):
            return True
        if until == "fast":
            return self._seems_fast(module)
        return False

    def _is_dear(self, trials: dict[str, Trial]) -> bool:
        """Whether they hardly can be fast enough, by their estimates."""
        spent = sum(each.seconds for each in trials.values())
        return spent > (self._options.enough - 1 + DEAR) * self._whole

    def _estimated(self, trials: dict[str, Trial]) -> int:
        """The estimated peak of all parts together."""
        targets = self._exports.targets
        return max(each.outside + trials[each.path].peak for each in targets)

    def _least_known(self) -> int:
        """The lowest estimated peak of all trials so far."""
        return self._estimated(
            {path: each.lowest for path, each in self._tries.items()}
        )

    def _trials(self, goal: int) -> list[dict[str, Trial]]:
        """Ways to keep to `goal` bytes: each has a trial for every exported part."""
        ways: list[dict[str, Trial]] = []
        self._used = []
        for target in self._exports.targets:
            chosen = self._chosen(target, max(1, goal - target.outside))
            if not ways:
                ways = [{} for _ in chosen]
            for i, way in enumerate(ways):
                way[target.path] = chosen[min(i, len(chosen) - 1)]
        return ways

    def _chosen(self, target: Target, room: int) -> list[Trial]:
        """Trials of a part within `room` bytes, or the one that comes nearest."""
        if target.path not in self._tries:
            tries = Tries(target.program, self._costs, self._search)
            self._tries[target.path] = tries
        tries = self._tries[target.path]
        for tried in tries:
            if not (found := self._tried(tried, room)):
                continue
            for other in tries.as_cheap(tried):  # it may have far faster ones
                if other.short < ATTEMPTS and (more := self._tried(other, room)):
                    found = [*found, *more]
                    found.sort(key=lambda one: (one.digest in self._slow, one.seconds))
            return found
        return [tries.lowest]

    def _tried(self, tried: Tried, room: int) -> list[Trial]:
        """Its trials within `room` bytes; notes that they are used, or that there are
        none, which is not tried again."""
        if room <= tried.failed:
            return []
        found = self._found(tried.search, room)
        if found:
            self._used.append(tried)
        else:
            tried.failed = room
        return found

    def _found(self, search: Search, room: int) -> list[Trial]:
        """Trials within `room` bytes; after Ctrl-C, those found so far."""
        if search.start.peak <= room:
            return [search.start]
        if self.interrupted:
            return []
        left = max(0.0, self._stop - time.monotonic())
        most = min(self._options.effort.seconds, left)
        try:
            seconds = most / len(self._exports.targets)
            return search.run(room, seconds, self._slow)
        except KeyboardInterrupt:
            self.interrupted = True
            done = [trial for trial in search.done if trial.peak <= room]
            return sorted(done, key=lambda trial: trial.seconds)

    def _search(self, base: Base) -> Search:
        search = Search(
            base,
            self._exports.inference,
            self._costs,
            self._options.effort,
            self._options.progress,
            self._whole,
        )
        search.errors = self._bench.internal_errors
        return search


def _mark(trials: Mapping[str, Trial]) -> object:
    """What distinguishes the modules of trials."""
    return tuple((path, each.again, each.digest) for path, each in trials.items())
