"""Designs of private memories, compared over all layers by the nests that are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt

from memplan.arrays import Float64Array
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.search.nest_pool import Design, NestPool, Sizes

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
