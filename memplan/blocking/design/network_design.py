"""The memories that a whole network needs least energy with (paper, section 3.6)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from memplan.blocking.cost.evaluation import evaluate
from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.design.design_moves import (
    Design,
    NestPool,
    Sizes,
    descended,
    private_hierarchy,
    ranked_designs,
)
from memplan.blocking.design.network import LayerEnergy, NetworkEnergy, distinct
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.nest.layer import Layer, Tensor
from memplan.blocking.search.result import Options, Result
from memplan.blocking.search.spatial import search_one_of
from memplan.errors import NoPlanError, UsageError

BEST_DESIGNS = 10  # of a layer, in the paper
SMALLEST = 64  # bytes, of the sizes that designs are first made of
STEP = 4  # from one of these sizes to the next
_SAME = 1 - 1e-12
_STARTS = 3  # best designs of the sum that are descended from
_SPLITS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2))  # of the budget, at first
_RESIZED = (0.5, 2.0)  # times a memory of the best design: where to start again
_FINISH = 3.0  # seconds of each search on the best memories, where there is no limit
_NEAR = 1.05  # times the least energy: what is descended from again


class NetworkSearch:
    """The search's state: pools of nests, the common design, the best, and what none
    does with less than. Raises TimeoutError from `run` where its time is over."""

    def __init__(
        self,
        layers: Sequence[tuple[Layer, int]],
        unroll: Mapping[str, int] | Callable[[Layer], Mapping[str, int]],
        most: tuple[int, int],
        objective: Codesign | None,
        options: Options,
        progress: Callable[[float, float], None] | None,
    ) -> None:
        """most: bytes in all, and memories a tensor."""
        self._layers, self._unroll = layers, unroll
        self._unrolls = [
            unroll(layer) if callable(unroll) else unroll for layer, _ in layers
        ]
        self._budget, self._levels = most
        self._objective = objective or Codesign()
        self._counts = [count for _, count in layers]
        self._pools = [NestPool(self._objective) for _ in layers]
        self._solved: dict[tuple[int, tuple[Sizes, ...]], Result] = {}
        # Hundreds of searches: each in the space that is soon done with.
        method = "divisors" if options.method == "whole" else options.method
        self._options = replace(options, method=method, time_limit=None)
        self._progress = progress
        limit = math.inf if options.time_limit is None else options.time_limit
        self.begin = time.monotonic()
        self._deadline = self.begin + limit
        self.common: NetworkEnergy | None = None
        self.considered = 0
        self.best: tuple[Design, NetworkEnergy] | None = None
        self.lower_bound: float | None = None

    def run(self) -> None:
        """The whole search."""
        grid = self._grid()
        for design in self._first():
            self._solve(design)
        ranked = ranked_designs(self._pools, grid, self._budget)
        for number, order in enumerate(ranked.by_layer):
            for design in order[:BEST_DESIGNS]:
                self._optimum(number, ranked.design(design))
        ranked = ranked_designs(self._pools, grid, self._budget)
        place, self.considered = ranked.common(self._counts, BEST_DESIGNS)
        self.common = self._solve(ranked.design(place))
        starts = [place, *ranked.least(self._counts, _STARTS)]
        starts += [int(order[0]) for order in ranked.by_layer]
        for start in dict.fromkeys(starts):
            self._descend(ranked.design(start))
        # What a layer alone would have lies between the sizes of `ranked`.
        alone = [self._alone(number) for number in range(len(self._layers))]
        self.lower_bound = self._least(alone)
        own = [self._held(result) for result in alone]
        self._descend_best([design for design in own if any(design.values())], math.inf)
        if self._objective.sliding:
            self._descend(self._unslid())
        self._again()

    def finish(self, seconds: float | None) -> None:
        """Search again for every layer's nest, on the best memories and among all
        nests; and for what each layer takes at least with all memories for itself,
        which bounds the sum over all nests.

        seconds: for all of it; None gives each layer a few. Raises KeyboardInterrupt,
        and keeps the nests found until then.
        """
        assert self.best is not None
        design, network = self.best
        machine, own = Fixed(network.hierarchy), self._own
        end = None if seconds is None else time.monotonic() + seconds
        layers = list(network.layers)
        self.lower_bound, total = None, 0.0
        for number, one in enumerate(layers):
            share = _FINISH
            if end is not None:
                left = max(end - time.monotonic(), 0.0)
                share = left / (2 * (len(layers) - number))
            how = replace(self._options, method="whole", time_limit=share)
            unroll = self._unrolls[number]
            alone = search_one_of(one.layer, unroll, own, how)
            total += one.count * (alone.lower_bound or 0.0)
            found = search_one_of(one.layer, unroll, machine, how)
            layers[number] = replace(one, result=_better(one.result, found))
            self.best = design, replace(network, layers=tuple(layers))
        if self._own_is_least:
            self.lower_bound = total
        if self._progress is not None:
            self._progress(self.best[1].energy, time.monotonic() - self.begin)

    @property
    def _own(self) -> Codesign:
        """All memories for one layer alone."""
        return replace(self._objective, budget=self._budget)

    def _again(self) -> None:
        """From the best with one memory resized or left out, as long as that leads to
        a better one."""
        tried: set[tuple[Sizes, ...]] = set()
        before = math.inf
        while self.best is not None and self.best[1].energy < before:
            best, network = self.best
            before = network.energy * _SAME
            around = [
                design
                for design in _around(best)
                if sum(map(sum, design.values())) <= self._budget
                and tuple(design.values()) not in tried
            ]
            tried.update(tuple(design.values()) for design in around)
            self._descend_best(around, network.energy * _NEAR)

    def _descend_best(self, designs: Sequence[Design], most: float) -> None:
        """From the best of these whose energy is no more than `most`."""
        energies = [self._solve(design).energy for design in designs]
        for place in sorted(range(len(designs)), key=energies.__getitem__)[:_STARTS]:
            if energies[place] <= most:
                self._descend(designs[place])

    def _unslid(self) -> Design:
        """The best design where nothing slides, which is no worse where it may."""
        most = self._budget, self._levels
        own = replace(self._objective, sliding=False)
        options = self._options
        plain = NetworkSearch(self._layers, self._unroll, most, own, options, None)
        plain._deadline = self._deadline
        plain.run()
        assert plain.best is not None
        return plain.best[0]

    def _grid(self) -> list[Sizes]:
        sizes = [SMALLEST]
        while sizes[-1] * STEP <= self._budget:
            sizes.append(sizes[-1] * STEP)
        return list(combinations(sizes, self._levels))

    def _first(self) -> list[Design]:
        """Designs whose optimal nests the pools start with."""
        found: list[Design] = []
        for part in (1, 16):
            for split in _SPLITS:
                shares = [self._budget * own // (sum(split) * part) for own in split]
                found.append(
                    {
                        tensor: tuple(
                            share // (2 * 32**i)
                            for i in reversed(range(self._levels))
                            if share // (2 * 32**i) > 1
                        )
                        for tensor, share in zip(Tensor, shares, strict=True)
                    }
                )
        return found

    def _alone(self, number: int) -> Result:
        """What one layer would take if all the budget were its own."""
        self._in_time()
        layer, _ = self._layers[number]
        result = search_one_of(layer, self._unrolls[number], self._own, self._options)
        self._pools[number].add(result.nest)
        return result

    def _held(self, result: Result) -> Design:
        """The largest of the memories that a result has, as many as there may be."""
        held = result.memories or ()
        return {
            tensor: tuple(sorted({b.nbytes for b in held if b.tensor is tensor}))[
                -self._levels :
            ]
            for tensor in Tensor
        }

    @property
    def _own_is_least(self) -> bool:
        """Whether a layer's own memories, of the sizes that suit it best, take no more
        energy than any that it shares: not where the budget allows memories that are
        too large for a layer's own, nor where a larger memory may be cheaper."""
        curves = [self._objective.curves[tensor] for tensor in Tensor]
        return all(
            self._budget <= one.dram_above and list(one.pj) == sorted(one.pj)
            for one in curves
        )

    def _least(self, alone: Sequence[Result]) -> float | None:
        """A lower bound in pJ over all memories; None where there is none."""
        if not self._own_is_least:
            return None
        own, total = self._own, 0.0
        for (layer, count), result in zip(self._layers, alone, strict=True):
            bound = result.lower_bound
            if bound is None:  # the datapath does not divide all sizes
                bound = evaluate(layer, result.nest, own).compulsory
            total += count * bound
        return total

    def _in_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise TimeoutError

    def _descend(self, design: Design) -> None:
        """From a start to where neither sizes nor nests get any better."""
        network = self._solve(design)
        while True:
            after = descended(
                self._pools, self._counts, design, self._budget, self._levels
            )
            tried = self._solve(after)
            if tried.energy >= network.energy * _SAME:
                return
            design, network = self._trimmed(after, tried), tried

    def _trimmed(self, design: Design, network: NetworkEnergy) -> Design:
        """The design without bytes that no layer's nest uses."""
        trimmed = {}
        for tensor, sizes in design.items():
            held = [
                one.nbytes
                for layer in network.layers
                for one in layer.result.memories or ()
                if one.tensor is tensor
            ]
            most = [max((b for b in held if b <= s), default=0) for s in sizes]
            trimmed[tensor] = tuple(sorted({nbytes for nbytes in most if nbytes}))
        return trimmed

    def _solve(self, design: Design) -> NetworkEnergy:
        """Every layer's optimum; the best of all designs within the budget is kept."""
        found = [
            LayerEnergy(layer, count, self._optimum(number, design))
            for number, (layer, count) in enumerate(self._layers)
        ]
        network = NetworkEnergy(self._hierarchy(design), tuple(found))
        if self.best is None or network.energy < self.best[1].energy:
            self.best = design, network
            if self._progress is not None:
                self._progress(network.energy, time.monotonic() - self.begin)
        return network

    def _hierarchy(self, design: Design) -> Hierarchy:
        return private_hierarchy(design, self._objective)

    def _optimum(self, number: int, design: Design) -> Result:
        key = number, tuple(design[tensor] for tensor in Tensor)
        known = self._solved.get(key)
        if known is not None:
            return known
        self._in_time()
        layer, _ = self._layers[number]
        unroll, memories = self._unrolls[number], Fixed(self._hierarchy(design))
        result = search_one_of(layer, unroll, memories, self._options)
        self._pools[number].add(result.nest)
        self._solved[key] = result
        return result


def _around(design: Design) -> Iterator[Design]:
    """Designs with one memory of another size, or without it."""
    for tensor, sizes in design.items():
        for place, nbytes in enumerate(sizes):
            rest = {*sizes[:place], *sizes[place + 1 :]}
            for times in _RESIZED:
                resized = max(int(nbytes * times), 1)
                yield {**design, tensor: tuple(sorted({*rest, resized}))}
            yield {**design, tensor: tuple(sorted(rest))}


def _better(one: Result, other: Result) -> Result:
    """The nest that takes less of two on the same memories; `other` has the wider
    space, and its bound."""
    if other.energy <= one.energy:
        return other
    return replace(
        other,
        nest=one.nest,
        energy=one.energy,
        memories=one.memories,
        seconds=one.seconds + other.seconds,
        proved=False,
        lower_bound=min(other.lower_bound or 0.0, one.energy),
    )


MAX_LEVELS = 3
_SIZES = 0.6  # part of a time limit for the sizes; the rest is for the last pass
_DEFAULT = Options()


@dataclass(frozen=True)
class NetworkDesign:
    """network: the layers on the best memories found; sizes: these, bytes by tensor,
    inner to outer. common: what the paper's method gives, where `considered` designs of
    each layer had to be taken until one was common. complete: whether the search came
    to its end, and not to that of its time. lower_bound: pJ that no memories within the
    budget do with less than, by nests of the space that the layers' are of; None where
    there was no time for it."""

    network: NetworkEnergy
    sizes: Design
    common: NetworkEnergy
    considered: int
    complete: bool
    seconds: float
    lower_bound: float | None = None

    @property
    def gap(self) -> float | None:
        """How far above the lower bound the network is, relative to it."""
        if self.lower_bound is None:
            return None
        return self.network.energy / self.lower_bound - 1


def design_network(  # noqa: PLR0913 - by name, but three
    layers: Sequence[Layer],
    unroll: Mapping[str, int] | Callable[[Layer], Mapping[str, int]],
    budget: int,
    *,
    levels: int = 2,
    counts: Sequence[int] | None = None,
    objective: Codesign | None = None,
    options: Options = _DEFAULT,
    last_pass: bool = True,
    progress: Callable[[float, float], None] | None = None,
) -> NetworkDesign:
    """Sizes of up to `levels` memories a tensor, no more than `budget` bytes in all.

    unroll: what the datapath does at once, for all layers, or said of each. counts: how
    often each layer is run; objective: curves, bits and whether fills count,
    its budget is not used. options: of the exact search, but that the time limit is for
    all of it; after that, or Ctrl-C, the best so far is returned, once there is one.
    last_pass: whether each layer's nest is searched for again among all nests once the
    sizes are known, unless the method is "divisors"; until then nests are those whose
    extents divide each other.
    progress: called with the least pJ so far and the seconds. The
    network's energy is never above the common design's.
    Raises UsageError where budget, levels or counts make no sense, and NoPlanError
    where there was no time for any design.
    """
    if not 1 <= levels <= MAX_LEVELS:
        raise UsageError(f"{levels} levels of memory: take 1 to {MAX_LEVELS}")
    least = 3 * sum(SMALLEST * STEP**i for i in range(levels))
    if budget < least:
        raise UsageError(
            f"a budget of {budget} bytes: {levels} levels need at least {least}"
        )
    limit, last_pass = options.time_limit, last_pass and options.method == "whole"
    within = options
    if limit is not None and last_pass:
        within = replace(options, time_limit=_SIZES * limit)
    designer = NetworkSearch(
        distinct(layers, counts), unroll, (budget, levels), objective, within, progress
    )
    complete = True
    try:
        try:
            designer.run()
        except TimeoutError:
            if designer.common is None:
                raise NoPlanError(
                    f"{limit} seconds are too short to compare any designs"
                ) from None
            complete = False
        if last_pass:
            spent = time.monotonic() - designer.begin
            designer.finish(None if limit is None else max(limit - spent, 0.0))
    except KeyboardInterrupt:
        if designer.common is None:
            raise
        complete = False
    assert designer.common is not None and designer.best is not None
    sizes, network = designer.best
    return NetworkDesign(
        network,
        sizes,
        designer.common,
        designer.considered,
        complete,
        time.monotonic() - designer.begin,
        designer.lower_bound,
    )
