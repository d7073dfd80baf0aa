"""What a search for loop nests hands on: nests, what they cost, how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.blocking.cost.evaluation import Evaluation


@dataclass(frozen=True)
class Search:
    """How a nest was found: seconds; and pJ that no nest of `space` can do with less
    than, where the method knows. proved_optimal: in that space."""

    method: str
    seconds: float
    lower_bound: float | None
    proved_optimal: bool
    space: str = "divisors, window in one piece"


@dataclass(frozen=True)
class PlannedLayer:
    """One layer's nest; count: how often the layer is run."""

    evaluation: Evaluation
    search: Search
    count: int = 1


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
    def macs(self) -> int:
        """Multiplications of all layers, likewise."""
        return sum(one.count * one.evaluation.layer.macs for one in self.layers)
