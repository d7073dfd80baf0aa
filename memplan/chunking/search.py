"""The search for regions whose loops bring a program's peak under a budget.

From the peak downwards, as in the paper (§3.3): the regions around the operator at the
peak are weighed, the best few are built, and a beam of such sequences goes on from the
new peak until nothing lies above the budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from memplan.chunking.buffers import displaced
from memplan.chunking.choice import Effort, around, finer
from memplan.chunking.notaloop import NotALoopError
from memplan.chunking.papercost import paper_cost
from memplan.chunking.region import Region, chunked, loop_name
from memplan.chunking.timing import Machine, seconds
from memplan.graph.infer import Inference
from memplan.graph.liveness import Profile, profile
from memplan.graph.program import Loop, Op, Program


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
        """Bytes above the budget, added up over the operators, once for a loop."""
        return _excess(self.program, self.profile, budget)

    def better_than(self, other: Trial, budget: int) -> bool:
        """Whether less lies above the budget, or as much below a lower peak."""
        mine = self.excess(budget), self.peak
        return mine < (other.excess(budget), other.peak)


def _excess(program: Program, found: Profile, budget: int) -> int:
    total = 0
    for step, live in zip(program.ops, found.live, strict=True):
        if live <= budget:
            continue
        if isinstance(step, Loop):
            body = profile(step.body)
            total += _excess(step.body, body, budget - (live - body.peak))
        else:
            total += live - budget
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
            for made in self._made_both_ways(trial, regions):
                if made.better_than(trial, budget):
                    found.append(self._repeated(made, budget))
        return sorted(found, key=lambda each: self._key(each, budget))[:4]

    def _made_both_ways(
        self, trial: Trial, regions: tuple[Region, ...]
    ) -> Iterator[Trial]:
        """`regions` as a trial; and, where the last one's results lie over what dies
        there, and not in the order in which products take them, with memory of their
        own as well."""
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
            for region in around(program, at, budget, self._effort):
                yield (*regions, region)
            return
        index = next(
            i for i, each in enumerate(regions) if loop_name(each) == step.name
        )
        region = regions[index]
        own = profile(step.body)
        outside = live.live[at] - own.peak
        if outside < budget:
            for smaller in finer(region, (budget - outside) / max(1, own.peak)):
                yield _with(regions, index, smaller)
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
        for region in around(made.program, where, budget, self._effort):
            if _mark(region) != _mark(old):
                yield (*others, region)

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
        """The trial with fewer chunks where the budget allows it; regions that are
        alike, as those of a model's layers are, together."""
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


def _mark(region: Region) -> str:
    inner = ",".join(map(_mark, region.inner))
    first = next(iter(region.slices.items()))
    last = list(region.slices.items())[-1]
    return f"{first}{last}{len(region.slices)}/{region.step}{region.fresh}[{inner}]"


def _with(
    regions: tuple[Region, ...], index: int, region: Region
) -> tuple[Region, ...]:
    return (*regions[:index], region, *regions[index + 1 :])
