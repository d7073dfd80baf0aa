"""The search for regions whose loops bring a program's peak under a budget.

It goes from the peak downwards, as in the paper (§3.3): estimate the regions around the
operator at the peak, build the best few, and continue a beam of such sequences from the
new peak until nothing exceeds the budget.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from memplan.chunking.buffers import displaced
from memplan.chunking.candidates import (
    Candidate,
    Landscape,
    Weight,
    ends,
    sweep,
    weigh,
)
from memplan.chunking.extensions import extended
from memplan.chunking.options import Effort
from memplan.chunking.recompute import Base
from memplan.chunking.region import (
    NotLoopableError,
    Region,
    RegionError,
    chunked,
    loop_name,
)
from memplan.chunking.repetitions import elsewhere
from memplan.chunking.timing import Costs, seconds
from memplan.graph.infer import Inference
from memplan.graph.liveness import Beside, Profile, profile
from memplan.graph.program import Loop, Op, Program
from memplan.graph.workspace import temporaries

ONWARD = 4  # trials made of one
CHEAP = 0.1  # of a run, that a trial may take in addition so that no other is searched


@dataclass(frozen=True)
class Trial:
    """Regions, and the program that results from them.

    again: the values that it computes a second time. beside: what operators need of
    their own, as the profile counts it.
    """

    regions: tuple[Region, ...]
    program: Program
    profile: Profile
    seconds: float = field(default=0.0)
    again: tuple[str, ...] = ()
    beside: Beside = temporaries

    @property
    def peak(self) -> int:
        return self.profile.peak

    def excess(self, budget: int) -> int:
        """Bytes above the budget, summed over the operators; a loop's count once."""
        return _excess(self.program, self.profile, budget, self.beside)

    def better_than(self, other: Trial, budget: int) -> bool:
        """Whether less exceeds the budget, or as much with a lower peak."""
        mine = self.excess(budget), self.peak
        return mine < (other.excess(budget), other.peak)


def _excess(program: Program, found: Profile, budget: int, beside: Beside) -> int:
    total = 0
    for step, live in zip(program.ops, found.live, strict=True):
        if live <= budget:
            continue
        if isinstance(step, Loop):
            body = profile(step.body, beside=beside)
            total += _excess(step.body, body, budget - (live - body.peak), beside)
        else:
            total += live - budget
    return total


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
        self._base, self._inference, self._costs = base, inference, costs
        self._whole = whole
        self._effort = effort or Effort()
        self._progress = progress or (lambda line: None)
        program, spent = base.program, base.share * whole
        self._fair = False  # how regions are chosen
        self.start = self._trial((), program, spent)
        self.best = self.start  # the lowest peak seen
        self.done: list[Trial] = []  # those within the last budget, as they are found

    def run(self, budget: int, known: Trial | None = None) -> list[Trial]:
        """Trials whose peak is at most `budget` bytes, the fastest (estimated) first.

        Empty if there are none; `best` is then the closest. Ends at the time limit.
        known: a trial to go on from if the way from the start ends. Where that finds
        none that is cheap, regions are chosen another way.
        """
        stop = time.monotonic() + self._effort.seconds
        given = [self.start, *([known] if known else [])]
        self.done = [each for each in given if each.peak <= budget]
        for self._fair in (False, True):
            self._extend(given, budget, stop)
            cheapest = min((each.seconds for each in self.done), default=math.inf)
            if cheapest <= CHEAP * self._whole:
                break
        distinct = {_marks(each): each for each in self.done}
        best = sorted(distinct.values(), key=lambda trial: trial.seconds)
        best = best[: self._effort.wanted]
        finished = [self._coarser(trial, budget) for trial in best]
        return sorted(finished, key=lambda trial: trial.seconds)

    def _extend(self, given: Sequence[Trial], budget: int, stop: float) -> None:
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
            for trial in beam:
                for each in self._onward(trial, budget, stop):
                    mark = _marks(each)
                    if mark not in seen:
                        seen.add(mark)
                        if each.peak <= budget:
                            done.append(each)
                            self.done.append(each)
                        else:
                            found[mark] = each
            if len(done) >= self._effort.wanted:
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

    def _onward(self, trial: Trial, budget: int, stop: float) -> list[Trial]:
        """Trials one move further, best first."""
        moves = self._moves(trial.program, trial.regions, trial.profile, budget)
        found = []
        for regions in moves:
            if time.monotonic() > stop:
                break
            for made in self._made_both_ways(trial, regions):
                fitted = self._finer(trial, made, budget)
                if fitted.better_than(trial, budget):
                    found.append(self._repeated(fitted, budget))
        return self._kept(found, budget, ONWARD)

    def _kept(self, trials: list[Trial], budget: int, count: int) -> list[Trial]:
        """The best trials: one of them the nearest to the budget, whatever time it
        takes, as dear regions may save many. Of those that need the same memory, the
        fastest: most differ in an operator that hardly counts."""
        needs: dict[tuple[int, int], Trial] = {}
        for each in sorted(trials, key=lambda each: self._key(each, budget)):
            needs.setdefault((each.excess(budget), each.peak), each)
        ranked = list(needs.values())
        best, rest = ranked[: count - 1], ranked[count - 1 :]
        over = (each for each in rest if each.peak > budget)
        near = min(
            over, key=lambda each: (each.excess(budget), each.peak), default=None
        )
        return best if near is None else [*best, near]

    def _finer(self, trial: Trial, found: Trial, budget: int) -> Trial:
        """`found`, made of `trial`, with more chunks of its last region, as far as the
        budget needs them and they lower what its loop needs."""
        best = found
        while True:
            region, name = best.regions[-1], loop_name(best.regions[-1])
            steps = zip(best.program.ops, best.profile.live, strict=True)
            live, loop = next((live, loop) for loop, live in steps if loop.name == name)
            assert isinstance(loop, Loop)
            own = profile(loop.body, beside=self._costs.beside).peak
            if live <= budget or live - own >= budget:
                return best
            for smaller in finer(region, (budget - live + own) / max(1, own)):
                made = self._made(trial, (*best.regions[:-1], smaller))
                if made is not None and made.excess(budget) < best.excess(budget):
                    best = made
                    break
            else:
                return best

    def _made_both_ways(
        self, trial: Trial, regions: tuple[Region, ...]
    ) -> Iterator[Trial]:
        """`regions` as a trial, and if the last one reuses dying memory in a layout
        that products copy, also with memory of its own."""
        made = self._made(trial, regions)
        if made is None:
            return
        yield made
        if not regions[-1].fresh and displaced(made.program, loop_name(regions[-1])):
            own = replace(regions[-1], fresh=True)
            other = self._made(trial, (*regions[:-1], own))
            if other is not None:
                yield other

    def _made(self, trial: Trial, regions: tuple[Region, ...]) -> Trial | None:
        """`regions` as a trial, built on `trial` if they extend its regions."""
        known = len(trial.regions)
        program, rest = self._base.program, regions
        if regions[:known] == trial.regions:
            program, rest = trial.program, regions[known:]
        try:
            for region in rest:
                program = chunked(program, region, self._inference)
        except RegionError as error:
            self.errors[str(error)] += 1
            return None
        except NotLoopableError:
            return None
        spent = self.start.seconds + seconds(program, self._costs.machine)
        made = self._trial(regions, program, spent)
        self.best = min(self.best, made, key=lambda each: each.peak)
        return made

    def _trial(
        self, regions: tuple[Region, ...], program: Program, spent: float
    ) -> Trial:
        beside = self._costs.beside
        found = profile(program, beside=beside)
        return Trial(regions, program, found, spent, self._base.again, beside)

    def _moves(
        self,
        program: Program,
        regions: tuple[Region, ...],
        live: Profile,
        budget: int,
    ) -> Iterator[tuple[Region, ...]]:
        """Sequences of regions that may lower the peak of `program`."""
        at = live.at
        step = program.ops[at]
        if isinstance(step, Op):
            for region in self._around(program, at, budget):
                yield (*regions, region)
            return
        index = next(
            i for i, each in enumerate(regions) if loop_name(each) == step.name
        )
        region = regions[index]
        own = profile(step.body, beside=self._costs.beside)
        outside = live.live[at] - own.peak
        if outside < budget:
            for smaller in finer(region, (budget - outside) / max(1, own.peak)):
                yield _with(regions, index, smaller)
            room, body = budget - outside, step.body
            if not region.adds_up:  # their iterations would multiply
                for more in self._moves(body, region.inner, own, room):
                    yield _with(regions, index, replace(region, inner=more))
        yield from self._wider(program, regions, index, budget)

    def _around(self, program: Program, peak: int, budget: int) -> list[Region]:
        land = Landscape(program, self.errors, self._costs.beside)
        return around(land, peak, budget, self._effort, self._fair)

    def _wider(
        self, program: Program, regions: tuple[Region, ...], index: int, budget: int
    ) -> Iterator[tuple[Region, ...]]:
        """The regions with the one at the peak replaced by another."""
        if program.ranges:
            return
        others = regions[:index] + regions[index + 1 :]
        made = self._made(self.start, others)
        if made is None:
            return
        old = regions[index]
        ops = [step.name for step in made.program.ops]
        inside = [i for i, name in enumerate(ops) if name in old.slices]
        if not inside:
            return
        where = max(inside, key=lambda i: made.profile.live[i])
        for region in self._around(made.program, where, budget):
            if _mark(region) != _mark(old):
                yield (*others, region)

    def _repeated(self, trial: Trial, budget: int) -> Trial:
        """The trial with its last region applied to repetitions of its operators."""
        best = trial
        for region in elsewhere(self._base.program, trial.regions[-1]):
            if best.peak <= budget:
                break
            made = self._made(best, (*best.regions, region))
            if made is not None and made.excess(budget) < best.excess(budget):
                best = made
        return best

    def _coarser(self, trial: Trial, budget: int) -> Trial:
        """The trial with fewer chunks, as far as the budget allows; equal regions, as
        of a model's layers, change together."""
        best = trial
        alike: dict[object, list[int]] = {}
        for i, region in enumerate(trial.regions):
            key = region.extent, region.step, tuple(region.slices.values())
            alike.setdefault(key, []).append(i)
        for places in alike.values():
            while (region := best.regions[places[0]]).chunks > 2:
                step = min(region.step * 2, -(-region.extent // 2))
                step += -step % region.granule
                regions = best.regions
                for i in places:
                    wider = replace(regions[i], step=step)
                    regions = _with(regions, i, wider)
                made = self._made(best, regions)
                if made is None or made.peak > budget or made.seconds > best.seconds:
                    break
                best = made
        return best


def _marks(trial: Trial) -> frozenset[str]:
    """What distinguishes a trial of a program from others."""
    return frozenset(map(_mark, trial.regions))


def _mark(region: Region) -> str:
    inner = ",".join(map(_mark, region.inner))
    first = next(iter(region.slices.items()))
    last = list(region.slices.items())[-1]
    return f"{first}{last}{len(region.slices)}/{region.step}{region.fresh}[{inner}]"


def _with(
    regions: tuple[Region, ...], index: int, region: Region
) -> tuple[Region, ...]:
    return (*regions[:index], region, *regions[index + 1 :])


PROMISING = 4  # further regions that are extended


def around(
    land: Landscape, peak: int, budget: int, effort: Effort, fair: bool = False
) -> list[Region]:
    """The most promising regions around an operator, each with a step. fair: see
    `_varied`. Where slices of results fit the budget, one with a total at most."""
    weighed = _weighed(land, peak, budget, effort.reach)
    totals = _weighed(land, peak, budget, effort.reach, totals=True)
    if fair or all(_level(*pair, budget) > LOWEST for pair in weighed):
        weighed, totals = weighed + totals, []
    chosen = _varied(weighed, budget, effort.built, fair)
    fitting = [pair for pair in totals if _level(*pair, budget) <= LOWEST]
    chosen += sorted(fitting, key=lambda pair: pair[1].dear)[:1]
    wider = (extended(land, each, weight, budget) for each, weight in chosen)
    chosen += [pair for pair in wider if pair is not None]
    promising = _promising(weighed, chosen, budget)
    wider = (extended(land, each, weight, budget) for each, weight in promising)
    chosen += [pair for pair in wider if pair is not None]
    sized = (_sized(each, weight, budget, effort) for each, weight in chosen)
    return [region for region in sized if region is not None]


def _weighed(
    land: Landscape, peak: int, budget: int, reach: int, totals: bool = False
) -> list[tuple[Candidate, Weight]]:
    """Regions that the operator at `peak` is in. totals: those that end in one; they
    pass over it in each iteration, and add in another order. None in another loop, as
    their iterations would multiply."""
    if totals and land.program.ranges:
        return []
    wanted, first = land.program.ops[peak].name, max(0, peak - reach)
    return [
        (each, weigh(land, each, budget))
        for last, end in ends(land, peak, reach, totals)
        for copies in (False, True)
        for each in sweep(land, last, end, first, copies)
        if wanted in each.slices and each.first <= peak
    ]


LOWEST = 50  # level of a loop within the budget


def _level(candidate: Candidate, weight: Weight, budget: int) -> int:
    """A loop's live bytes in units of 2 % of the budget, at least the budget, if it
    runs in 32 chunks or as many as possible."""
    share = max(1 / 32, candidate.granule / candidate.extent)
    return round(max(weight.live(share), budget) / (0.02 * budget))


def _varied(
    weighed: list[tuple[Candidate, Weight]], budget: int, count: int, fair: bool
) -> list[tuple[Candidate, Weight]]:
    """The most promising `count`: in turns the cheapest, those that cover most of the
    excess over the budget and, if it is `fair`, those between; at most three with the
    same end."""
    level = {id(pair): _level(*pair, budget) for pair in weighed}

    def ranked(key: Callable[[Weight], object]) -> list[tuple[Candidate, Weight]]:
        return sorted(weighed, key=lambda pair: (level[id(pair)], key(pair[1])))

    thin = ranked(lambda weight: weight.dear)
    wide = ranked(lambda weight: (-weight.covered, weight.dear if fair else 0))
    rows = [thin, wide]
    if fair and wide:
        most, dear = max(1, wide[0][1].covered), max(1, wide[0][1].dear)
        rows += [ranked(lambda weight: weight.dear / dear - weight.covered / most)]
    chosen: list[tuple[Candidate, Weight]] = []
    ending: dict[object, int] = {}
    for pair in (each for row in zip(*rows, strict=True) for each in row):
        last = list(pair[0].slices.items())[-1]
        if pair in chosen or ending.get(last, 0) == 3:
            continue
        ending[last] = ending.get(last, 0) + 1
        chosen.append(pair)
        if len(chosen) == count:
            break
    return chosen


def _promising(
    weighed: list[tuple[Candidate, Weight]],
    chosen: list[tuple[Candidate, Weight]],
    budget: int,
) -> list[tuple[Candidate, Weight]]:
    """Candidates that would need less than all chosen ones if the users of their
    members' results joined the loop."""
    least = min((_level(*pair, budget) for pair in chosen), default=0)
    found = []
    for pair in weighed:
        candidate, weight = pair
        if weight.leaving and pair not in chosen:
            closed = weight._replace(base=weight.base - weight.leaving)
            level = _level(candidate, closed, budget)
            if level < least:
                found.append((level, weight.dear, pair))
    return [pair for *_, pair in sorted(found, key=lambda each: each[:2])[:PROMISING]]


def _sized(
    candidate: Candidate, weight: Weight, budget: int, effort: Effort
) -> Region | None:
    """The region with the largest step that fits the budget, or a fine one."""
    region = Region(
        candidate.slices,
        candidate.extent,
        1,
        candidate.copied,
        granule=candidate.granule,
    )
    room = (budget - weight.base) / max(1, weight.body)
    finest = 1 / min(effort.finest, candidate.extent)
    share = room if room >= finest else 1 / 16
    return with_step(region, int(min(share, 0.5) * candidate.extent))


def with_step(region: Region, step: int) -> Region | None:
    """The region with a step near `step`: a multiple of 64, 16 or 8 if it is large
    enough, and of the granule. None if that leaves a single chunk."""
    for unit in (64, 16, 8):
        if step >= 2 * unit:
            step -= step % unit
            break
    granule = region.granule
    step = max(granule, step - step % granule)
    return replace(region, step=step) if step < region.extent else None


def finer(region: Region, share: float) -> Iterable[Region]:
    """The region with smaller steps: `share` of the present one, a half, a quarter."""
    steps = {int(region.step * share), region.step // 2, region.step // 4}
    for step in sorted(steps, reverse=True):
        if 0 < step < region.step:
            made = with_step(region, step)
            if made is not None and made.step < region.step:
                yield made
