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
from math import isclose
from typing import TypeAlias

from memplan.blocking.machine.energy import Curve
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.nest.counts import Buffer, Traffic
from memplan.blocking.nest.layer import Tensor
from memplan.errors import MemplanError

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


Placement: TypeAlias = Mapping[Tensor, tuple[Memory, ...]]
_SAME = 1e-9


@dataclass(frozen=True)
class BufferMemory:
    """A buffer of `nbytes` bytes, in a memory of `pj` an access, as a search chose.

    loop: index, in the string, of a loop of the run in which it is used again, or of
    the loop that sweeps over it; level: the one it is in, None for the innermost that
    holds it at its price; slides: whether it slides along that loop.
    """

    tensor: Tensor
    loop: int
    nbytes: int
    pj: float
    level: str | None = None
    slides: bool = False


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
    kept = {t: _on_chip(own.used, curves[t]) for t, own in traffic.items()}
    if budget is not None:
        kept = _within(kept, budget)
    return {
        tensor: tuple(
            Memory(f"B{place}", curves[tensor](buffer.nbytes), (buffer,))
            for place, buffer in enumerate(buffers)
        )
        for tensor, buffers in kept.items()
    }


def _on_chip(buffers: tuple[Buffer, ...], curve: Curve) -> tuple[Buffer, ...]:
    """Those before the first that is larger than a memory on the chip can be."""
    for place, buffer in enumerate(buffers):
        if buffer.nbytes > curve.dram_above:
            return buffers[:place]
    return buffers


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
            Memory(level.name, hierarchy.price(i, tensor), tuple(held[tensor, i]))
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


def as_chosen(
    traffic: Mapping[Tensor, Traffic],
    choice: Sequence[BufferMemory],
    level: Callable[[BufferMemory, int], str],
) -> Placement:
    """The buffers of `choice`, innermost first, a memory each, and no others; each with
    what it serves to the one of them inside it, or to the datapath.

    level: the name of the level of one, the how-many-th of its tensor. Raises
    MemplanError where a buffer is none of the nest's; that would be a mistake in a
    search.
    """
    own = {t: [one for one in choice if one.tensor is t] for t in traffic}
    return {
        tensor: tuple(
            Memory(level(one, place), one.pj, (buffer,))
            for place, (one, buffer) in enumerate(_served(traffic[tensor], chosen))
        )
        for tensor, chosen in own.items()
    }


def _served(
    traffic: Traffic, chosen: Sequence[BufferMemory]
) -> Iterator[tuple[BufferMemory, Buffer]]:
    """Their buffers, as if there were no others."""
    reads, writes = traffic.served
    for one in chosen:
        buffer = replace(_buffer(traffic, one), reads=reads, writes=writes)
        reads, writes = buffer.fills, buffer.drains
        yield one, buffer


def _buffer(traffic: Traffic, one: BufferMemory) -> Buffer:
    for buffer in traffic.choices:
        if buffer.begin <= one.loop < buffer.end and buffer.slides == one.slides:
            if buffer.nbytes == one.nbytes:
                return buffer
            break
    raise _wrong(one, "is no buffer of the nest")


def check_own(
    choice: Sequence[BufferMemory],
    curves: Mapping[Tensor, Curve],
    budget: int | None,
    sliding: bool,
) -> None:
    """Raises MemplanError unless each is priced by its size, all are in budget, and
    none slides where memories do not."""
    for one in choice:
        if one.slides and not sliding:
            raise _wrong(one, "slides")
        if not isclose(curves[one.tensor](one.nbytes), one.pj, rel_tol=_SAME):
            raise _wrong(one, "is not priced by its size")
    total = sum(one.nbytes for one in choice)
    if budget is not None and total > budget:
        raise MemplanError(f"buffers of {total} bytes exceed {budget}")


def check_levels(choice: Sequence[BufferMemory], hierarchy: Hierarchy) -> None:
    """Raises MemplanError unless each is in a level that holds it with the others."""
    taken: dict[str, dict[Tensor, int]] = {one.name: {} for one in hierarchy.levels}
    for one in choice:
        room = taken[level_of(one, hierarchy)]
        room[one.tensor] = max(one.nbytes, room.get(one.tensor, 0))
    for level in hierarchy.levels:
        within = level.capacity(Tensor.INPUT)
        if not level.private and sum(taken[level.name].values()) > within:
            raise MemplanError(f"level {level.name} holds more than it has room for")


def level_of(one: BufferMemory, hierarchy: Hierarchy) -> str:
    """The innermost level that holds the buffer at its price.

    Raises MemplanError if none does.
    """
    for depth, level in enumerate(hierarchy.levels):
        price = hierarchy.price(depth, one.tensor)
        fits = level.capacity(one.tensor) >= one.nbytes
        fits &= one.level in (None, level.name)
        fits &= level.sliding or not one.slides
        if fits and isclose(price, one.pj, rel_tol=_SAME):
            return level.name
    raise _wrong(one, "is in no level")


def _wrong(one: BufferMemory, what: str) -> MemplanError:
    return MemplanError(
        f"internal error in memplan; please report it: a memory of {one.nbytes} bytes "
        f"for the {one.tensor.value} {what}"
    )
