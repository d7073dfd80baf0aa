"""The search for regions whose loops bring a program's peak under a budget.

It goes from the peak downwards, as in the paper (§3.3): estimate the regions around the
operator at the peak, build the best few, and continue a beam of such sequences from the
new peak until nothing exceeds the budget.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from heapq import nsmallest
from itertools import product

from memplan.chunking.around import around, coarser, finer
from memplan.chunking.buffers import displaced
from memplan.chunking.candidates import Landscape
from memplan.chunking.inward import inward
from memplan.chunking.options import Effort
from memplan.chunking.recompute import Base
from memplan.chunking.region import Region, loop_name
from memplan.chunking.repetitions import elsewhere
from memplan.chunking.sliding import slidable
from memplan.chunking.timing import Costs
from memplan.chunking.trial import Digest, Trial, Trials, digest, mark, marks
from memplan.graph.infer import Inference
from memplan.graph.liveness import profile
from memplan.graph.program import Loop, Op, Program

ONWARD = 4  # trials made of one
PAIRS = 10_000  # candidates with their weights that are kept for other budgets
LARGE = 1 / 32  # of a peak, for what a loop computes itself
CHEAP = 0.1  # of a run, that a trial may take in addition so that no other is searched


Where = tuple[Hashable, ...]
"""Which program it is: that of these regions, or within it the loop of a name."""


class Search:
    """Searches one program, for one budget after another."""

    def __init__(
        self,
        base: Base,
        inference: Inference,
        costs: Costs,
        effort: Effort | None = None,
        progress: Callable[[str], None] | None = None,
        whole: float = 1.0,
    ) -> None:
        """whole: seconds that the program takes without loops."""
        self.errors: Counter[str] = Counter()  # defects -> regions dropped for each
        self.base, self._costs = base, costs
        self._whole = whole
        self._effort = effort or Effort()
        self._progress = progress or (lambda line: None)
        self._trials = Trials(base, inference, costs, whole)
        self._lands: dict[Where, Landscape] = {}
        self._fair = False  # how regions are chosen
        self.start = self._trials.start
        self.done: list[Trial] = []  # those within the last budget, as they are found

    @property
    def best(self) -> Trial:
        """The trial with the lowest peak that it has made."""
        return self._trials.best

    def run(
        self,
        budget: int,
        seconds: float | None = None,
        slow: Set[Digest] = frozenset(),
    ) -> list[Trial]:
        """Trials whose peak is at most `budget` bytes, the fastest (estimated) first.

        Empty if there are none; `best` is then the closest. It goes on from the `best`
        so far if the way from the start ends. Where that finds none that is cheap,
        regions are chosen another way. Those found for other budgets follow. Ends after
        these seconds; None: the effort's. slow: what comes last, as it takes more than
        estimated.
        """
        effort = self._effort
        stop = time.monotonic() + (effort.seconds if seconds is None else seconds)
        given = list(dict.fromkeys((self.start, self.best)))
        self.done = [each for each in given if each.peak <= budget]
        for self._fair in (False, True):
            self._extend(given, budget, stop, slow)
            if self._has_cheap(slow):
                break
        distinct = {marks(each): each for each in self.done}
        found: dict[Digest, Trial] = {}
        for trials in (distinct.values(), self._trials.within(budget)):
            best = self._fastest(trials, slow)
            finished = [self._coarser(trial, budget) for trial in best]
            for each in self._fastest(finished, slow):
                found.setdefault(each.digest, each)
        return sorted(found.values(), key=lambda trial: trial.digest in slow)

    def _fastest(self, trials: Iterable[Trial], slow: Set[Digest]) -> list[Trial]:
        """As many as are wanted, the fastest first, and those that are slow last."""
        return nsmallest(
            self._effort.wanted,
            trials,
            lambda trial: (trial.digest in slow, trial.seconds),
        )

    def _has_cheap(self, slow: Set[Digest]) -> bool:
        """Whether one of those within the budget is so fast that no other is needed."""
        return any(
            each.seconds <= CHEAP * self._whole and each.digest not in slow
            for each in self.done
        )

    def _extend(
        self, given: Sequence[Trial], budget: int, stop: float, slow: Set[Digest]
    ) -> None:
        """Add trials within the budget, made of those given, to `done`."""
        done: list[Trial] = []
        left = [each for each in given if each.peak > budget]  # not gone on from
        beam: list[Trial] = []
        seen: set[frozenset[str]] = set()
        while time.monotonic() < stop:
            if not beam:
                if done or not left:
                    break
                beam, left = left[:1], left[1:]
            found: dict[frozenset[str], Trial] = {}
            ready = self._has_cheap(slow)  # then others beside it are the last
            for further, trial in product((False, True), beam):
                if further and (found or done):
                    break
                for each in self._onward(trial, budget, stop, further):
                    mark = marks(each)
                    if mark not in seen:
                        seen.add(mark)
                        if each.peak <= budget:
                            done.append(each)
                            self.done.append(each)
                        else:
                            found[mark] = each
            if len(done) >= self._effort.wanted or ready:
                break
            beam = self._kept(list(found.values()), budget, self._effort.width)
            if beam:
                self._progress(
                    f"{len(beam[0].regions)} regions, "
                    f"peak {beam[0].peak / 2**20:.1f} MiB"
                )

    def _key(self, trial: Trial, budget: int) -> float:
        """Smaller is better: the remaining share of the excess over the budget, plus
        the time lost as a share of the whole."""
        whole = max(1, self.start.excess(budget))
        return trial.excess(budget) / whole + trial.seconds / self._whole

    def _onward(
        self, trial: Trial, budget: int, stop: float, further: bool = False
    ) -> list[Trial]:
        """Trials one move on, best first; `further`: two, as a loop that saves nothing
        may do so with others in it."""
        found, others = self._moved(trial, trial, budget, stop)
        open_to = (each for each in others if _beside(each) < trial.peak)
        for each in nsmallest(ONWARD, open_to, _beside) if further else ():
            found += self._moved(each, trial, budget, stop)[0]
        return self._kept(found, budget, ONWARD)

    def _moved(
        self, trial: Trial, before: Trial, budget: int, stop: float
    ) -> tuple[list[Trial], list[Trial]]:
        """Trials one move from `trial`: those better than `before`, and the others."""
        found, others = [], []
        where = _where(trial.regions)
        for regions in self._moves(trial.program, trial.regions, where, budget):
            if time.monotonic() > stop:
                break
            for made in self._made_both_ways(regions):
                fitted = self._finer(made, budget)
                if fitted.better_than(before, budget):
                    found.append(self._repeated(fitted, budget, stop))
                else:
                    others.append(fitted)
        return found, others

    def _kept(self, trials: list[Trial], budget: int, count: int) -> list[Trial]:
        """The best trials, with the fastest within the budget, and of the others the
        nearest to it, whatever time it takes, as dear regions may save many. Of those
        that need the same memory, the fastest: most differ in an operator that hardly
        counts."""
        needs: dict[tuple[int, int], Trial] = {}
        for each in sorted(trials, key=lambda each: self._key(each, budget)):
            needs.setdefault((each.excess(budget), each.peak), each)
        ranked = list(needs.values())
        best, rest = ranked[: count - 1], ranked[count - 1 :]
        within = [each for each in rest if each.peak <= budget]
        over = [each for each in rest if each.peak > budget]
        near = sorted(over, key=lambda each: (each.excess(budget), each.peak))
        return [*best, *within[:1], *near[:1]]

    def _finer(self, found: Trial, budget: int) -> Trial:
        """`found` with more chunks of its last region, as far as the budget needs them
        and they lower what its loop needs."""
        best = found
        while True:
            region = best.regions[-1]
            live, own = best.loops[loop_name(region)]
            if live <= budget or live - own >= budget:
                return best
            for smaller in finer(region, (budget - live + own) / max(1, own)):
                made = self._made((*best.regions[:-1], smaller))
                if made is not None and made.excess(budget) < best.excess(budget):
                    best = made
                    break
            else:
                return best

    def _made_both_ways(self, regions: tuple[Region, ...]) -> Iterator[Trial]:
        """`regions` as a trial, and if the last one reuses dying memory in a layout
        that products copy, also with memory of its own."""
        made = self._made(regions)
        if made is None:
            return
        yield made
        if not regions[-1].fresh and displaced(made.program, loop_name(regions[-1])):
            own = replace(regions[-1], fresh=True)
            other = self._made((*regions[:-1], own))
            if other is not None:
                yield other

    def _made(self, regions: tuple[Region, ...]) -> Trial | None:
        """`regions` as a trial."""
        return self._trials.made(regions, self.errors)

    def _moves(
        self,
        program: Program,
        regions: tuple[Region, ...],
        where: Where,
        budget: int,
    ) -> Iterator[tuple[Region, ...]]:
        """Sequences of regions that may lower the peak of `program`."""
        live = profile(program, beside=self._costs.beside)
        at = live.at
        step = program.ops[at]
        if isinstance(step, Op):
            for region in self._around(program, at, budget, where):
                yield (*regions, region)
            return
        index = next(
            i for i, each in enumerate(regions) if loop_name(each) == step.name
        )
        region = regions[index]
        own = live.inner[at]
        assert own is not None
        outside = live.live[at] - own.peak
        if not region.slides and slidable(program, step):
            yield _with(regions, index, replace(region, slides=True))
        if outside < budget:
            for smaller in finer(region, (budget - outside) / max(1, own.peak)):
                yield _with(regions, index, smaller)
            if not region.adds_up or region.whole:  # iterations would multiply
                inner = (*where, step.name)
                room = budget - outside
                for more in self._moves(step.body, region.inner, inner, room):
                    yield _with(regions, index, replace(region, inner=more))
        if not program.ranges:
            yield from self._inward(program, step, regions, index, budget)
            yield from self._wider(program, regions, index, budget)

    def _inward(
        self,
        program: Program,
        loop: Loop,
        regions: tuple[Region, ...],
        index: int,
        budget: int,
    ) -> Iterator[tuple[Region, ...]]:
        """The regions with the one at the peak computing more itself, in a loop."""
        region = regions[index]
        least = int(LARGE * max(self.start.peak, 1))
        for taken in inward(program, loop, least) if not region.whole else ():
            more = _with(regions, index, replace(region, whole=taken))
            made = self._made(more)
            if made is None:
                continue
            at = [step.name for step in made.program.ops].index(loop.name)
            body, own = made.program.ops[at], made.profile.inner[at]
            assert isinstance(body, Loop) and own is not None
            room = budget - made.profile.live[at] + own.peak
            where = (*_where(more), loop.name)
            for inner in self._moves(body.body, region.inner, where, max(1, room)):
                yield _with(more, index, replace(more[index], inner=inner))

    def _around(
        self, program: Program, peak: int, budget: int, where: Where
    ) -> list[Region]:
        land = self._lands.get(where)
        if land is None:
            land = Landscape(program, self.errors, self._costs.beside)
            if sum(each.candidates for each in self._lands.values()) < PAIRS:
                self._lands[where] = land
        return around(land, peak, budget, self._effort, self._fair)

    def _wider(
        self, program: Program, regions: tuple[Region, ...], index: int, budget: int
    ) -> Iterator[tuple[Region, ...]]:
        """The regions with the one at the peak replaced by another."""
        others = regions[:index] + regions[index + 1 :]
        made = self._made(others)
        if made is None:
            return
        old = regions[index]
        ops = [step.name for step in made.program.ops]
        inside = [i for i, name in enumerate(ops) if name in old.slices]
        if not inside:
            return
        live = made.profile.live
        at = max(inside, key=lambda i: live[i])
        for region in self._around(made.program, at, budget, _where(others)):
            if mark(region) != mark(old):
                yield (*others, region)

    def _repeated(self, trial: Trial, budget: int, stop: float) -> Trial:
        """The trial with its last region applied to repetitions of its operators, of
        which an unrolled scan has one a step."""
        best = trial
        for region in elsewhere(self.base.program, trial.regions[-1]):
            if best.peak <= budget or time.monotonic() > stop:
                break
            made = self._made((*best.regions, region))
            if made is not None and made.excess(budget) < best.excess(budget):
                best = made
        return best

    def _coarser(self, trial: Trial, budget: int) -> Trial:
        """The trial with fewer chunks, as far as the budget allows; equal regions, as
        of a model's layers, change together. Inner loops, which run most often, first.
        """
        best = trial
        alike: dict[object, list[int]] = {}
        for i, region in enumerate(trial.regions):
            inner = tuple((each.extent, each.step) for each in region.inner)
            key = region.extent, region.step, tuple(region.slices.values()), inner
            alike.setdefault(key, []).append(i)
        for places in alike.values():
            for at in (*range(len(best.regions[places[0]].inner)), None):
                while (made := self._wider_steps(best, places, at)) is not None:
                    if made.peak > budget or made.seconds > best.seconds:
                        break
                    best = made
        return best

    def _wider_steps(
        self, trial: Trial, places: list[int], inside: int | None
    ) -> Trial | None:
        """The trial with steps twice as large in some regions, or in an inner region of
        each."""
        regions = trial.regions
        for i in places:
            wider = coarser(regions[i], inside)
            if wider is None:
                return None
            regions = _with(regions, i, wider)
        return self._made(regions)


def _beside(trial: Trial) -> int:
    """The bytes at the peak that no loop inside the one there would lower."""
    loops = trial.loops.values()
    return max(
        (live - own for live, own in loops if live == trial.peak), default=trial.peak
    )


def _where(regions: tuple[Region, ...]) -> Where:
    return (digest(regions),)


def _with(
    regions: tuple[Region, ...], index: int, region: Region
) -> tuple[Region, ...]:
    return (*regions[:index], region, *regions[index + 1 :])
