"""The memories that a whole network needs least energy with (paper, section 3.6).

Every tensor has memories for itself, of the same sizes for all layers. The paper takes
the ten best designs of each layer, and those that are common to all. Starting from what
that gives, sizes are changed as long as the sum over the layers falls: first by what
known nests would need, then with each layer's nest optimized for the new sizes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.design.design_moves import descended, ranked_designs
from memplan.blocking.design.network import LayerEnergy, NetworkEnergy, distinct
from memplan.blocking.design.private_hierarchy import private_hierarchy
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.nest.layer import Layer, Tensor
from memplan.blocking.search.nest_pool import Design, NestPool, Sizes
from memplan.blocking.search.optimize import optimize_one_of
from memplan.blocking.search.result import Options, Result
from memplan.errors import NoPlanError, UsageError

BEST_DESIGNS = 10  # of a layer, in the paper
MAX_LEVELS = 3
_SMALLEST = 64  # bytes, of the sizes that designs are first made of
_STEP = 4  # from one of these sizes to the next
_DEFAULT = Options()
_STARTS = 3  # best designs of the sum that are descended from
_SPLITS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2))  # of the budget, at first


@dataclass(frozen=True)
class NetworkDesign:
    """network: the layers on the best memories found; sizes: these, bytes by tensor,
    inner to outer. common: what the paper's method gives, where `considered` designs of
    each layer had to be taken until one was common. complete: whether the search came
    to its end, and not to that of its time."""

    network: NetworkEnergy
    sizes: Design
    common: NetworkEnergy
    considered: int
    complete: bool
    seconds: float


def design_network(  # noqa: PLR0913 - by name, but three
    layers: Sequence[Layer],
    unroll: Mapping[str, int] | Callable[[Layer], Mapping[str, int]],
    budget: int,
    *,
    levels: int = 2,
    counts: Sequence[int] | None = None,
    objective: Codesign | None = None,
    options: Options = _DEFAULT,
    progress: Callable[[float, float], None] | None = None,
) -> NetworkDesign:
    """Sizes of up to `levels` memories a tensor, no more than `budget` bytes in all.

    unroll: what the datapath does at once, for all layers, or said of each. counts: how
    often each layer is run; objective: curves, bits and whether fills count,
    its budget is not used. options: of the exact search, but that the time limit is for
    all of it; after that, or Ctrl-C, the best so far is returned, once there is one.
    progress: called with the least pJ so far and the seconds. The
    network's energy is never above the common design's.
    Raises UsageError where budget, levels or counts make no sense, and NoPlanError
    where there was no time for any design.
    """
    if not 1 <= levels <= MAX_LEVELS:
        raise UsageError(f"{levels} levels of memory: take 1 to {MAX_LEVELS}")
    least = 3 * sum(_SMALLEST * _STEP**i for i in range(levels))
    if budget < least:
        raise UsageError(
            f"a budget of {budget} bytes: {levels} levels need at least {least}"
        )
    designer = _Designer(
        distinct(layers, counts), unroll, (budget, levels), objective, options, progress
    )
    complete = True
    try:
        designer.run()
    except KeyboardInterrupt:
        if designer.common is None:
            raise
        complete = False
    except TimeoutError:
        if designer.common is None:
            raise NoPlanError(
                f"{options.time_limit} seconds are too short to compare any designs"
            ) from None
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
    )


class _Designer:
    """The search's state: pools of nests, the common design, and the best."""

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
        alone = [design for design in alone if any(design.values())]
        alone.sort(key=lambda design: self._solve(design).energy)
        for design in alone[:_STARTS]:
            self._descend(design)
        if self._objective.sliding:
            self._descend(self._unslid())

    def _unslid(self) -> Design:
        """The best design where nothing slides, which is no worse where it may."""
        most = self._budget, self._levels
        own = replace(self._objective, sliding=False)
        options = self._options
        plain = _Designer(self._layers, self._unroll, most, own, options, None)
        plain._deadline = self._deadline
        plain.run()
        assert plain.best is not None
        return plain.best[0]

    def _grid(self) -> list[Sizes]:
        sizes = [_SMALLEST]
        while sizes[-1] * _STEP <= self._budget:
            sizes.append(sizes[-1] * _STEP)
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

    def _alone(self, number: int) -> Design:
        """The memories that one layer would have if all the budget were its own."""
        self._in_time()
        layer, _ = self._layers[number]
        own = replace(self._objective, budget=self._budget)
        result = optimize_one_of(layer, self._unrolls[number], own, self._options)
        self._pools[number].add(result.nest)
        held = result.memories or ()
        return {
            tensor: tuple(sorted({b.nbytes for b in held if b.tensor is tensor}))[
                -self._levels :
            ]
            for tensor in Tensor
        }

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
            if tried.energy >= network.energy * (1 - 1e-12):
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
        result = optimize_one_of(layer, unroll, memories, self._options)
        self._pools[number].add(result.nest)
        self._solved[key] = result
        return result
