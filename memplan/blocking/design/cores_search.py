"""The nest for a number of cores and a way to split among them (paper, section 3.3).

A nest that is best for one core is not best for several: those of the last memories
that are split get cheaper with their size, and what is shared is sent once to all, over
wires as long as all memories are wide. Searches run with prices that say so as well as
prices by size can; what they find is then counted exactly, with the
buffers that take the least, and improved by small changes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from memplan.blocking.cost.objective import Codesign
from memplan.blocking.design.parallel import (
    SHARED,
    CoresEnergy,
    best_cores_energy,
    check_split,
)
from memplan.blocking.machine.energy import Curve
from memplan.blocking.nest.layer import Layer, Tensor
from memplan.blocking.nest.nest import Nest, nest_of
from memplan.blocking.search.exact import problem_of
from memplan.blocking.search.incumbent import ProgressReport
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options
from memplan.cores import cores as all_cores
from memplan.errors import UsageError
from memplan.native import _nest

_USUAL = 3.0  # seconds of a search, where there is no limit
_LONGER = 3  # times that, of a bound
_PARTS = (16, 256, 0)  # of the best's bytes that memories have, at least
_CHANGES = 200  # of a nest, tried one after the other
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

    options: threads, and the seconds of each of two searches a way, by default 3; three
    bounds may take three times as long.
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
        """The searches, and the bound: of memories that are so large in all, and hence
        the wires so long, or larger; and of ever smaller ones."""
        nbytes = self._best.sram_bytes
        if self.cores > 1:
            self._look(self._priced(self._wires(nbytes), least=False))
            # Cheap large memories, and memories that are smaller for shorter wires.
            self._look(self._priced(self._wires(nbytes // 4), least=True))
        bounds, most = [], self._machine.budget
        for part in _PARTS:
            small = nbytes // part if part else 0
            priced = self._priced(self._wires(small) if small else 0.0, least=True)
            least = self._least(replace(priced, budget=most))
            bounds.append(least + self._shuffle(max(small, 1)))
            most = small if most is None else min(most, small)
        self.bound = min(bounds)

    def improve(self, nests: Sequence[Nest]) -> None:
        """From the best of these nests to where small changes do not help."""
        for nest in nests:
            self._take(nest)
        if self.cores == 1:
            return  # the nest given is that of a search for one core
        chance = random.Random(0)
        for _ in range(_CHANGES):
            changed = _changed(self._nest, chance)
            if changed is not None:
                self._take(changed)

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

    def _least(self, machine: Codesign) -> float:
        """pJ that no nest takes less than at these prices; the compulsory accesses to
        main memory at least."""
        layer = self._one.layer
        found = _nest.optimum(
            problem_of(layer, self._one.unroll, machine, shared=False),
            whole=True,
            incumbent=self._best.total / layer.G,
            seconds=_LONGER * (self._options.time_limit or 0.0),
            threads=self._options.threads or all_cores(),
        )
        if found.interrupted:
            raise KeyboardInterrupt
        return max(found.lower_bound * layer.G, self._compulsory())

    def _compulsory(self) -> float:
        traffic = self._machine.traffic(self._one)
        pj = (
            (own.compulsory_words, self._machine.main_pj(t))
            for t, own in traffic.items()
        )
        return sum(words * each for words, each in pj)

    def _wires(self, nbytes: int) -> float:
        return self._machine.curves[SHARED[self._split]].on_chip(nbytes)

    def _shuffle(self, nbytes: int) -> float:
        """pJ of handing the outputs to all, if memories have at least so many bytes."""
        if self._split != "k" or self.cores == 1:
            return 0.0
        curve = self._machine.curves[Tensor.OUTPUT]
        outputs = self._machine.traffic(self._one)[Tensor.OUTPUT]
        return outputs.compulsory_words * curve.on_chip(nbytes)

    def _priced(self, wires: float, least: bool) -> Codesign:
        """Prices by size. least: those of a split tensor's last memory for all it has;
        else those of the others."""
        curves: dict[Tensor, Curve] = dict(self._machine.curves)
        if self.cores > 1:
            for tensor, curve in self._machine.curves.items():
                if tensor is SHARED[self._split]:
                    curves[tensor] = _shared(curve, self.cores, wires)
                elif least:
                    sizes = tuple(n * self.cores for n in curve.nbytes)
                    curves[tensor] = replace(curve, nbytes=sizes)
        return replace(self._machine, curves=curves)


def _shared(curve: Curve, cores: int, wires: float) -> Curve:
    """The cheaper of a core's own memory, and the last one that all share."""
    sizes = {*curve.nbytes, *_where(curve, wires), *_where(curve, wires / cores)}
    knots = sorted(sizes)
    pj = []
    for nbytes in knots:
        own = curve.on_chip(nbytes)
        pj.append(min(own, max(own, wires) / cores))
    return replace(curve, nbytes=tuple(knots), pj=tuple(pj))


def _where(curve: Curve, pj: float) -> Iterator[float]:
    """The size at which an access costs so much."""
    if curve.pj[0] < pj < curve.pj[-1]:
        at = np.interp(math.log(pj), np.log(curve.pj), np.log(curve.nbytes))
        yield math.exp(float(at))


def _changed(nest: Nest, chance: random.Random) -> Nest | None:
    """The nest with two loops exchanged, a loop more or less, or another extent."""
    loops = [(loop.dim, loop.outer) for loop in nest.loops]
    place = chance.randrange(max(len(loops), 1))
    kind = chance.randrange(4)
    if kind == 0 and place + 1 < len(loops):
        loops[place : place + 2] = loops[place + 1], loops[place]
    elif kind == 1 and loops and _inner(loops, place):
        del loops[place]
    elif kind == 2 and loops and _inner(loops, place):
        dim = loops[place][0]
        loops[place] = dim, _extent(nest, dim, chance)
    else:
        dim = chance.choice("XYCKB")
        loops.insert(place, (dim, _extent(nest, dim, chance)))
    return _made(nest.layer, loops, nest.unroll)


def _inner(loops: Sequence[tuple[str, int]], place: int) -> bool:
    """Whether another loop of its dimension lies outside."""
    return loops[place][0] in {dim for dim, _ in loops[place + 1 :]}


def _extent(nest: Nest, dim: str, chance: random.Random) -> int:
    """One that makes another number of trips than the next."""
    lanes, size = nest.unroll.get(dim, 1), nest.layer.size(dim)
    tiles = -(-size // lanes)
    return min(-(-tiles // chance.randint(1, tiles)) * lanes, size)


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
