"""What a tensor's accesses take, once its buffers have memories: the rule for one nest.

A memory serves all that passes out of the one inside it, the innermost what the
datapath asks for; main memory serves what passes out of the outermost. Where buffers
of one tensor lie in the same memory, the outermost of them decides what passes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memplan.blocking.nest.counts import Buffer, Traffic
from memplan.blocking.nest.layer import Tensor

MAIN = "DRAM"


@dataclass(frozen=True)
class Memory:
    """Some of one tensor's buffers, inside out, in a level; pj: of an access of 16
    bits."""

    level: str
    pj: float
    buffers: tuple[Buffer, ...]

    @property
    def outermost(self) -> Buffer:
        """The buffer that fetches for all of them."""
        return self.buffers[-1]

    @property
    def nbytes(self) -> int:
        """What they take up: they lie in each other."""
        return self.outermost.nbytes


@dataclass(frozen=True)
class Share:
    """What one tensor does in one level: elements served, and their energy in pJ."""

    level: str
    tensor: Tensor
    accesses: int
    pj: float


def priced(
    own: Traffic, memories: Sequence[Memory], main_pj: float, count_fills: bool
) -> Iterator[Share]:
    """One tensor's share of each of its memories, innermost first, and of main memory.

    main_pj: of an access to main memory. count_fills: whether writing what was fetched
    into a memory costs as much as reading it.
    """
    flow, words = own.demand, own.demand_words
    for memory in memories:
        accesses = paid(words, memory.outermost, count_fills)
        yield Share(memory.level, own.tensor, flow, accesses * memory.pj)
        flow, words = memory.outermost.outward, memory.outermost.outward_words
    yield Share(MAIN, own.tensor, flow, words * main_pj)


def paid(served: float, buffer: Buffer, count_fills: bool) -> float:
    """Accesses of 16 bits to be paid for, of a memory that serves so many, and whose
    outermost buffer this is."""
    return served + buffer.outward_words if count_fills else served
