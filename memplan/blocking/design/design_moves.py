"""Designs of private memories, priced and compared by the nests that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Float64Array
from memplan.blocking.cost.objective import Codesign
from memplan.blocking.machine.hierarchy import Hierarchy, Level
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.nest import Nest
from memplan.errors import UsageError

Sizes: TypeAlias = tuple[int, ...]  # bytes of one tensor's memories, ascending
Design: TypeAlias = Mapping[Tensor, Sizes]


class _Flow:
    """What passes out of one tensor's memories so far, in each of n nests, and the pJ
    of all accesses until then: `pricing.priced` for many nests at once."""

    def __init__(self, demand: Float64Array, count_fills: bool) -> None:
        self.words, self.pj = demand, np.zeros(len(demand))
        self._fills, self._inner_pj = count_fills, np.zeros(len(demand))

    def through(self, used: BoolArray, outward: Float64Array, pj: float) -> None:
        """Through memories of `pj` an access, in the nests that use them."""
        self.pj += used * self.words * pj
        if self._fills:
            self.pj += used * self.words * self._inner_pj
            self._inner_pj = np.where(used, pj, self._inner_pj)
        self.words = np.where(used, outward, self.words)

    def leave(self, main_pj: float) -> Float64Array:
        """Into main memory; pJ of all accesses."""
        if self._fills:
            self.pj += self.words * self._inner_pj
        return self.pj + self.words * main_pj


class NestPool:
    """Levels are each tensor's own, and used where that pays."""

    def __init__(self, objective: Codesign) -> None:
        self._objective = objective
        self.nests: list[Nest] = []
        self._known: set[str] = set()
        # By tensor and nest: sizes of the buffers in bytes, and what passes out of
        # them, with the demand in front.
        self._nbytes: dict[Tensor, list[list[int]]] = {t: [] for t in Tensor}
        self._flows: dict[Tensor, list[list[float]]] = {t: [] for t in Tensor}
        self._arrays: dict[Tensor, tuple[Float64Array, Float64Array]] = {}
        self._outward: dict[tuple[Tensor, int], Float64Array] = {}
        self._costs: dict[tuple[Tensor, Sizes], Float64Array] = {}

    def add(self, nest: Nest) -> None:
        """Keep this nest, too."""
        if str(nest) in self._known:
            return
        self._known.add(str(nest))
        self.nests.append(nest)
        self._costs.clear()
        self._outward.clear()
        self._arrays.clear()
        for tensor, traffic in self._objective.traffic(nest).items():
            used = [buffer for buffer in traffic.choices if buffer.reuses]
            self._nbytes[tensor].append([buffer.nbytes for buffer in used])
            self._flows[tensor].append(
                [traffic.demand_words, *(b.outward_words for b in used)]
            )

    def sizes(self, tensor: Tensor) -> set[int]:
        """Bytes of all buffers of `tensor` in all nests."""
        return {nbytes for nest in self._nbytes[tensor] for nbytes in nest}

    def costs(self, tensor: Tensor, sizes: Sizes) -> Float64Array | float:
        """pJ of the tensor's accesses in every nest, shape (n,); 0 without tensor."""
        if not self._flows[tensor]:
            return 0.0
        known = self._costs.get((tensor, sizes))
        if known is None:
            known = self._priced(tensor, sizes)
            # A memory that does not pay is not used.
            for fewer in combinations(sizes, len(sizes) - 1) if sizes else ():
                known = np.minimum(known, self.costs(tensor, fewer))
            self._costs[tensor, sizes] = known
        return known

    def best(self, design: Design) -> tuple[float, Nest]:
        """The nest of least energy in it, and its pJ."""
        total = np.zeros(len(self.nests))
        for tensor, sizes in design.items():
            total += self.costs(tensor, sizes)
        place = int(np.argmin(total))
        return float(total[place]), self.nests[place]

    def _priced(self, tensor: Tensor, sizes: Sizes) -> Float64Array:
        curve = self._objective.curves[tensor]
        flow = _Flow(self._passed(tensor, 0), self._objective.count_fills)
        for nbytes in sizes:
            outward = self._passed(tensor, nbytes)
            flow.through(outward < flow.words, outward, curve.on_chip(nbytes))
        return flow.leave(curve.dram_pj)

    def _passed(self, tensor: Tensor, nbytes: int) -> Float64Array:
        """What passes out of the buffers of up to so many bytes, in every nest."""
        known = self._outward.get((tensor, nbytes))
        if known is None:
            if tensor not in self._arrays:
                self._arrays[tensor] = (
                    _padded(self._nbytes[tensor], np.inf),
                    _padded(self._flows[tensor], 0.0),
                )
            sizes, flows = self._arrays[tensor]
            held = (sizes <= nbytes).sum(axis=1)
            known = self._outward[tensor, nbytes] = flows[np.arange(len(flows)), held]
        return known


def _padded(rows: Sequence[Sequence[float]], rest: float) -> Float64Array:
    """The rows as one array, shape (n, longest), filled up with `rest`."""
    found = np.full((len(rows), max(map(len, rows))), rest)
    for row, values in zip(found, rows, strict=True):
        row[: len(values)] = values
    return found


_CANDIDATES = 40  # sizes that a memory may be changed to
_WORTH = 1 - 1e-9  # a change has to save more than that, relatively


@dataclass(frozen=True)
class RankedDesigns:
    """Designs within a budget: sizes of input, kernel and output, as positions in
    `sizes`, shape (n, 3); energies by layer, shape (layers, n)."""

    sizes: Sequence[Sizes]
    places: npt.NDArray[np.intp]
    energies: Float64Array
    by_layer: npt.NDArray[np.intp]  # shape (layers, n), least energy first

    def design(self, number: int) -> Design:
        """One of them."""
        return {
            tensor: self.sizes[place]
            for tensor, place in zip(Tensor, self.places[number], strict=True)
        }

    def least(self, counts: Sequence[int], most: int) -> list[int]:
        """Those of least energy over all layers, each run so many times."""
        total = np.array(counts, dtype=np.float64) @ self.energies
        return [int(i) for i in np.argsort(total, kind="stable")[:most]]

    def common(self, counts: Sequence[int], most: int) -> tuple[int, int]:
        """The best of the designs that are among the `most` best of every layer.

        If there are none, twice as many of each are taken, and so on. Also returns how
        many it took.
        """
        while True:
            shared = set(self.by_layer[0, :most].tolist())
            for order in self.by_layer[1:]:
                shared &= set(order[:most].tolist())
            if shared:
                total = np.array(counts, dtype=np.float64) @ self.energies
                return min(shared, key=lambda i: (total[i], i)), most
            most *= 2


def ranked_designs(
    pools: Sequence[NestPool], sizes: Sequence[Sizes], budget: int
) -> RankedDesigns:
    """All designs of these sizes that `budget` bytes are enough for."""
    nbytes = np.array([sum(own) for own in sizes])
    total = nbytes[:, None, None] + nbytes[:, None] + nbytes
    places = np.argwhere(total <= budget)
    energies = np.empty((len(pools), len(places)))
    for row, pool in zip(energies, pools, strict=True):
        whole = np.empty(total.shape)
        inputs, kernels, outputs = (_costs(pool, t, sizes) for t in Tensor)
        for i, own in enumerate(inputs):
            for k, other in enumerate(kernels):
                whole[i, k] = (own + other + outputs).min(axis=1)
        row[:] = whole[tuple(places.T)]
    by_layer = np.argsort(energies, axis=1, kind="stable")
    return RankedDesigns(sizes, places, energies, by_layer)


def descended(
    pools: Sequence[NestPool],
    counts: Sequence[int],
    design: Design,
    budget: int,
    levels: int,
) -> Design:
    """The design after changes that each save the most, until none saves any.

    A change adds, drops or resizes one memory of each of two tensors.
    """
    candidates = {tensor: _candidates(pools, tensor) for tensor in Tensor}
    energy = sum(n * p.best(design)[0] for n, p in zip(counts, pools, strict=True))
    while True:
        ways = {t: _changed(design[t], candidates[t], levels) for t in Tensor}
        costs = [{t: _costs(pool, t, ways[t]) for t in Tensor} for pool in pools]
        better: Design | None = None
        for pair in combinations(Tensor, 2):
            least, one, other = _best_pair(costs, counts, ways, pair, budget)
            if least < energy * _WORTH:
                energy = least
                better = {
                    **design,
                    pair[0]: ways[pair[0]][one],
                    pair[1]: ways[pair[1]][other],
                }
        if better is None:
            return design
        design = better


def _best_pair(
    costs: Sequence[dict[Tensor, Float64Array]],
    counts: Sequence[int],
    ways: dict[Tensor, list[Sizes]],
    pair: tuple[Tensor, Tensor],
    budget: int,
) -> tuple[float, int, int]:
    """The least energy with two tensors' memories changed, and how they are."""
    first, second = pair
    (rest,) = set(Tensor) - {first, second}
    total = np.zeros((len(ways[first]), len(ways[second])))
    for own, number in zip(costs, counts, strict=True):
        fixed = own[second] + own[rest][0]
        for i, cost in enumerate(own[first]):
            total[i] += number * (cost + fixed).min(axis=1)
    nbytes = np.add.outer(
        [sum(sizes) for sizes in ways[first]], [sum(sizes) for sizes in ways[second]]
    )
    total[nbytes + sum(ways[rest][0]) > budget] = np.inf
    one, other = divmod(int(np.argmin(total)), total.shape[1])
    return float(total[one, other]), one, other


def _costs(pool: NestPool, tensor: Tensor, ways: Sequence[Sizes]) -> Float64Array:
    """pJ of each of the sizes in every nest, shape (ways, nests)."""
    found = np.empty((len(ways), len(pool.nests)))
    for row, sizes in zip(found, ways, strict=True):
        row[:] = pool.costs(tensor, sizes)
    return found


def _candidates(pools: Sequence[NestPool], tensor: Tensor) -> list[int]:
    """Sizes of buffers, ascending; of many that are close, the largest."""
    sizes = sorted(set[int]().union(*(pool.sizes(tensor) for pool in pools)))
    ratio = 1.0
    thinned = sizes
    while len(thinned) > _CANDIDATES:
        ratio += 0.02
        thinned = [s for s, after in pairwise(sizes) if after > ratio * s]
        thinned.append(sizes[-1])
    return thinned


def _changed(sizes: Sizes, candidates: Sequence[int], levels: int) -> list[Sizes]:
    """The sizes, and all that come from changing one of them."""
    found = {sizes: None}
    for place in range(len(sizes)):
        rest = {*sizes[:place], *sizes[place + 1 :]}
        if rest:
            found.setdefault(tuple(sorted(rest)))
        for nbytes in candidates:
            found.setdefault(tuple(sorted(rest | {nbytes})))
    if len(sizes) < levels:
        for nbytes in candidates:
            found.setdefault(tuple(sorted({*sizes, nbytes})))
    return list(found)


def private_hierarchy(design: Design, objective: Codesign) -> Hierarchy:
    """Levels of memories that each tensor has for itself, innermost first.

    A tensor with fewer memories than others has none in the inner levels, which are of
    0 bytes.
    """
    depth = max(map(len, design.values()))
    filled = {t: (*(0,) * (depth - len(s)), *s) for t, s in design.items()}
    levels = tuple(
        Level(
            f"SRAM{i + 1}",
            None,
            {t: filled[t][i] for t in Tensor},
            {},
            sliding=objective.sliding,
        )
        for i in range(depth)
    )
    curves = objective.curves
    drams = {curves[tensor].dram_pj for tensor in Tensor}
    if len(drams) > 1:
        raise UsageError("the tensors' curves give main memory several energies")
    return Hierarchy(
        "designed",
        "Designed",
        "",
        levels,
        curves,
        drams.pop(),
        objective.mac_pj,
        objective.count_fills,
        objective.precision,
        objective.technology,
    )
