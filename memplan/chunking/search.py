"""The search for regions whose loops bring a program's peak under a budget.

From the peak downwards, as in the paper (§3.3): the regions around the operator at the
peak are weighed, the best few are built, and a beam of such sequences goes on from the
new peak until nothing lies above the budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from memplan.chunking.notaloop import NotALoopError
from memplan.chunking.papercost import paper_cost
from memplan.chunking.region import Region, chunked, loop_name
from memplan.chunking.sweep import Candidate, Landscape, ends, sweep
from memplan.chunking.timing import Machine, seconds
from memplan.chunking.weigh import Weight, weigh
from memplan.graph.infer import Inference
from memplan.graph.liveness import Profile, profile
from memplan.graph.program import Loop, Op, Program


@dataclass(frozen=True)
class Effort:
    """How far the search looks.

    width: sequences kept in the beam. wanted: after how many within the budget it
    ends. reach: operators before and after the peak.
    built: candidates built of those weighed. seconds: after which it ends with the
    best so far. finest: the most chunks of a loop. nested: whether regions may hold
    regions; copies: whether operators may run both whole and in a loop; fresh: whether
    results always get memory of their own. cost: "time", the model of
    `memplan.chunking.timing`, or "paper", that of `memplan.chunking.papercost`.
    """

    width: int = 3
    wanted: int = 4
    reach: int = 60
    built: int = 10
    seconds: float = 60.0
    finest: int = 256
    nested: bool = True
    copies: bool = True
    fresh: bool = False
    cost: str = "time"


@dataclass(frozen=True)
class Trial:
    """Regions, and the program they make of the original."""

    regions: tuple[Region, ...]
    program: Program
    profile: Profile
    seconds: float = field(default=0.0)

    @property
    def peak(self) -> int:
        return self.profile.peak

    def excess(self, budget: int) -> int:
        """Bytes above the budget, added up over the program's operators."""
        total = 0
        for step, live in zip(self.program.ops, self.profile.live, strict=True):
            weight = len(step.body.ops) if isinstance(step, Loop) else 1
            total += weight * max(0, live - budget)
        return total


class Search:
    """Searches one program, for one budget after another."""

    def __init__(
        self,
        program: Program,
        inference: Inference,
        machine: Machine,
        effort: Effort | None = None,
        progress: Callable[[str], None] | None = None,
        whole: float = 1.0,
    ) -> None:
        """whole: seconds that the program takes without loops."""
        self._base, self._inference, self._machine = program, inference, machine
        self._whole = whole
        self._effort = effort or Effort()
        self._progress = progress or (lambda line: None)
        self.start = Trial((), program, profile(program))
        self.best = self.start  # the lowest peak seen
        self.done: list[Trial] = []  # those within the last budget, as they are found

    def run(self, budget: int) -> list[Trial]:
        """Trials whose peak is at most `budget` bytes, the fastest by the model first.

        Empty if none was found; `best` is then the nearest. Ends early when the time is
        up.
        """
        stop = time.monotonic() + self._effort.seconds
        beam = [self.start]
        self.done = done = []
        seen: set[frozenset[str]] = set()
        while beam and time.monotonic() < stop:
            found: dict[frozenset[str], Trial] = {}
            for trial in beam:
                if trial.peak <= budget:
                    done.append(trial)
                    continue
                for each in self._onward(trial, budget, stop):
                    mark = frozenset(map(_mark, each.regions))
                    if mark not in seen:
                        seen.add(mark)
                        found[mark] = each
            if len(done) >= self._effort.wanted:
                break
            beam = sorted(found.values(), key=lambda each: self._key(each, budget))
            beam = beam[: self._effort.width]
            if beam:
                self.best = min([self.best, *beam], key=lambda each: each.peak)
                self._progress(
                    f"{len(beam[0].regions)} regions, "
                    f"peak {beam[0].peak / 2**20:.1f} MiB"
                )
        finished = [self._coarser(trial, budget) for trial in done]
        return sorted(finished, key=lambda trial: trial.seconds)

    def _key(self, trial: Trial, budget: int) -> float:
        """Smaller is better: what is left above the budget, as a share of what was
        there at first, and the time lost, as a share of the whole."""
        whole = max(1, self.start.excess(budget))
        return trial.excess(budget) / whole + trial.seconds / self._whole

    def _onward(self, trial: Trial, budget: int, stop: float) -> list[Trial]:
        """Trials one move further, best first."""
        moves = self._moves(trial.program, trial.regions, trial.profile, budget)
        found = []
        for regions in moves:
            if time.monotonic() > stop:
                break
            made = self._made(trial, regions)
            if made is None:
                continue
            if (made.excess(budget), made.peak) < (trial.excess(budget), trial.peak):
                found.append(self._repeated(made, budget))
        return sorted(found, key=lambda each: self._key(each, budget))[:4]

    def _made(self, trial: Trial, regions: tuple[Region, ...]) -> Trial | None:
        """`regions` as a trial; where they only go on from `trial`, from there."""
        known = len(trial.regions)
        program, rest = self._base, regions
        if regions[:known] == trial.regions:
            program, rest = trial.program, regions[known:]
        try:
            for region in rest:
                program = chunked(program, region, self._inference)
        except NotALoopError:
            return None
        return Trial(regions, program, profile(program), self._cost(program))

    def _cost(self, program: Program) -> float:
        if self._effort.cost == "paper":
            return paper_cost(self._base, program)
        return seconds(program, self._machine)

    def _moves(
        self,
        program: Program,
        regions: tuple[Region, ...],
        live: Profile,
        budget: int,
    ) -> Iterator[tuple[Region, ...]]:
        """Lists of regions that may bring down the peak of `program`."""
        at = live.at
        step = program.ops[at]
        if isinstance(step, Op):
            for region in self._regions(program, at, budget):
                yield (*regions, region)
            return
        index = next(
            i for i, each in enumerate(regions) if loop_name(each) == step.name
        )
        region = regions[index]
        own = profile(step.body)
        outside = live.live[at] - own.peak
        if outside < budget:
            for finer in _finer(region, (budget - outside) / max(1, own.peak)):
                yield _with(regions, index, finer)
            if self._effort.nested:
                inner = self._moves(step.body, region.inner, own, budget - outside)
                for more in inner:
                    yield _with(regions, index, replace(region, inner=more))
        yield from self._wider(program, regions, index, budget)

    def _wider(
        self, program: Program, regions: tuple[Region, ...], index: int, budget: int
    ) -> Iterator[tuple[Region, ...]]:
        """The regions with another in the place of one whose loop is the peak."""
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
        for region in self._regions(made.program, where, budget):
            if _mark(region) != _mark(old):
                yield (*others, region)

    def _regions(self, program: Program, peak: int, budget: int) -> list[Region]:
        """The most promising regions around an operator, each with a step."""
        land = Landscape(program)
        weighed: dict[object, tuple[Candidate, Weight]] = {}
        reach = self._effort.reach
        wanted = program.ops[peak].name
        for last, dim in ends(land, peak, reach):
            for copies in (False, True) if self._effort.copies else (False,):
                found = sweep(land, last, dim, max(0, peak - reach), copies)
                for each in found:
                    if wanted in each.slices and each.first <= peak:
                        key = (tuple(each.slices.items()), each.copied)
                        if key not in weighed:
                            weighed[key] = each, weigh(land, each, budget)
        chosen = _varied(list(weighed.values()), budget, self._effort.built)
        return [
            region
            for candidate, weight in chosen
            if (region := _sized(candidate, weight, budget, self._effort)) is not None
        ]

    def _repeated(self, trial: Trial, budget: int) -> Trial:
        """The trial with its last region also wherever the program repeats itself."""
        from memplan.chunking.repeat import elsewhere

        best = trial
        for region in elsewhere(self._base, trial.regions[-1]):
            if best.peak <= budget:
                break
            made = self._made(best, (*best.regions, region))
            if made is not None and made.excess(budget) < best.excess(budget):
                best = made
        return best

    def _coarser(self, trial: Trial, budget: int) -> Trial:
        """The trial with fewer chunks where the budget allows it."""
        best = trial
        for i in range(len(best.regions)):
            while best.regions[i].chunks > 2:
                region = best.regions[i]
                step = min(region.step * 2, -(-region.extent // 2))
                step += -step % region.granule
                made = self._made(
                    best, _with(best.regions, i, replace(region, step=step))
                )
                if made is None or made.peak > budget or made.seconds > best.seconds:
                    break
                best = made
        return best


def _mark(region: Region) -> str:
    inner = ",".join(map(_mark, region.inner))
    first = next(iter(region.slices.items()))
    last = list(region.slices.items())[-1]
    return f"{first}{last}{len(region.slices)}/{region.step}[{inner}]"


def _with(
    regions: tuple[Region, ...], index: int, region: Region
) -> tuple[Region, ...]:
    return (*regions[:index], region, *regions[index + 1 :])


def _level(weight: Weight, budget: int) -> int:
    """A loop's live bytes to 2 % of the budget, clipped below at the budget."""
    return round(max(weight.live(1 / 32), budget) / (0.02 * budget))


def _varied(
    weighed: list[tuple[Candidate, Weight]], budget: int, count: int
) -> list[tuple[Candidate, Weight]]:
    """The most promising `count`: in turns those that cover most of what lies above
    the budget, and those that run least in a loop; at most three that end alike."""
    level = {id(pair): _level(pair[1], budget) for pair in weighed}
    wide = sorted(weighed, key=lambda pair: (level[id(pair)], -pair[1].covered))
    thin = sorted(weighed, key=lambda pair: (level[id(pair)], pair[1].dear))
    chosen: list[tuple[Candidate, Weight]] = []
    ending: dict[object, int] = {}
    for pair in (each for both in zip(thin, wide, strict=True) for each in both):
        last = list(pair[0].slices.items())[-1]
        if pair in chosen or ending.get(last, 0) == 3:
            continue
        ending[last] = ending.get(last, 0) + 1
        chosen.append(pair)
        if len(chosen) == count:
            break
    return chosen


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
        fresh=effort.fresh,
    )
    room = (budget - weight.base) / max(1, weight.body)
    finest = 1 / min(effort.finest, candidate.extent)
    share = room if room >= finest else 1 / 16
    return with_step(region, int(min(share, 0.5) * candidate.extent))


def with_step(region: Region, step: int) -> Region | None:
    """The region with a step near `step`: a multiple of 64 or 16 where it is large
    enough, and of what its slices demand. None if there are then no two chunks."""
    for unit in (64, 16, 8):
        if step >= 2 * unit:
            step -= step % unit
            break
    granule = region.granule
    step = max(granule, step - step % granule)
    return replace(region, step=step) if step < region.extent else None


def _finer(region: Region, share: float) -> Iterable[Region]:
    """The region with smaller steps: one that should do, and half of the present."""
    steps = {int(region.step * share), region.step // 2, region.step // 4}
    for step in sorted(steps, reverse=True):
        if 0 < step < region.step:
            made = with_step(region, step)
            if made is not None and made.step < region.step:
                yield made
