"""What a search for loop nests hands on: nests, what they cost, how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.blocking.cost.evaluation import Evaluation
from memplan.blocking.cost.timed_memories import FrontPoint
from memplan.blocking.nest.array import MappingSearch


@dataclass(frozen=True)
class Search:
    """How a nest was found: seconds; and what no nest of `space` can do with less
    than, where the method knows: pJ, or cycles or pJ times cycles, if these were
    minimized. proved_optimal: in that space. front: by cycles, if it was asked for.
    mapping: how the datapath was chosen, if it was; bound and proof are then about all
    those mappings."""

    method: str
    seconds: float
    lower_bound: float | None
    proved_optimal: bool
    space: str = "divisors, window in one piece"
    minimized: str = "energy"
    front: tuple[FrontPoint, ...] = ()
    mapping: MappingSearch | None = None


@dataclass(frozen=True)
class PlannedLayer:
    """One layer's nest; count: how often the layer is run."""

    evaluation: Evaluation
    search: Search
    count: int = 1

    @property
    def value(self) -> float:
        """What was minimized, of this nest."""
        found = self.evaluation
        if self.search.minimized == "cycles" and found.latency is not None:
            return found.latency.cycles
        if self.search.minimized == "edp" and found.edp is not None:
            return found.edp
        return found.total

    @property
    def gap(self) -> float | None:
        """How far above the lower bound that is, relative to it; None without one."""
        if self.search.proved_optimal:
            return 0.0
        bound = self.search.lower_bound
        return None if bound is None else max(self.value / bound - 1, 0.0)


@dataclass(frozen=True)
class CurvePoint:
    """The least energy of all layers where memories may take up `budget` bytes; those
    chosen take up `sram_bytes`, and with the datapath `area_mm2`."""

    budget: int
    sram_bytes: int
    area_mm2: float
    energy_pj: float


@dataclass(frozen=True)
class BlockingPlan:
    """memory: the hierarchy's name, or None where each buffer has a memory of its own;
    budget: bytes of these, None without a limit; curve: budgets ascend."""

    layers: tuple[PlannedLayer, ...]
    memory: str | None = None
    budget: int | None = None
    curve: tuple[CurvePoint, ...] = ()

    @property
    def total(self) -> float:
        """pJ of all layers, each as often as it is run."""
        return sum(one.count * one.evaluation.total for one in self.layers)

    @property
    def cycles(self) -> float | None:
        """Of all layers, likewise; None where they were not counted."""
        total = 0.0
        for one in self.layers:
            if one.evaluation.latency is None:
                return None
            total += one.count * one.evaluation.latency.cycles
        return total

    @property
    def macs(self) -> int:
        """Multiplications of all layers, likewise."""
        return sum(one.count * one.evaluation.layer.macs for one in self.layers)
