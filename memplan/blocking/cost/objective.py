"""What a search minimises: the energy of a layer's accesses, on one of two machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from memplan.blocking.cost.codesign import codesign_energy
from memplan.blocking.cost.packing import pack
from memplan.blocking.machine.energy import Curve, paper_curves
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.nest.counts import count
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.nest import Nest
from memplan.errors import UsageError


@dataclass(frozen=True)
class Codesign:
    """Every buffer in a memory of its own size (paper, section 3.6).

    curves: energy by memory size for each tensor; budget: bytes on the chip, None for
    as many as pay; count_fills: whether writing what was fetched costs as reading does.
    Raises UsageError where the budget is negative.
    """

    curves: Mapping[Tensor, Curve] = field(default_factory=paper_curves)
    budget: int | None = None
    count_fills: bool = False

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 0:
            raise UsageError(f"a budget of {self.budget} bytes makes no sense")

    def evaluate(self, nest: Nest) -> float:
        """pJ of all accesses of one nest."""
        return codesign_energy(
            count(nest),
            self.curves,
            budget=self.budget,
            count_fills=self.count_fills,
        ).total

    def main_pj(self, tensor: Tensor) -> float:
        """pJ of an access to main memory."""
        return self.curves[tensor].dram_pj


@dataclass(frozen=True)
class Fixed:
    """A given hierarchy that buffers are packed into (paper, section 3.5)."""

    hierarchy: Hierarchy

    def evaluate(self, nest: Nest) -> float:
        """pJ of all accesses of one nest."""
        return pack(count(nest), self.hierarchy).total

    @property
    def count_fills(self) -> bool:
        """Whether writing what was fetched costs as reading does."""
        return self.hierarchy.count_fills

    def main_pj(self, tensor: Tensor) -> float:
        """pJ of an access to main memory, the same for all tensors."""
        return self.hierarchy.dram_pj


Objective: TypeAlias = Codesign | Fixed
