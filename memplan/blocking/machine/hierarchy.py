"""Memory hierarchies: levels, what they hold, and what an access to each costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from memplan.blocking.machine.energy import Curve
from memplan.blocking.machine.technology import FORTY_FIVE, Technology
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.precision import Precision
from memplan.errors import UsageError


@dataclass(frozen=True)
class Cache:
    """How a level is organised: bytes in all, ways, and bytes of a line."""

    nbytes: int
    ways: int
    line: int


@dataclass(frozen=True)
class Level:
    """One level: a memory shared by all tensors, or one for each.

    shared: bytes, or None; private: bytes by tensor, or None. pj: energy per 16 bits
    by tensor; where it is missing, Table 3 gives it for the memory's size.

    bandwidth: bytes a cycle of each port, by tensor; of a shared level the same for
    all; empty where it is not known. ports: 1, for reads and writes alike, or 2, one
    for each. double_buffered: half of the bytes take the next tile in while the other
    half is worked on, so that a tile is at most half of them. sliding: the input's
    bytes can shift, or their addresses go round, so that a buffer takes only new
    columns in where its loop goes on (`nest.counts`).
    """

    name: str
    shared: int | None
    private_bytes: Mapping[Tensor, int] | None
    pj: Mapping[Tensor, float]
    cache: Cache | None = None
    bandwidth: Mapping[Tensor, float] = field(default_factory=dict)
    ports: int = 1
    double_buffered: bool = False
    sliding: bool = False

    @property
    def private(self) -> bool:
        """Whether each tensor has a memory of its own."""
        return self.private_bytes is not None

    def capacity(self, tensor: Tensor) -> int:
        """Bytes that tiles of `tensor` may take up, perhaps shared with others."""
        return self.nbytes(tensor) // (2 if self.double_buffered else 1)

    def nbytes(self, tensor: Tensor) -> int:
        """Bytes of the memory that `tensor` is in; 0 where there is none."""
        if self.private_bytes is not None:
            return self.private_bytes[tensor]
        assert self.shared is not None
        return self.shared


@dataclass(frozen=True)
class Hierarchy:
    """Levels, innermost first, and what accesses cost.

    curves: energy by memory size for each tensor's word; dram_pj: of main memory, and
    mac_pj: of a multiplication with its addition, pJ. count_fills: whether writing
    what was fetched into a level costs as much as reading it. precision: bits of the
    elements; technology: where energies are from that no level gives.
    dram_bandwidth: bytes a cycle of each of main memory's `dram_ports`, None where it
    is not known; dram_by_tensor: pJ of main memory where it differs by tensor.
    """

    name: str
    title: str
    source: str
    levels: tuple[Level, ...]
    curves: Mapping[Tensor, Curve]
    dram_pj: float
    mac_pj: float
    count_fills: bool
    precision: Precision = field(default_factory=Precision)
    technology: Technology = FORTY_FIVE
    dram_bandwidth: float | None = None
    dram_ports: int = 1
    dram_by_tensor: Mapping[Tensor, float] = field(default_factory=dict)

    def at(self, precision: Precision) -> Hierarchy:
        """The same memories, with elements of other bits."""
        mac_pj = self.technology.mac_pj(precision)
        return replace(self, precision=precision, mac_pj=mac_pj)

    def slid(self) -> Hierarchy:
        """The same levels, all of which can have sliding buffers."""
        return replace(
            self, levels=tuple(replace(x, sliding=True) for x in self.levels)
        )

    @property
    def sliding(self) -> bool:
        """Whether any level can have sliding buffers."""
        return any(level.sliding for level in self.levels)

    @property
    def timed(self) -> bool:
        """Whether it says a bandwidth anywhere."""
        known = any(level.bandwidth for level in self.levels)
        return known or self.dram_bandwidth is not None

    def main_pj(self, tensor: Tensor) -> float:
        """pJ per 16 bits of main memory."""
        return self.dram_by_tensor.get(tensor, self.dram_pj)

    def price(self, depth: int, tensor: Tensor) -> float:
        """pJ per 16 bits of an access to level `depth`, from 0."""
        level = self.levels[depth]
        given = level.pj.get(tensor)
        if given is not None:
            return given
        return self.curves[tensor].on_chip(level.nbytes(tensor))

    @property
    def nbytes(self) -> int:
        """Bytes of all its memories."""
        sizes: list[int] = []
        for level in self.levels:
            if level.private_bytes is not None:
                sizes += level.private_bytes.values()
            else:
                sizes.append(level.nbytes(Tensor.INPUT))
        return sum(sizes)

    @property
    def private(self) -> bool:
        """Whether no level is shared between tensors."""
        return all(level.private for level in self.levels)

    @property
    def caches(self) -> tuple[Cache, ...]:
        """The levels' caches. Raises UsageError if one has no ways and line."""
        found = []
        for level in self.levels:
            if level.cache is None:
                raise UsageError(
                    f"level {level.name} of {self.name} is no cache: give it shared "
                    "bytes, ways and line"
                )
            found.append(level.cache)
        return tuple(found)
