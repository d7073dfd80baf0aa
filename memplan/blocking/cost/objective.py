"""What a search minimises: the energy of a layer's accesses, on one of two machines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from memplan.blocking.cost.latency import Latency, latency, untimed
from memplan.blocking.cost.placement import (
    BufferMemory,
    Placement,
    Share,
    as_chosen,
    check_levels,
    check_own,
    in_levels,
    level_of,
    own_memories,
    priced,
)
from memplan.blocking.machine.energy import Curve, paper_curves
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.machine.technology import FORTY_FIVE, Technology
from memplan.blocking.nest.counts import Traffic, count
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.nest import Nest
from memplan.blocking.nest.precision import Precision
from memplan.errors import UsageError

Choice: TypeAlias = Sequence[BufferMemory]
_DEFAULT = Precision()


class _Machine(ABC):
    """What both have: where buffers go, and what accesses then take."""

    @property
    @abstractmethod
    def count_fills(self) -> bool:
        """Whether writing what was fetched costs as reading does."""

    @property
    @abstractmethod
    def precision(self) -> Precision:
        """Bits of the elements."""

    @property
    @abstractmethod
    def sliding(self) -> bool:
        """Whether any memory of the input can have sliding buffers."""

    @abstractmethod
    def main_pj(self, tensor: Tensor) -> float:
        """pJ of an access to 16 bits of main memory."""

    def compulsory_pj(self, traffic: Mapping[Tensor, Traffic]) -> float:
        """pJ of each element's one access to main memory, which every nest takes."""
        return sum(
            own.compulsory_words * self.main_pj(tensor)
            for tensor, own in traffic.items()
        )

    def traffic(self, nest: Nest) -> dict[Tensor, Traffic]:
        """Accesses of the nest's tensors, of elements of so many bits."""
        return count(nest, self.precision, self.sliding)

    @abstractmethod
    def place(
        self, traffic: Mapping[Tensor, Traffic], choice: Choice | None = None
    ) -> Placement:
        """The memories of each tensor: by the machine's rule, or the chosen ones.

        Raises MemplanError where those chosen are not the nest's, or do not fit.
        """

    def shares(
        self, traffic: Mapping[Tensor, Traffic], placement: Placement
    ) -> Iterator[Share]:
        """What each tensor does in each of its memories, inside out, and in main
        memory: tensor after tensor."""
        for tensor, own in traffic.items():
            main_pj = self.main_pj(tensor)
            yield from priced(own, placement[tensor], main_pj, self.count_fills)

    @abstractmethod
    def latency(
        self, nest: Nest, traffic: Mapping[Tensor, Traffic], placement: Placement
    ) -> Latency:
        """Cycles, which are the datapath's alone where no bandwidth is known."""

    def evaluate(self, nest: Nest, choice: Choice | None = None) -> float:
        """pJ of all accesses of one nest; raises as `place` does."""
        traffic = self.traffic(nest)
        shares = self.shares(traffic, self.place(traffic, choice))
        return sum(share.pj for share in shares)


@dataclass(frozen=True)
class Codesign(_Machine):
    """Every buffer in a memory of its own size (paper, section 3.6).

    curves: energy by memory size for each tensor; budget: bytes on the chip, None for
    as many as pay; count_fills: whether writing what was fetched costs as reading does;
    precision: bits of the elements; technology: of multiplications, and areas;
    sliding: whether the input's memories can have sliding buffers.
    Raises UsageError where the budget is negative.
    """

    curves: Mapping[Tensor, Curve] = field(default_factory=paper_curves)
    budget: int | None = None
    count_fills: bool = False
    precision: Precision = _DEFAULT
    technology: Technology = FORTY_FIVE
    sliding: bool = False

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 0:
            raise UsageError(f"a budget of {self.budget} bytes makes no sense")

    @property
    def mac_pj(self) -> float:
        """pJ of one multiplication with its addition."""
        return self.technology.mac_pj(self.precision)

    def main_pj(self, tensor: Tensor) -> float:
        return self.curves[tensor].dram_pj

    def place(
        self, traffic: Mapping[Tensor, Traffic], choice: Choice | None = None
    ) -> Placement:
        if choice is None:
            return own_memories(traffic, self.curves, self.budget)
        check_own(choice, self.curves, self.budget, self.sliding)
        return as_chosen(traffic, choice, lambda one, place: f"B{place}")

    def levels(self, placement: Placement) -> list[str]:
        """Names of the levels on the chip: how far out a tensor's memory is."""
        return [f"B{place}" for place in range(max(map(len, placement.values())))]

    def latency(
        self, nest: Nest, traffic: Mapping[Tensor, Traffic], placement: Placement
    ) -> Latency:
        return untimed(nest)

    def sram_bytes(self, placement: Placement) -> int:
        """Bytes of all memories on the chip."""
        return sum(one.nbytes for memories in placement.values() for one in memories)


@dataclass(frozen=True)
class Fixed(_Machine):
    """A given hierarchy that buffers are placed in (paper, section 3.5)."""

    hierarchy: Hierarchy

    @property
    def count_fills(self) -> bool:
        return self.hierarchy.count_fills

    @property
    def precision(self) -> Precision:
        return self.hierarchy.precision

    @property
    def sliding(self) -> bool:
        return self.hierarchy.sliding

    @property
    def technology(self) -> Technology:
        """Where energies are from that no level gives."""
        return self.hierarchy.technology

    @property
    def mac_pj(self) -> float:
        """pJ of one multiplication with its addition."""
        return self.hierarchy.mac_pj

    def main_pj(self, tensor: Tensor) -> float:
        return self.hierarchy.main_pj(tensor)

    def place(
        self, traffic: Mapping[Tensor, Traffic], choice: Choice | None = None
    ) -> Placement:
        if choice is None:
            return in_levels(traffic, self.hierarchy)
        check_levels(choice, self.hierarchy)
        return as_chosen(
            traffic, choice, lambda one, place: level_of(one, self.hierarchy)
        )

    def levels(self, placement: Placement) -> list[str]:
        """Names of the levels on the chip, used or not."""
        return [level.name for level in self.hierarchy.levels]

    def latency(
        self, nest: Nest, traffic: Mapping[Tensor, Traffic], placement: Placement
    ) -> Latency:
        return latency(nest, traffic, placement, self.hierarchy)

    def sram_bytes(self, placement: Placement) -> int:
        """Bytes of all memories on the chip, used or not."""
        return self.hierarchy.nbytes


Objective: TypeAlias = Codesign | Fixed
