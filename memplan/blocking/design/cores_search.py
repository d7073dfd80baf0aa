"""The nest for a number of cores and a way to split among them (paper, section 3.3).

A nest that is best for one core is not best for several: those of the last memories
that are split get cheaper with their size, and what is shared is sent once to all, over
wires as long as all memories are wide. Searches run with prices that say so as well as
prices by size can; what they find is then counted exactly, with the
buffers that take the least, and improved by small changes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from memplan.blocking.cost.objective import Codesign
from memplan.blocking.design.cores_bound import CoresBound
from memplan.blocking.design.cores_prices import spread
from memplan.blocking.design.parallel import (
    SHARED,
    CoresEnergy,
    best_cores_energy,
    check_split,
)
from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.nest import Nest, nest_of
from memplan.blocking.search.incumbent import ProgressReport
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options
from memplan.cores import cores as all_cores
from memplan.errors import UsageError

_USUAL = 3.0  # seconds of a search, where there is no limit
_LONGER = 9  # times that, of a bound
_STARTS = 3  # nests that are improved, the best first
_CHANGES = 1000  # of a nest and of what it became, tried at most
_SAME = 1e-9
_DEFAULT = Options()


@dataclass(frozen=True)
class CoresNest:
    """The best nest found for so many cores, and its energy; one_nest: that of the nest
    that was given; both with the buffers that take the least (`best_cores_energy`);
    lower_bound: pJ that no nest takes less than on these cores."""

    nest: Nest
    energy: CoresEnergy
    one_nest: CoresEnergy
    lower_bound: float

    @property
    def gap(self) -> float:
        """How far above the bound the energy is, relative to it."""
        return max(self.energy.total / self.lower_bound - 1, 0.0)


def optimize_for_cores(
    one: Nest,
    ways: Sequence[tuple[int, str]],
    objective: Codesign | None = None,
    options: Options = _DEFAULT,
    progress: ProgressReport | None = None,
) -> list[CoresNest]:
    """For each number of cores and split, "k" or "xy", the best nest found, over the
    layer and on the datapath of `one`, and never worse than it.

    options: threads, and the seconds of each of two searches a way, by default 3; its
    bound may take nine times as long.
    Ctrl-C ends all.
    Raises UsageError where the layer cannot be split so, or for options that minimize
    anything but energy.
    """
    if options.minimize != "energy" or options.front or options.target is not None:
        raise UsageError("nests for several cores are those of least energy")
    for cores, split in ways:
        check_split(one, cores, split)
    machine = objective or Codesign()
    searches = [_Search(one, way, machine, options, progress) for way in ways]
    alone: _Search | None = None
    for search in searches:
        if search.cores == 1 and alone is not None:
            search.bound = alone.bound  # the same for both splits
            continue
        search.run()
        alone = search if search.cores == 1 else alone
    nests = {str(nest): nest for search in searches for nest in search.nests}
    for search in searches:
        search.improve(list(nests.values()))
    return [search.result() for search in searches]


class _Search:
    """One number of cores, split one way."""

    def __init__(
        self,
        one: Nest,
        way: tuple[int, str],
        machine: Codesign,
        options: Options,
        progress: ProgressReport | None,
    ) -> None:
        self.cores, self._split = way
        self._one, self._machine, self._progress = one, machine, progress
        seconds = _USUAL if options.time_limit is None else options.time_limit
        self._options = replace(options, method="whole", time_limit=seconds)
        self.bound = 0.0
        self.nests: list[Nest] = []
        self._given = self._energy(one)
        self._nest, self._best = one, self._given

    def run(self) -> None:
        """The searches, and the bound."""
        if self.cores > 1:
            nbytes = self._best.sram_bytes
            self._look(self._priced(self._wires(nbytes), least=False))
            # Cheap large memories, and memories that are smaller for shorter wires.
            self._look(self._priced(self._wires(nbytes // 4), least=True))
        threads = self._options.threads or all_cores()
        bound = CoresBound(self._one, self.cores, self._split, self._machine, threads)
        seconds = _LONGER * (self._options.time_limit or 0.0)
        self.bound = bound.pj(self._best.total, seconds)

    def improve(self, nests: Sequence[Nest]) -> None:
        """From the best of these nests to where small changes do not help."""
        if self.cores == 1:
            for nest in nests:
                self._take(nest)
            return  # the nest given is that of a search for one core
        starts = {str(nest): nest for nest in (self._nest, *nests)}
        priced = [(self._energy(nest), nest) for nest in starts.values()]
        for energy, nest in sorted(priced, key=lambda each: each[0].total)[:_STARTS]:
            found, better = self._descended(energy, nest)
            if found.total < self._best.total * (1 - _SAME):
                self._nest, self._best = better, found

    def _descended(self, energy: CoresEnergy, nest: Nest) -> tuple[CoresEnergy, Nest]:
        """What a nest becomes by changes that each make it better, in an order of
        chance that is always the same, until none does or _CHANGES were tried."""
        chance, seen = random.Random(0), {str(nest)}
        better = True
        while better and len(seen) < _CHANGES:
            better = False
            changes = list(neighbours(nest))
            chance.shuffle(changes)
            for loops in changes:
                changed = _made(nest.layer, loops, nest.unroll)
                if changed is None or str(changed) in seen:
                    continue
                seen.add(str(changed))
                found = self._energy(changed)
                if found.total < energy.total * (1 - _SAME):
                    energy, nest, better = found, changed, True
                    break
                if len(seen) >= _CHANGES:
                    break
        return energy, nest

    def result(self) -> CoresNest:
        """The best so far."""
        bound = min(self.bound, self._best.total)
        return CoresNest(self._nest, self._best, self._given, bound)

    def _energy(self, nest: Nest) -> CoresEnergy:
        return best_cores_energy(nest, self.cores, self._split, self._machine)

    def _take(self, nest: Nest) -> None:
        found = self._energy(nest)
        if found.total < self._best.total * (1 - _SAME):
            self._nest, self._best = nest, found

    def _look(self, machine: Codesign) -> None:
        """A nest for these prices."""
        layer, unroll = self._one.layer, self._one.unroll
        found = optimize(layer, unroll, machine, self._options, self._progress)
        if found.interrupted:
            raise KeyboardInterrupt
        self.nests.append(found.nest)
        self._take(found.nest)

    def _wires(self, nbytes: int) -> float:
        return self._machine.curves[SHARED[self._split]].on_chip(nbytes)

    def _priced(self, wires: float, least: bool) -> Codesign:
        """Prices by size. least: those of a split tensor's last memory for all it has;
        else those of the others."""
        own, shared = self._machine.curves, SHARED[self._split]
        curves = spread(own, self.cores, self._split, wires)
        if not least:
            curves = {**own, shared: curves[shared]}
        return replace(self._machine, curves=curves)


def neighbours(nest: Nest) -> Iterator[list[tuple[str, int]]]:
    """The nest's loops with two exchanged, one more or less, or another extent. Not all
    of them are nests."""
    loops = [(loop.dim, loop.outer) for loop in nest.loops]
    extents = {dim: _extents(nest, dim) for dim in "XYCKB"}
    for place, (dim, extent) in enumerate(loops):
        if place + 1 < len(loops):
            yield [*loops[:place], loops[place + 1], loops[place], *loops[place + 2 :]]
        if not _inner(loops, place):
            continue
        yield loops[:place] + loops[place + 1 :]
        for other in extents.get(dim, ()):
            if other != extent:
                yield [*loops[:place], (dim, other), *loops[place + 1 :]]
    for place in range(len(loops) + 1):
        for dim, sizes in extents.items():
            for size in sizes:
                yield [*loops[:place], (dim, size), *loops[place:]]


def _inner(loops: Sequence[tuple[str, int]], place: int) -> bool:
    """Whether another loop of its dimension lies outside."""
    return loops[place][0] in {dim for dim, _ in loops[place + 1 :]}


def _extents(nest: Nest, dim: str) -> list[int]:
    """Those that make other numbers of trips than the next."""
    lanes, size = nest.unroll.get(dim, 1), nest.layer.size(dim)
    tiles = -(-size // lanes)
    trips, found = 1, []
    while trips <= tiles:
        tile = -(-tiles // trips)
        found.append(min(tile * lanes, size))
        # The fewest trips that a smaller tile makes.
        trips = -(-tiles // (tile - 1)) if tile > 1 else tiles + 1
    return found


def _made(
    layer: Layer, loops: Sequence[tuple[str, int]], unroll: Mapping[str, int]
) -> Nest | None:
    """The nest, if these loops are one: extents must not fall, groups stay outside."""
    reached: dict[str, int] = {}
    kept = []
    for dim, extent in loops:
        if extent < reached.get(dim, 1):
            return None
        reached[dim] = extent
        kept.append((dim, extent))
    groups = [loop for loop in kept if loop[0] == "G"]
    try:
        return nest_of(layer, [o for o in kept if o[0] != "G"] + groups, unroll)
    except UsageError:
        return None
