"""What no nest does with fewer cycles, or with less energy times cycles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from memplan.blocking.cost.latency import datapath_bytes, datapath_steps
from memplan.blocking.cost.objective import Fixed
from memplan.blocking.cost.time_weights import NOTHING, Weights
from memplan.blocking.nest.counts import Traffic
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.nest import Nest


@dataclass(frozen=True)
class _Line:
    """energy + worth (cycles - steps) is at least `least`."""

    worth: float
    steps: float
    least: float

    def energy(self, cycles: float) -> float:
        return self.least - self.worth * (cycles - self.steps)


@dataclass
class TimeBounds:
    """Of one layer on one machine; nest: any of the layer's. energy: pJ that no nest
    takes less than, 0 as long as nothing is known."""

    nest: Nest
    machine: Fixed
    energy: float = 0.0
    lines: list[_Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.steps = float(datapath_steps(self.nest))
        self._traffic = self.machine.traffic(self.nest)
        # Whichever memory serves the datapath has to pass all that it asks for.
        served = (min(self._serving(own)) for own in self._traffic.values())
        self.cycles = max(self.steps, *served)
        self._streaming = math.inf

    def _serving(self, own: Traffic) -> Iterator[float]:
        """Cycles of a port of each memory that may serve a tensor to the datapath."""
        hierarchy, tensor = self.machine.hierarchy, own.tensor
        inward, outward = datapath_bytes(own)
        known = hierarchy.dram_bandwidth
        rates = [(math.inf if known is None else known, hierarchy.dram_ports)]
        rates += [
            (level.bandwidth.get(tensor, math.inf), level.ports)
            for level in hierarchy.levels
            if level.capacity(tensor)
        ]
        for rate, ports in rates:
            longer = inward + outward if ports == 1 else max(inward, outward)
            yield longer / rate

    def bounded_by(self, weights: Weights, least: float) -> None:
        """The sum of `weights` over what passes is at least `least`."""
        least -= self._slack(weights)
        if weights.adds:
            found = min(self.steps + least, self._streamed(weights))
        else:
            found = least
        self.cycles = max(self.cycles, found)

    def mixed(self, weights: Weights, worth: float, least: float) -> None:
        """The energy and `worth` times the sum are at least `least` together."""
        steps = 0.0
        if weights.adds:
            steps = self.steps
            self._streaming = min(self._streaming, self._streamed(weights))
        slack = worth * self._slack(weights)
        self.lines.append(_Line(worth, steps, least - slack))

    def edp(self, mac_pj: float) -> float:
        """pJ times cycles, with so many pJ for the multiplications."""
        lines = [*self.lines, _Line(0.0, 0.0, self.energy)]
        corners = [self.cycles]
        for one, other in combinations(lines, 2):
            if one.worth != other.worth:
                apart = one.energy(0.0) - other.energy(0.0)
                corners.append(apart / (one.worth - other.worth))
        least = math.inf
        for cycles in corners:
            if cycles >= self.cycles:
                energy = max(line.energy(cycles) for line in lines) + mac_pj
                least = min(least, cycles * energy)
        # Nests that the lines are not about take at least the energy, and so long.
        return min(least, (self.energy + mac_pj) * max(self._streaming, self.cycles))

    def _slack(self, weights: Weights) -> float:
        """What prices that stand for none come to at most."""
        most = max(w for own in weights.by_depth for w in own.values())
        words = sum(own.demand_words for own in self._traffic.values())
        return 4 * NOTHING * most * words * len(weights.by_depth)

    def _streamed(self, weights: Weights) -> float:
        """Cycles of a nest in which a tensor goes past all levels inside of those with
        a weight: one port then carries all that the datapath asks for."""
        hierarchy, found = self.machine.hierarchy, math.inf
        outside = len(hierarchy.levels)
        for depth, row in enumerate(weights.by_depth):
            for tensor, own in self._traffic.items():
                if not row[tensor]:
                    continue
                if depth < outside:
                    level = hierarchy.levels[depth]
                    rate = level.bandwidth.get(tensor, math.inf) * level.ports
                else:
                    known = hierarchy.dram_bandwidth
                    rate = math.inf if known is None else known * hierarchy.dram_ports
                nbytes = 2 * own.demand_words
                if depth == outside:
                    nbytes += _compulsory(self._traffic, tensor)
                found = min(found, max(self.steps, nbytes / rate))
        return found


def _compulsory(traffic: Mapping[Tensor, Traffic], besides: Tensor) -> float:
    """Bytes that all other tensors move to or from main memory at least."""
    others: Sequence[Traffic] = [t for own, t in traffic.items() if own is not besides]
    return sum(2 * own.compulsory_words for own in others)
