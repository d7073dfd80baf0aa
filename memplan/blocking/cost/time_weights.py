"""Lower bounds of a nest's cycles that are sums over what passes its memories.

Such a sum has the shape of an energy, so whatever finds nests of little energy, and
bounds it, does so for cycles as well: with cycles a byte in place of energies. No port
is busy for longer than the whole takes; and what moves into levels that are not
double-buffered is added to the datapath's steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from memplan.blocking.machine.hierarchy import Hierarchy, Level
from memplan.blocking.nest.layer import Tensor

_WORD_BYTES = 2
NOTHING = 1e-12  # of the largest price; prices are above 0


@dataclass(frozen=True)
class Weights:
    """Cycles a byte that memories serve, by depth (main memory's is the last) and
    tensor. adds: whether they come on top of the datapath's steps, if every tensor is
    kept in the levels inside of those with a weight."""

    by_depth: tuple[Mapping[Tensor, float], ...]
    adds: bool

    def combined(self, hierarchy: Hierarchy, worth: float) -> Hierarchy:
        """The hierarchy with energies raised by `worth` pJ a cycle.

        Where fills are charged, a level's price is paid for what is written into it,
        too. That passes its port as well, but is not added to the steps once more; so
        of what adds, only main memory's weights stay then.
        """
        if not (self.adds and hierarchy.count_fills):
            return self._priced(hierarchy, worth, 1.0)
        none = dict.fromkeys(Tensor, 0.0)
        rows = (*(none for _ in hierarchy.levels), self.by_depth[-1])
        return replace(self, by_depth=rows)._priced(hierarchy, worth, 1.0)

    def alone(self, hierarchy: Hierarchy) -> Hierarchy:
        """The hierarchy with cycles for energies, and next to nothing for none."""
        return self._priced(hierarchy, 1.0, 0.0)

    def _priced(self, hierarchy: Hierarchy, worth: float, energy: float) -> Hierarchy:
        most = max(w for own in self.by_depth for w in own.values()) or 1.0
        levels: list[Level] = []
        for depth, level in enumerate(hierarchy.levels):
            least = NOTHING * most * (1 + depth / 16)
            pj = {
                tensor: energy * hierarchy.price(depth, tensor)
                + worth * max(_WORD_BYTES * self.by_depth[depth][tensor], least)
                for tensor in Tensor
            }
            levels.append(replace(level, pj=pj))
        outside = {
            tensor: energy * hierarchy.main_pj(tensor)
            + worth * max(_WORD_BYTES * weight, 2 * NOTHING * most)
            for tensor, weight in self.by_depth[-1].items()
        }
        counts = hierarchy.count_fills and energy > 0
        priced = replace(hierarchy, levels=tuple(levels), count_fills=counts)
        return replace(priced, dram_by_tensor=outside)


def weights_of(hierarchy: Hierarchy) -> list[Weights]:
    """Those that bound a nest's cycles on this hierarchy: main memory's port first."""
    if not hierarchy.timed:
        return []
    found = [*_ports(hierarchy), *_added(hierarchy)]
    return [one for one in found if any(any(own.values()) for own in one.by_depth)]


def _rate(hierarchy: Hierarchy, depth: int, tensor: Tensor) -> float:
    if depth == len(hierarchy.levels):
        known = hierarchy.dram_bandwidth
        return math.inf if known is None else known
    return hierarchy.levels[depth].bandwidth.get(tensor, math.inf)


def _ports(hierarchy: Hierarchy) -> Iterator[Weights]:
    """One for each port, and one for the mean of all. Of two ports one has at least
    half of what passes both."""
    last = len(hierarchy.levels)
    found: list[Weights] = []
    for depth in range(last, -1, -1):
        level = None if depth == last else hierarchy.levels[depth]
        ports = hierarchy.dram_ports if level is None else level.ports
        groups: list[tuple[Tensor, ...]] = [tuple(Tensor)]
        if level is not None and level.private:
            groups = [(tensor,) for tensor in Tensor]
        for group in groups:
            rows = [dict.fromkeys(Tensor, 0.0) for _ in range(last + 1)]
            for tensor in group:
                rows[depth][tensor] = 1 / (_rate(hierarchy, depth, tensor) * ports)
            if any(rows[depth].values()):
                found.append(Weights(tuple(rows), adds=False))
    yield from found
    if len(found) > 1:
        mean = [
            {t: sum(w.by_depth[i][t] for w in found) / len(found) for t in Tensor}
            for i in range(last + 1)
        ]
        yield Weights(tuple(mean), adds=False)


def _added(hierarchy: Hierarchy) -> Iterator[Weights]:
    """What is added as long as levels are not double-buffered, from the inside out."""
    rows = [dict.fromkeys(Tensor, 0.0) for _ in range(len(hierarchy.levels) + 1)]
    for depth in range(1, len(rows)):
        if hierarchy.levels[depth - 1].double_buffered:
            break
        for tensor in Tensor:
            inside = max(_rate(hierarchy, i, tensor) for i in range(depth))
            rate = min(_rate(hierarchy, depth, tensor), inside)
            rows[depth][tensor] = 1 / rate
    yield Weights(tuple(rows), adds=True)
