"""Trials: regions, and the program that results from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from memplan.chunking.recompute import Base
from memplan.chunking.region import NotLoopableError, Region, RegionError, chunked
from memplan.chunking.timing import Costs, seconds
from memplan.graph.infer import Inference
from memplan.graph.liveness import Beside, Profile, profile
from memplan.graph.program import Program
from memplan.graph.workspace import temporaries

PROGRAMS = 64  # that are kept of trials; those of others are made again
LEVELS = 1 << 23  # that are kept of trials


Digest = tuple[bytes, ...]


class Trial:
    """Regions, and the program that results from them.

    seconds: about what the loops and what is computed again take in addition. again:
    the values that the program computes a second time. peak: bytes, as estimated.
    """

    def __init__(
        self,
        regions: tuple[Region, ...],
        program: Program,
        seconds: float = 0.0,
        again: tuple[str, ...] = (),
        beside: Beside = temporaries,
        remade: Callable[[Trial], Program] | None = None,
    ) -> None:
        """beside: what operators need of their own, as the profile counts it. remade:
        makes the program again once it was forgotten."""
        self.regions, self.seconds, self.again = regions, seconds, again
        self._program: Program | None = program
        self._profile: Profile | None = None
        self._beside, self._remade = beside, remade
        found = self.profile
        # Of each loop, the live bytes while it runs, and those of its own.
        self.loops = {
            step.name: (live, inner.peak)
            for step, live, inner in zip(
                program.ops, found.live, found.inner, strict=True
            )
            if inner is not None
        }
        self._levels = np.fromiter(found.levels(), np.int64)
        self.peak = int(self._levels.max(initial=0))
        self.size = len(self._levels)  # its operators, those in loops included

    @property
    def digest(self) -> Digest:
        """Tells its regions from others."""
        return digest(self.regions)

    @property
    def program(self) -> Program:
        """The program, with its loops."""
        if self._program is None:
            assert self._remade is not None
            self._program = self._remade(self)
        return self._program

    @property
    def in_memory(self) -> bool:
        """Whether the program is there, and need not be made again."""
        return self._program is not None

    def forget(self) -> None:
        """Free the program's memory until it is needed again."""
        self._program = self._profile = None

    @property
    def profile(self) -> Profile:
        """The live bytes along the program."""
        if self._profile is None:
            self._profile = profile(self.program, beside=self._beside)
        return self._profile

    def excess(self, budget: int) -> int:
        """Bytes above the budget, summed over the operators."""
        return int(np.maximum(self._levels - budget, 0).sum())

    def better_than(self, other: Trial, budget: int) -> bool:
        """Whether less exceeds the budget, or as much with a lower peak."""
        mine = self.excess(budget), self.peak
        return mine < (other.excess(budget), other.peak)


class Trials:
    """The trials of one program, each made once.

    start: the program without regions. best: the trial with the lowest peak.
    """

    def __init__(
        self, base: Base, inference: Inference, costs: Costs, whole: float
    ) -> None:
        """whole: seconds that the program takes without loops."""
        self._base, self._inference, self._costs = base, inference, costs
        self._recent: dict[Trial, None] = {}  # those with programs, the latest last
        self._known: dict[Digest, Trial | None] = {}
        self._held = 0  # levels of those known
        self.start = self._trial((), base.program, base.share * whole)
        self.best = self.start

    def made(self, regions: tuple[Region, ...], errors: Counter[str]) -> Trial | None:
        """`regions` as a trial; None if they make no loops. errors: counts the defects
        of memplan that this met."""
        key = digest(regions)
        if key in self._known:
            return self._known[key]
        made = None
        try:
            program = self._built(regions)
        except RegionError as error:
            errors[str(error)] += 1
        except NotLoopableError:
            pass
        else:
            spent = self.start.seconds + seconds(program, self._costs.machine)
            made = self._trial(regions, program, spent)
            self.best = min(self.best, made, key=lambda each: each.peak)
            self._held += made.size
        self._known[key] = made
        while self._held > LEVELS:
            oldest = self._known.pop(next(iter(self._known)))
            self._held -= oldest.size if oldest is not None else 0
        return made

    def within(self, budget: int) -> Iterator[Trial]:
        """Those made so far whose peak is at most `budget` bytes."""
        made = [each for each in self._known.values() if each is not None]
        return (each for each in made if each.peak <= budget)

    def _built(self, regions: tuple[Region, ...]) -> Program:
        """The program with loops, built on that of as many of the first regions as is
        in memory."""
        program, key = self._base.program, digest(regions)
        first = 0
        for count in range(len(regions) - 1, 0, -1):
            begun = self._known.get(key[:count])
            if begun is not None and begun.in_memory:
                self._note(begun)
                program, first = begun.program, count
                break
        for region in regions[first:]:
            program = chunked(program, region, self._inference)
        return program

    def _trial(
        self, regions: tuple[Region, ...], program: Program, spent: float
    ) -> Trial:
        again, beside = self._base.again, self._costs.beside
        made = Trial(regions, program, spent, again, beside, self._remade)
        self._note(made)
        return made

    def _remade(self, trial: Trial) -> Program:
        self._note(trial)
        return self._built(trial.regions)

    def _note(self, trial: Trial) -> None:
        """Keep a trial's program, rather than the one not needed for longest."""
        if not trial.regions:
            return
        self._recent.pop(trial, None)
        self._recent[trial] = None
        if len(self._recent) > PROGRAMS:
            oldest = next(iter(self._recent))
            del self._recent[oldest]
            oldest.forget()


def digest(regions: tuple[Region, ...]) -> Digest:
    """Tells regions from others."""
    return tuple(each.digest for each in regions)


def marks(trial: Trial) -> frozenset[str]:
    """What distinguishes a trial of a program from others that promise other things."""
    return frozenset(map(mark, trial.regions))


def mark(region: Region) -> str:
    """What distinguishes a region from others, short of members in between."""
    inner = ",".join(map(mark, region.inner))
    first = next(iter(region.slices.items()))
    last = list(region.slices.items())[-1]
    flags = f"{region.step}{region.fresh}{region.slides}{sorted(region.whole)}"
    return f"{first}{last}{len(region.slices)}/{flags}[{inner}]"
