"""Nests of one layer, kept to price them on any private hierarchy at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TypeAlias

import numpy as np

from memplan.arrays import Float64Array
from memplan.blocking.cost.many_pricing import Flow
from memplan.blocking.cost.objective import Codesign
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.nest import Nest

Sizes: TypeAlias = tuple[int, ...]  # bytes of one tensor's memories, ascending
Design: TypeAlias = Mapping[Tensor, Sizes]


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
        curve, flows = self._objective.curves[tensor], self._flows[tensor]
        flow = Flow(len(flows), self._objective.count_fills)
        flow.enter(self._passed(tensor, 0))
        for nbytes in sizes:
            outward = self._passed(tensor, nbytes)
            used = outward < flow.elements
            flow.into(used, curve.on_chip(nbytes))
            flow.through(used, outward)
        flow.leave(curve.dram_pj)
        return flow.pj

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
