"""Which memory each buffer of a nest gets, and what a tensor's accesses then cost.

A placement takes all tensors' accesses and gives the memories of each tensor, innermost
first; a buffer in none of them is in main memory. A memory serves all that passes out
of the one inside it, the innermost what the datapath asks for; main memory serves what
passes out of the outermost. Where buffers of one tensor share a memory, the outermost
of them decides what passes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from memplan.blocking.machine.energy import Curve
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.nest.counts import Buffer, Traffic
from memplan.blocking.nest.layer import Tensor

MAIN = "DRAM"


@dataclass(frozen=True)
class Memory:
    """Some of one tensor's buffers, inside out, in a level; pj: of an access of 16
    bits."""

    tensor: Tensor
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


Placement: TypeAlias = Mapping[Tensor, tuple[Memory, ...]]


def own_memories(
    traffic: Mapping[Tensor, Traffic],
    curves: Mapping[Tensor, Curve],
    budget: int | None,
) -> Placement:
    """Each buffer in a memory of its own size (paper, sections 3.4 and 3.6).

    A buffer too large for the chip, or any outside it, is in main memory. budget: bytes
    on the chip; the buffers used most come first, and where one does not fit, its
    tensor's outer ones stay out too.
    """
    kept: dict[Tensor, tuple[Buffer, ...]] = {}
    for tensor, own in traffic.items():
        most = curves[tensor].dram_above
        larger = (i for i, one in enumerate(own.used) if one.nbytes > most)
        kept[tensor] = own.used[: next(larger, None)]
    if budget is not None:
        kept = _within(kept, budget)
    return {
        tensor: tuple(
            Memory(tensor, f"B{place}", curves[tensor](buffer.nbytes), (buffer,))
            for place, buffer in enumerate(buffers)
        )
        for tensor, buffers in kept.items()
    }


def _within(
    buffers: Mapping[Tensor, tuple[Buffer, ...]], budget: int
) -> dict[Tensor, tuple[Buffer, ...]]:
    """The inner buffers of each tensor that fit, those with most accesses first."""
    kept: dict[Tensor, tuple[Buffer, ...]] = dict.fromkeys(buffers, ())
    closed: set[Tensor] = set()
    left = budget
    for tensor, buffer in _by_use(
        buffers, lambda one: one.inward_words + one.outward_words
    ):
        if tensor in closed:
            continue
        if buffer.nbytes > left:
            closed.add(tensor)
            continue
        left -= buffer.nbytes
        kept[tensor] += (buffer,)
    return kept


def in_levels(traffic: Mapping[Tensor, Traffic], hierarchy: Hierarchy) -> Placement:
    """Each buffer in a level of a given machine (paper, section 3.5).

    The buffers with most accesses come first, each into its tensor's current level. One
    that does not fit closes the level: for its tensor, or for all where they share it.
    A tensor's buffers in one level lie in the same memory, so only the largest takes
    room.
    """
    levels = hierarchy.levels
    depth = dict.fromkeys(traffic, 0)
    taken = [dict.fromkeys(traffic, 0) for _ in levels]
    held: dict[tuple[Tensor, int], list[Buffer]] = {}
    used = {tensor: own.used for tensor, own in traffic.items()}
    for tensor, buffer in _by_use(used, lambda one: one.inward_words):
        while depth[tensor] < len(levels):
            level, room = levels[depth[tensor]], taken[depth[tensor]]
            others = 0 if level.private else sum(room.values()) - room[tensor]
            if max(buffer.nbytes, room[tensor]) + others <= level.capacity(tensor):
                room[tensor] = max(buffer.nbytes, room[tensor])
                held.setdefault((tensor, depth[tensor]), []).append(buffer)
                break
            if level.private:
                depth[tensor] += 1
            else:
                closed = depth[tensor]
                depth = {t: max(d, closed + 1) for t, d in depth.items()}
    return {
        tensor: tuple(
            Memory(
                tensor, level.name, hierarchy.price(i, tensor), tuple(held[tensor, i])
            )
            for i, level in enumerate(levels)
            if (tensor, i) in held
        )
        for tensor in traffic
    }


def _by_use(
    buffers: Mapping[Tensor, tuple[Buffer, ...]], use: Callable[[Buffer], float]
) -> Iterator[tuple[Tensor, Buffer]]:
    """All tensors' buffers, those used most first; of a tensor, inner ones first."""
    every = [(tensor, one) for tensor, own in buffers.items() for one in own]
    yield from sorted(every, key=lambda item: -use(item[1]))


def as_chosen(traffic: Mapping[Tensor, Traffic], chosen: Sequence[Memory]) -> Placement:
    """The memories that a search chose, of one buffer each, innermost first, and no
    others; each with what it serves to the one inside it, or to the datapath."""
    found: dict[Tensor, tuple[Memory, ...]] = {}
    for tensor, own in traffic.items():
        (reads, writes), found[tensor] = own.served, ()
        for one in chosen:
            if one.tensor is tensor:
                buffer = replace(one.outermost, reads=reads, writes=writes)
                found[tensor] += (replace(one, buffers=(buffer,)),)
                reads, writes = buffer.fills, buffer.drains
    return found
