"""Memory hierarchies: levels, what they hold, and what an access to each costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memplan.blocking.machine.energy import Curve
from memplan.blocking.nest.counts import ELEMENT_BYTES
from memplan.blocking.nest.layer import Tensor
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
    """

    name: str
    shared: int | None
    private_bytes: Mapping[Tensor, int] | None
    pj: Mapping[Tensor, float]
    cache: Cache | None = None

    @property
    def private(self) -> bool:
        """Whether each tensor has a memory of its own."""
        return self.private_bytes is not None

    def capacity(self, tensor: Tensor) -> int:
        """Bytes that `tensor` may take up, perhaps shared with others."""
        if self.private_bytes is not None:
            return self.private_bytes[tensor]
        assert self.shared is not None
        return self.shared


@dataclass(frozen=True)
class Hierarchy:
    """Levels, innermost first, and what accesses cost.

    curves: energy by memory size for each tensor's word; dram_pj: of main memory, and
    mac_pj: of a multiplication with its addition, pJ. count_fills: whether writing
    what was fetched into a level costs as much as reading it.
    """

    name: str
    title: str
    source: str
    levels: tuple[Level, ...]
    curves: Mapping[Tensor, Curve]
    dram_pj: float
    mac_pj: float
    count_fills: bool

    def price(self, depth: int, tensor: Tensor) -> float:
        """pJ per 16 bits of an access to level `depth`, from 0."""
        level = self.levels[depth]
        given = level.pj.get(tensor)
        if given is not None:
            return given
        return self.curves[tensor].on_chip(level.capacity(tensor))

    @property
    def nbytes(self) -> int:
        """Bytes of all its memories that hold an element, or more."""
        sizes: list[int] = []
        for level in self.levels:
            if level.private_bytes is not None:
                sizes += level.private_bytes.values()
            else:
                sizes.append(level.capacity(Tensor.INPUT))
        return sum(nbytes for nbytes in sizes if nbytes >= ELEMENT_BYTES)

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
