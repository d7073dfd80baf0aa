"""Prices of the buffers of many nests at once, as `codesign` and `packing` set them.

Each takes the tensors' demands and, inner to outer, their closings; and returns pJ,
shape (n,).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Float64Array
from memplan.blocking.cost.objective import Codesign, Objective
from memplan.blocking.machine.energy import Curve
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.nest.counts import ELEMENT_BYTES
from memplan.blocking.nest.layer import Tensor

Rows: TypeAlias = BoolArray | bool  # which of the nests; True for all, False for none
# Counts above 2^53 are rounded; less than this is no saving.
_LESS = 1 - 4e-15


@dataclass(frozen=True)
class Closing:
    """Buffers that end at one loop: in which rows, and there elements and outward."""

    rows: Rows
    elements: Float64Array
    outward: Float64Array


Closings: TypeAlias = Mapping[Tensor, Iterator[Closing]]
Pricing: TypeAlias = Callable[[Mapping[Tensor, float], Closings, int], Float64Array]


def pricing(objective: Objective) -> Pricing:
    """The energy function of one objective."""
    if isinstance(objective, Codesign):
        return _Free(objective) if objective.budget is None else _Budgeted(objective)
    if objective.hierarchy.private:
        return _Private(objective.hierarchy)
    return _Shared(objective.hierarchy)


class _Prices:
    """A curve over arrays."""

    def __init__(self, curve: Curve) -> None:
        self._x, self._y = np.log(curve.nbytes), np.log(curve.pj)
        self.limit, self.dram_pj = curve.dram_above, curve.dram_pj

    def __call__(self, nbytes: Float64Array) -> Float64Array:
        """pJ on the chip, however large."""
        found: Float64Array = np.exp(np.interp(np.log(nbytes), self._x, self._y))
        return found


class _Free:
    """Co-design with as much memory as pays."""

    def __init__(self, objective: Codesign) -> None:
        self._prices = {t: _Prices(c) for t, c in objective.curves.items()}
        self._fills = objective.count_fills

    def __call__(
        self, demand: Mapping[Tensor, float], closings: Closings, n: int
    ) -> Float64Array:
        total = np.zeros(n)
        for tensor, buffers in closings.items():
            price, flow = self._prices[tensor], np.full(n, demand[tensor])
            for closing in buffers:
                nbytes = ELEMENT_BYTES * closing.elements
                used = (closing.outward < flow * _LESS) & (nbytes <= price.limit)
                used &= closing.rows
                accesses = flow + closing.outward if self._fills else flow
                total += used * accesses * price(nbytes)
                flow = np.where(used, closing.outward, flow)
            total += flow * price.dram_pj
        return total


class _Private:
    """A fixed hierarchy without shared levels: each tensor by itself."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        levels = range(len(hierarchy.levels))
        self._capacity = {
            t: np.array([hierarchy.levels[i].capacity(t) for i in levels], float)
            for t in Tensor
        }
        self._price = {
            t: np.array([hierarchy.price(i, t) for i in levels]) for t in Tensor
        }
        self._dram_pj, self._fills = hierarchy.dram_pj, hierarchy.count_fills

    def __call__(
        self, demand: Mapping[Tensor, float], closings: Closings, n: int
    ) -> Float64Array:
        total = np.zeros(n)
        for tensor, buffers in closings.items():
            capacity = self._capacity[tensor]
            # Of main memory nothing is charged here, so its price is 0.
            price = np.append(self._price[tensor], 0.0)
            flow, depth = np.full(n, demand[tensor]), np.full(n, -1)
            for closing in buffers:
                nbytes = ELEMENT_BYTES * closing.elements
                fits = np.searchsorted(capacity, nbytes)
                used = (closing.outward < flow * _LESS) & (fits < len(capacity))
                used &= closing.rows
                opens = used & (fits > depth)
                total += opens * flow * price[fits]
                if self._fills:
                    total += opens * flow * price[depth]
                flow = np.where(used, closing.outward, flow)
                depth = np.where(opens, fits, depth)
            if self._fills:
                total += flow * price[depth]
            total += flow * self._dram_pj
        return total


@dataclass(frozen=True)
class _Collected:
    """All buffers of all nests, one row a buffer: shape (m, n) each but `tensors`,
    (m,), which counts from 0. Where a nest does not use a buffer, `used` is False."""

    tensors: npt.NDArray[np.intp]
    used: BoolArray
    nbytes: Float64Array
    inward: Float64Array
    outward: Float64Array


def _collected(
    demand: Mapping[Tensor, float],
    closings: Closings,
    n: int,
    prices: Mapping[Tensor, _Prices] | None,
) -> _Collected | None:
    """None if there are no buffers. prices: to leave out those above their limits."""
    tensors: list[int] = []
    used: list[BoolArray] = []
    rows: list[tuple[Float64Array, Float64Array, Float64Array]] = []
    for number, (tensor, buffers) in enumerate(closings.items()):
        flow = np.full(n, demand[tensor])
        for closing in buffers:
            nbytes = ELEMENT_BYTES * closing.elements
            saves = (closing.outward < flow * _LESS) & closing.rows
            if prices is not None:
                saves &= nbytes <= prices[tensor].limit
            tensors.append(number)
            used.append(saves)
            rows.append((nbytes, flow, closing.outward))
            flow = np.where(saves, closing.outward, flow)
    if not tensors:
        return None
    nbytes, inward, outward = (np.stack(column) for column in zip(*rows, strict=True))
    return _Collected(np.array(tensors), np.stack(used), nbytes, inward, outward)


def _ranked(accesses: Float64Array, used: BoolArray) -> npt.NDArray[np.intp]:
    """Each nest's buffers, those with most accesses first, as many as one uses at
    most; shape (least m, n)."""
    order = np.argsort(-accesses, axis=0, kind="stable")
    found: npt.NDArray[np.intp] = order[: int(used.sum(axis=0).max())]
    return found


class _Budgeted:
    """Co-design within a budget: the buffers with most accesses come first."""

    def __init__(self, objective: Codesign) -> None:
        assert objective.budget is not None
        self._prices = {t: _Prices(c) for t, c in objective.curves.items()}
        self._budget, self._fills = objective.budget, objective.count_fills

    def __call__(
        self, demand: Mapping[Tensor, float], closings: Closings, n: int
    ) -> Float64Array:
        found = _collected(demand, closings, n, self._prices)
        kept = None if found is None else self._kept(found)
        total = np.zeros(n)
        for number, tensor in enumerate(closings):
            price, flow = self._prices[tensor], np.full(n, demand[tensor])
            if found is not None and kept is not None:
                for i in np.flatnonzero(found.tensors == number):
                    outward = found.outward[i]
                    accesses = flow + outward if self._fills else flow
                    total += kept[i] * accesses * price(found.nbytes[i])
                    flow = np.where(kept[i], outward, flow)
            total += flow * price.dram_pj
        return total

    def _kept(self, found: _Collected) -> BoolArray:
        """Which buffers fit, shape (m, n)."""
        m, n = found.used.shape
        accesses = np.where(found.used, found.inward + found.outward, -1.0)
        order = _ranked(accesses, found.used)
        every = np.arange(n)
        left = np.full(n, float(self._budget))
        closed = np.zeros((int(found.tensors.max()) + 1, n), dtype=bool)
        kept = np.zeros((m, n), dtype=bool)
        for place in order:
            tensor = found.tensors[place]
            wanted = found.used[place, every] & ~closed[tensor, every]
            nbytes = found.nbytes[place, every]
            fits = wanted & (nbytes <= left)
            left -= fits * nbytes
            kept[place, every] = fits
            closed[tensor, every] |= wanted & ~fits
        return kept


class _Shared:
    """A fixed hierarchy with levels that tensors share."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy
        self._capacity = np.array(
            [[level.capacity(t) for t in Tensor] for level in hierarchy.levels], float
        )

    def __call__(
        self, demand: Mapping[Tensor, float], closings: Closings, n: int
    ) -> Float64Array:
        found = _collected(demand, closings, n, None)
        chosen = None if found is None else self._assigned(found, list(closings))
        hierarchy, total = self._hierarchy, np.zeros(n)
        for number, tensor in enumerate(closings):
            price = [hierarchy.price(i, tensor) for i in range(len(hierarchy.levels))]
            by_level = np.array([*price, 0.0])
            flow, depth = np.full(n, demand[tensor]), np.full(n, -1)
            if found is not None and chosen is not None:
                for i in np.flatnonzero(found.tensors == number):
                    level = chosen[i]
                    used = found.used[i] & (level < len(price))
                    opens = used & (level > depth)
                    total += opens * flow * by_level[level]
                    if hierarchy.count_fills:
                        total += opens * flow * by_level[depth]
                    flow = np.where(used, found.outward[i], flow)
                    depth = np.where(opens, level, depth)
            if hierarchy.count_fills:
                total += flow * by_level[depth]
            total += flow * hierarchy.dram_pj
        return total

    def _assigned(
        self, found: _Collected, tensors: list[Tensor]
    ) -> npt.NDArray[np.intp]:
        """Level of each buffer, shape (m, n); main memory after the last."""
        m, n = found.used.shape
        columns = [list(Tensor).index(t) for t in tensors]
        capacity = self._capacity[:, columns]
        order = _ranked(np.where(found.used, found.inward, -1.0), found.used)
        every = np.arange(n)
        depth = np.zeros((len(tensors), n), dtype=np.intp)
        taken = np.zeros((len(capacity), len(tensors), n))
        chosen = np.full((m, n), len(capacity), dtype=np.intp)
        for place in order:
            tensor = found.tensors[place]
            pending = found.used[place, every].copy()
            nbytes = found.nbytes[place, every]
            for number, level in enumerate(self._hierarchy.levels):
                here = pending & (depth[tensor, every] == number)
                if not here.any():
                    continue
                used = taken[number]
                own = np.maximum(nbytes, used[tensor, every])
                rest = 0.0 if level.private else used.sum(0) - used[tensor, every]
                fits = here & (own + rest <= capacity[number, tensor])
                used[tensor, every] = np.where(fits, own, used[tensor, every])
                chosen[place, every] = np.where(fits, number, chosen[place, every])
                pending &= ~fits
                full = here & ~fits
                if level.private:
                    depth[tensor, every] += full
                else:
                    depth = np.where(full, np.maximum(depth, number + 1), depth)
        return chosen
