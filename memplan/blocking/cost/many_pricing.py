"""Prices of the buffers of many nests at once, by the same rules as for one nest.

`pricing` gives a function that takes the tensors' demands and, inner to outer, their
closings; and returns pJ, shape (n,).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Float64Array
from memplan.blocking.cost.objective import Codesign, Objective
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.nest.layer import Tensor

IndexArray: TypeAlias = npt.NDArray[np.intp]
Rows: TypeAlias = BoolArray | bool  # which of the nests; True for all, False for none
# Counts above 2^53 are rounded; less than this is no saving.
_LESS = 1 - 4e-15


@dataclass(frozen=True)
class Closing:
    """Buffers that end at one loop: in which rows, and there elements, and outward in
    units of 16 bits, as demands and all that passes are here."""

    rows: Rows
    elements: Float64Array
    outward: Float64Array


Closings: TypeAlias = Mapping[Tensor, Iterator[Closing]]
Pricing: TypeAlias = Callable[[Mapping[Tensor, float], Closings, int], Float64Array]


class Flow:
    """The rule of `pricing.priced` for n nests: what passes out of the memories so far,
    and, in `pj`, the energy of all accesses until then, of one tensor after the other.
    """

    def __init__(self, n: int, count_fills: bool) -> None:
        self.pj = np.zeros(n)
        self._n, self._fills = n, count_fills

    def enter(self, demand: float | Float64Array) -> None:
        """A tensor, from the datapath outwards."""
        self.elements = np.full(self._n, demand)
        self._inner_pj = np.zeros(self._n)

    def reduced_by(self, closing: Closing) -> BoolArray:
        """Where these buffers would save anything."""
        saves: BoolArray = (closing.outward < self.elements * _LESS) & closing.rows
        return saves

    def into(self, begins: BoolArray, pj: Float64Array | float) -> None:
        """Into memories of `pj` an access that begin here, out of those inside."""
        self.pj += begins * self.elements * pj
        if self._fills:
            self.pj += begins * self.elements * self._inner_pj
            self._inner_pj = np.where(begins, pj, self._inner_pj)

    def through(self, used: BoolArray, outward: Float64Array) -> None:
        """Through the buffers that are used."""
        self.elements = np.where(used, outward, self.elements)

    def leave(self, main_pj: float) -> None:
        """Into main memory."""
        if self._fills:
            self.pj += self.elements * self._inner_pj
        self.pj += self.elements * main_pj


def pricing(objective: Objective) -> Pricing:
    """The energy function of one objective."""
    if isinstance(objective, Codesign):
        return _Own(objective)
    return _Levels(objective.hierarchy)


@dataclass(frozen=True)
class _Buffers:
    """One closing's buffers: the nests in which they save anything, bytes, and what
    passes into and out of them; shape (n,) each."""

    used: BoolArray
    nbytes: Float64Array
    inward: Float64Array
    outward: Float64Array


_Useful: TypeAlias = Mapping[Tensor, Sequence[_Buffers]]


def _useful(
    demand: float, closings: Iterator[Closing], n: int, bits: int, largest: float
) -> Iterator[_Buffers]:
    """One tensor's buffers, inner to outer; none of more than `largest` bytes. bits:
    of an element in them."""
    flow = Flow(n, count_fills=False)
    flow.enter(demand)
    for closing in closings:
        nbytes = np.ceil(bits / 8 * closing.elements)
        used = flow.reduced_by(closing)
        if largest < np.inf:
            used &= nbytes <= largest
        yield _Buffers(used, nbytes, flow.elements, closing.outward)
        flow.through(used, closing.outward)


class _Ranking:
    """All tensors' buffers, those with most accesses first, in each nest by itself.

    accesses: of the buffers as they come, tensor after tensor. Iterating gives, for
    each rank, (which buffer, its tensor's number, whether it is used, its bytes), shape
    (n,) each.
    """

    def __init__(self, useful: _Useful, accesses: Sequence[Float64Array]) -> None:
        rows = [one for own in useful.values() for one in own]
        counts = [len(own) for own in useful.values()]
        self._tensors = np.repeat(np.arange(len(counts)), counts)
        self._used = np.stack([one.used for one in rows])
        self._nbytes = np.stack([one.nbytes for one in rows])
        order = np.where(self._used, np.stack(accesses), -1.0)
        most = int(self._used.sum(axis=0).max())
        self._order = np.argsort(-order, axis=0, kind="stable")[:most]

    def __iter__(
        self,
    ) -> Iterator[tuple[IndexArray, IndexArray, BoolArray, Float64Array]]:
        every = np.arange(self._used.shape[1])
        for which in self._order:
            used, nbytes = self._used[which, every], self._nbytes[which, every]
            yield which, self._tensors[which], used, nbytes


class _Own:
    """Every buffer in a memory of its own, perhaps within a budget."""

    def __init__(self, machine: Codesign) -> None:
        self._curves, self._budget = machine.curves, machine.budget
        self._fills, self._precision = machine.count_fills, machine.precision

    def __call__(
        self, demand: Mapping[Tensor, float], closings: Closings, n: int
    ) -> Float64Array:
        flow = Flow(n, self._fills)
        for tensor, own in self._kept(demand, closings, n).items():
            curve = self._curves[tensor]
            flow.enter(demand[tensor])
            for one in own:
                flow.into(one.used, curve.on_chips(one.nbytes))
                flow.through(one.used, one.outward)
            flow.leave(curve.dram_pj)
        return flow.pj

    def _kept(
        self, demand: Mapping[Tensor, float], closings: Closings, n: int
    ) -> Mapping[Tensor, Iterable[_Buffers]]:
        """The buffers that have a memory, those with most accesses first."""
        found = {
            t: _useful(
                demand[t], own, n, self._precision.held(t), self._curves[t].dram_above
            )
            for t, own in closings.items()
        }
        if self._budget is None:
            return found
        useful = {tensor: list(own) for tensor, own in found.items()}
        accesses = [b.inward + b.outward for own in useful.values() for b in own]
        if not accesses:
            return useful
        every = np.arange(n)
        left = np.full(n, float(self._budget))
        closed = np.zeros((len(useful), n), dtype=bool)
        kept = np.zeros((len(accesses), n), dtype=bool)
        for which, tensor, used, nbytes in _Ranking(useful, accesses):
            wanted = used & ~closed[tensor, every]
            fits = wanted & (nbytes <= left)
            left -= fits * nbytes
            kept[which, every] = fits
            closed[tensor, every] |= wanted & ~fits
        rows = iter(kept)
        return {
            t: [replace(one, used=next(rows)) for one in own]
            for t, own in useful.items()
        }


class _Levels:
    """A given hierarchy, whose levels each tensor has for itself, or shares."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy
        levels = list(enumerate(hierarchy.levels))
        # What main memory serves is charged at the end, so here its price is 0.
        self._prices = {
            t: np.array([*(hierarchy.price(i, t) for i, _ in levels), 0.0])
            for t in Tensor
        }
        self._capacity = {
            t: np.array([float(level.capacity(t)) for _, level in levels])
            for t in Tensor
        }

    def __call__(
        self, demand: Mapping[Tensor, float], closings: Closings, n: int
    ) -> Float64Array:
        hierarchy, flow = self._hierarchy, Flow(n, self._hierarchy.count_fills)
        useful = {
            t: _useful(demand[t], own, n, hierarchy.precision.held(t), np.inf)
            for t, own in closings.items()
        }
        for tensor, own in self._assigned(useful, n).items():
            prices = self._prices[tensor]
            flow.enter(demand[tensor])
            depth = np.full(n, -1)
            for one, level in own:
                used = one.used & (level < len(hierarchy.levels))
                begins = used & (level > depth)
                flow.into(begins, prices[level])
                flow.through(used, one.outward)
                depth = np.where(begins, level, depth)
            flow.leave(hierarchy.main_pj(tensor))
        return flow.pj

    def _assigned(
        self, useful: Mapping[Tensor, Iterator[_Buffers]], n: int
    ) -> Mapping[Tensor, Iterable[tuple[_Buffers, IndexArray]]]:
        """Every buffer with its level, shape (n,); main memory after the last."""
        if self._hierarchy.private:
            return {t: self._alone(t, own) for t, own in useful.items()}
        listed = {tensor: list(own) for tensor, own in useful.items()}
        levels = iter(self._shared(listed, n))
        return {t: [(one, next(levels)) for one in own] for t, own in listed.items()}

    def _alone(
        self, tensor: Tensor, own: Iterator[_Buffers]
    ) -> Iterator[tuple[_Buffers, IndexArray]]:
        for one in own:
            holds = self._capacity[tensor][:, None] >= one.nbytes
            # The first that does; after the last, if there is none.
            yield one, np.where(holds.any(axis=0), holds.argmax(axis=0), len(holds))

    def _shared(self, useful: _Useful, n: int) -> IndexArray:
        """Level of each buffer, shape (m, n), those with most accesses first."""
        levels = self._hierarchy.levels
        capacity = np.array([self._capacity[t] for t in useful])
        accesses = [b.inward for own in useful.values() for b in own]
        found = np.full((len(accesses), n), len(levels), dtype=np.intp)
        if not accesses:
            return found
        every = np.arange(n)
        depth = np.zeros((len(useful), n), dtype=np.intp)
        taken = np.zeros((len(levels), len(useful), n))
        for which, tensor, used, nbytes in _Ranking(useful, accesses):
            pending = used
            for number, level in enumerate(levels):
                here = pending & (depth[tensor, every] == number)
                if not here.any():
                    continue
                room = taken[number]
                own = np.maximum(nbytes, room[tensor, every])
                rest = 0.0 if level.private else room.sum(0) - room[tensor, every]
                fits = here & (own + rest <= capacity[tensor, number])
                room[tensor, every] = np.where(fits, own, room[tensor, every])
                found[which, every] = np.where(fits, number, found[which, every])
                pending = pending & ~fits
                full = here & ~fits
                if level.private:
                    depth[tensor, every] += full
                else:
                    depth = np.where(full, np.maximum(depth, number + 1), depth)
        return found
