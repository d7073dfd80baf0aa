"""Energy where every buffer is a memory of its own size (paper, sections 3.4, 3.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from memplan.blocking.machine.energy import Curve
from memplan.blocking.nest.counts import ELEMENT_BYTES, Buffer, Traffic
from memplan.blocking.nest.layer import Tensor

Place: TypeAlias = tuple[Tensor, int]  # a buffer: its tensor, and its place inside out


@dataclass(frozen=True)
class MemoryUse:
    """One memory: its buffer, size in bytes, and the energy of all its accesses."""

    tensor: Tensor
    buffer: Buffer
    nbytes: int
    accesses: int
    pj: float


@dataclass(frozen=True)
class Energy:
    """Of one layer: pJ by tensor; memories on the chip, innermost first; main: pJ of
    main memory by tensor, of which compulsory has to be, however loops are blocked."""

    by_tensor: Mapping[Tensor, float]
    memories: tuple[MemoryUse, ...]
    main: Mapping[Tensor, float]
    compulsory: Mapping[Tensor, float]

    @property
    def total(self) -> float:
        """pJ of all accesses."""
        return sum(self.by_tensor.values())

    @property
    def without_compulsory(self) -> float:
        """pJ of all accesses but each element's first, or last, in main memory."""
        return self.total - sum(self.compulsory.values())

    @property
    def sram_bytes(self) -> int:
        """Bytes of all memories on the chip."""
        return sum(memory.nbytes for memory in self.memories)


def codesign_energy(
    traffic: Mapping[Tensor, Traffic],
    curves: Mapping[Tensor, Curve],
    *,
    budget: int | None = None,
    count_fills: bool = False,
) -> Energy:
    """Energy of each tensor's buffers, each in a memory of its own.

    An access costs what the memory that serves it does; writing what was fetched into
    a buffer is free, unless `count_fills`. A buffer too large for the chip is main
    memory, and serves what is inside it. budget: bytes on the chip; the buffers used
    most come first, and where one does not fit, its tensor's outer ones stay out too.
    """
    chosen = {
        tensor: _on_chip(own.used, curves[tensor]) for tensor, own in traffic.items()
    }
    if budget is not None:
        chosen = _within(chosen, budget)
    by_tensor, main, compulsory = {}, {}, {}
    memories: list[MemoryUse] = []
    for tensor, own in traffic.items():
        curve, flow, total = curves[tensor], own.demand, 0.0
        for buffer in chosen[tensor]:
            nbytes = ELEMENT_BYTES * buffer.elements
            accesses = flow + (buffer.outward if count_fills else 0)
            pj = accesses * curve(nbytes)
            memories.append(MemoryUse(tensor, buffer, nbytes, accesses, pj))
            total, flow = total + pj, buffer.outward
        main[tensor] = flow * curve.dram_pj
        compulsory[tensor] = own.compulsory * curve.dram_pj
        by_tensor[tensor] = total + main[tensor]
    return Energy(by_tensor, tuple(memories), main, compulsory)


def _on_chip(buffers: tuple[Buffer, ...], curve: Curve) -> tuple[Buffer, ...]:
    """Those before the first that is larger than a memory on the chip can be."""
    for place, buffer in enumerate(buffers):
        if ELEMENT_BYTES * buffer.elements > curve.dram_above:
            return buffers[:place]
    return buffers


def _within(
    chosen: Mapping[Tensor, tuple[Buffer, ...]], budget: int
) -> dict[Tensor, tuple[Buffer, ...]]:
    """The inner buffers of each tensor that fit, those with most accesses first."""
    order = sorted(
        (
            (tensor, place, buffer)
            for tensor, buffers in chosen.items()
            for place, buffer in enumerate(buffers)
        ),
        key=lambda item: -_accesses(item[2]),
    )
    kept: dict[Tensor, list[Buffer]] = {tensor: [] for tensor in chosen}
    closed: set[Tensor] = set()
    left = budget
    for tensor, _, buffer in order:
        if tensor in closed:
            continue
        nbytes = ELEMENT_BYTES * buffer.elements
        if nbytes > left:
            closed.add(tensor)
            continue
        left -= nbytes
        kept[tensor].append(buffer)
    return {tensor: tuple(buffers) for tensor, buffers in kept.items()}


def _accesses(buffer: Buffer) -> int:
    return buffer.reads + buffer.writes + buffer.outward
