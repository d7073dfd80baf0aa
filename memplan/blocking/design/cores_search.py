"""The nest for a number of cores and a way to split among them (paper, section 3.3).

A nest that is best for one core is not best for several: those of the last memories
that are split get cheaper with their size, and what is shared is sent once to all, over
wires as long as all memories are wide. A search goes on from the nests that the bounds
are of, at the prices that last memories have beside all bytes of the best so far; what
it finds is then counted exactly, with the buffers that take the least, and improved by
small changes.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
from memplan.blocking.search.exact import nest_from, numbered, problem_of, relaxed_loops
from memplan.blocking.search.result import Options, ProgressReport, SearchProgress
from memplan.cores import cores as all_cores
from memplan.errors import UsageError
from memplan.native import _nest

_PARTS = (1, 8, 64)  # of the best nest's bytes, where the first bands end
_STEP = 8.0  # of a band without an end, or that begins at nothing
_NARROW = 1.1  # a band whose ends are so near is worth no more time
_NEAR = 1e-3  # relative; likewise a bound so near to the best


@dataclass(frozen=True, order=True)
class _Band:
    """Nests whose memories take [low, high) bytes in all, and pJ that none of them
    takes less than; high: None without an end."""

    least: float
    low: int
    high: int | None = field(compare=False)

    def halves(self) -> tuple[tuple[int, int], tuple[int, int | None]] | None:
        """Its two parts by bytes, unless it is narrow."""
        if self.high is None:
            middle = math.ceil(self.low * _STEP)
        elif self.low == 0:
            middle = int(self.high / _STEP)
        else:
            middle = int(math.sqrt(self.low * self.high))
            if self.high < self.low * _NARROW:
                return None
        if not self.low < middle:
            return None
        return (self.low, middle), (middle, self.high)


def last_prices(
    machine: Codesign, cores: int, split: str, wires: float
) -> dict[Tensor, Curve]:
    """Prices of each tensor's last memory by the bytes of all its parts together, a
    core's share of an access to what is sent to all; none for one core.

    wires: pJ of an access over these.
    """
    if cores == 1:
        return {}
    found = {}
    for tensor, curve in machine.curves.items():
        if tensor is SHARED[split]:
            sizes = sorted({*curve.nbytes, *_crossing(curve, wires)})
            pj = tuple(max(curve.on_chip(size), wires) / cores for size in sizes)
            found[tensor] = replace(curve, nbytes=tuple(sizes), pj=pj)
        else:
            sizes = [size * cores for size in curve.nbytes]
            found[tensor] = replace(curve, nbytes=tuple(sizes))
    return found


class CoresBound:
    """Of all nests over the layer and on the datapath of `one`, on so many cores that
    split "k" or "xy"."""

    def __init__(
        self,
        one: Nest,
        way: tuple[int, str],
        machine: Codesign,
        threads: int,
        report: Callable[[], None] | None = None,
    ) -> None:
        """report: called now and then."""
        self._one, self._machine, self._threads = one, machine, threads
        self._cores, self._split = way
        self._report = report
        self._traffic = machine.traffic(one)
        self._best = math.inf
        self.nests: list[Nest] = []  # of the relaxation's optima

    def least(self, best: float, nbytes: int, seconds: float, each: float) -> float:
        """pJ that no nest takes less than.

        best: of a nest that is known, whose memories take `nbytes`; seconds: for all
        bands together, about; each: for one of them, at the most. Raises
        KeyboardInterrupt after Ctrl-C.
        """
        begin, self._best = time.perf_counter(), best
        if self._cores == 1:
            return self._band(0, None, seconds).least
        ends = [0, *sorted({nbytes // part for part in _PARTS} - {0})]
        bands = [
            self._band(low, high, each)
            for low, high in zip(ends, [*ends[1:], None], strict=True)
        ]
        heapq.heapify(bands)
        while time.perf_counter() - begin < seconds:
            lowest = bands[0]
            halves = lowest.halves()
            if lowest.least >= best * (1 - _NEAR) or halves is None:
                break
            heapq.heappop(bands)
            for low, high in halves:
                half = self._band(low, high, each)
                # What holds of the whole holds of either half.
                least = max(half.least, lowest.least)
                heapq.heappush(bands, replace(half, least=least))
        return bands[0].least

    def prices(self, nbytes: float) -> Mapping[Tensor, Curve]:
        """Of last memories, where all take so many bytes."""
        wires = self._machine.curves[SHARED[self._split]].on_chip(max(nbytes, 1.0))
        return last_prices(self._machine, self._cores, self._split, wires)

    def _band(self, low: int, high: int | None, seconds: float) -> _Band:
        budget = self._machine.budget
        most = min((n for n in (budget, high) if n is not None), default=None)
        if budget is not None and low > budget:
            return _Band(math.inf, low, high)
        shuffle = self._shuffle(low)
        found = _nest.optimum(
            problem_of(
                self._one.layer,
                self._one.unroll,
                replace(self._machine, budget=most),
                shared=False,
                last=self.prices(low),
            ),
            whole=True,
            incumbent=(self._best - shuffle) / self._one.layer.G,
            seconds=seconds,
            threads=self._threads,
            report=self._report,
        )
        if found.interrupted:
            raise KeyboardInterrupt
        if loops := relaxed_loops(found):
            layer, unroll = self._one.layer, self._one.unroll
            self.nests.append(nest_from(loops, layer, unroll))
        compulsory = self._machine.compulsory_pj(self._traffic)
        least = max(found.lower_bound * self._one.layer.G, compulsory)
        return _Band(least + shuffle, low, high)

    def _shuffle(self, nbytes: int) -> float:
        """pJ of handing the outputs to all, if memories have at least so many bytes."""
        if self._split != "k" or self._cores == 1:
            return 0.0
        curve = self._machine.curves[Tensor.OUTPUT]
        outputs = self._traffic[Tensor.OUTPUT]
        return outputs.compulsory_words * curve.on_chip(max(nbytes, 1))


def _crossing(curve: Curve, pj: float) -> Iterator[float]:
    """The size at which an access costs so much, if it is one between two knots."""
    if curve.pj[0] < pj < curve.pj[-1]:
        at = np.interp(math.log(pj), np.log(curve.pj), np.log(curve.nbytes))
        yield math.exp(float(at))


_SAME = 1e-9


def descended(nest: Nest, energy: Callable[[Nest], float], most: int) -> Nest:
    """What a nest becomes by changes that each make it better, in an order of chance
    that is always the same, until none does or `most` were tried."""
    chance, seen = random.Random(0), {str(nest)}
    least = energy(nest)
    better = True
    while better and len(seen) < most:
        better = False
        changes = list(neighbours(nest))
        chance.shuffle(changes)
        for changed in changes:
            if str(changed) in seen or len(seen) >= most:
                continue
            seen.add(str(changed))
            found = energy(changed)
            if found < least * (1 - _SAME):
                least, nest, better = found, changed, True
                break
    return nest


def neighbours(nest: Nest) -> Iterator[Nest]:
    """Nests that differ by two loops exchanged, one more or less, or another extent."""
    for loops in _changes(nest):
        changed = _made(nest.layer, loops, nest.unroll)
        if changed is not None:
            yield changed


def _changes(nest: Nest) -> Iterator[list[tuple[str, int]]]:
    """Their loops; not all of them are nests."""
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
    for dim, extent in loops:
        if extent < reached.get(dim, 1):
            return None
        reached[dim] = extent
    groups = [loop for loop in loops if loop[0] == "G"]
    try:
        return nest_of(layer, [o for o in loops if o[0] != "G"] + groups, unroll)
    except UsageError:
        return None


_USUAL = 3.0  # seconds of a search, where there is no limit
_LONGER = 3  # times that, of a part of the bound
_ROUNDS = 2  # of annealing
_STARTS = 3  # nests that are improved, the best first
_CHANGES = 1000  # of each, and of what it became, tried at most
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

    options: threads, and the seconds of each of three searches a way, by default 3; a
    bound may take about nine times as long. Ctrl-C ends all.
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
        self._threads = options.threads or all_cores()
        limit = options.time_limit
        self._seconds = _USUAL if limit is None else limit
        self._begin = time.perf_counter()
        self._below = CoresBound(one, way, machine, self._threads, self._report)
        self.bound, self._tried = 0.0, 0  # pJ, and nests
        self.nests: list[Nest] = []
        self._given = self._energy(one)
        self._nest, self._best = one, self._given

    def run(self) -> None:
        """The bound; and a search from the nests that it is of."""
        if self.cores > 1:
            self._climb(self._best.sram_bytes)  # a better nest makes bounds quicker
        longer = _LONGER * self._seconds
        self.bound = self._below.least(
            self._best.total, self._best.sram_bytes, 3 * longer, longer
        )
        if self.cores == 1:
            return  # the nest given is that of a search for one core
        for nest in self._below.nests:
            self._keep(nest)
        # Larger memories are cheaper ones, smaller ones have shorter wires.
        for part in (1, 4):
            self._climb(self._best.sram_bytes / part)

    def improve(self, nests: Sequence[Nest]) -> None:
        """From the best of these nests to where small changes do not help."""
        if self.cores == 1:  # the nest given is that of a search for one core
            for nest in nests:
                self._take(nest)
            return
        starts = {str(nest): nest for nest in (self._nest, *nests)}.values()
        for nest in sorted(starts, key=self._pj)[:_STARTS]:
            self._take(descended(nest, self._pj, _CHANGES))

    def result(self) -> CoresNest:
        """The best so far."""
        bound = min(self.bound, self._best.total)
        return CoresNest(self._nest, self._best, self._given, bound)

    def _energy(self, nest: Nest) -> CoresEnergy:
        return best_cores_energy(nest, self.cores, self._split, self._machine)

    def _pj(self, nest: Nest) -> float:
        return self._energy(nest).total

    def _take(self, nest: Nest) -> None:
        found = self._energy(nest)
        if found.total < self._best.total * (1 - _SAME):
            self._nest, self._best = nest, found

    def _keep(self, nest: Nest) -> None:
        self.nests.append(nest)
        self._take(nest)

    def _climb(self, nbytes: float) -> None:
        """A nest at the prices of memories that take so many bytes in all."""
        layer, unroll = self._one.layer, self._one.unroll
        loops, tried, _, interrupted = _nest.improved(
            problem_of(
                layer,
                unroll,
                self._machine,
                last=self._below.prices(nbytes),
            ),
            [numbered(nest) for nest in (self._nest, self._one, *self.nests)],
            bound=0.0,
            rounds=_ROUNDS,
            seconds=self._seconds,
            threads=self._threads,
            report=self._report,
        )
        if interrupted:
            raise KeyboardInterrupt
        self._tried += tried
        self._keep(nest_from(loops, layer, unroll))

    def _report(self) -> None:
        if self._progress is not None:
            seconds = time.perf_counter() - self._begin
            self._progress(SearchProgress(self._best.total, self._tried, seconds))
