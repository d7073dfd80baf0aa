"""A nest's buffers in the memories of a given machine (paper, section 3.5).

The buffers with most accesses come first, each into its tensor's current level. One
that does not fit closes the level: for its tensor, or for all where they share it.
A tensor's buffers in one level lie in the same memory, so only the largest takes room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memplan.blocking.counts import ELEMENT_BYTES, Buffer, Traffic
from memplan.blocking.hierarchy import Hierarchy
from memplan.blocking.layer import Tensor

MAIN = "DRAM"
_LETTER = {Tensor.INPUT: "I", Tensor.KERNEL: "K", Tensor.OUTPUT: "O"}


@dataclass(frozen=True)
class Packed:
    """accesses: elements by level, innermost first and main memory last, and by
    tensor; assigned: the level of each buffer, named IB0, KB0, OB0 from the inside;
    pj: energy of all accesses, and compulsory, of main memory's that have to be."""

    accesses: Mapping[str, Mapping[Tensor, int]]
    assigned: Mapping[str, str]
    by_tensor: Mapping[Tensor, float]
    compulsory: float

    @property
    def total(self) -> float:
        """pJ of all accesses."""
        return sum(self.by_tensor.values())


def buffer_name(tensor: Tensor, place: int) -> str:
    """The paper's name for a tensor's buffer: IB0 is the innermost of the input."""
    return f"{_LETTER[tensor]}B{place}"


def pack(traffic: Mapping[Tensor, Traffic], hierarchy: Hierarchy) -> Packed:
    """Each buffer's level, and what every level then serves."""
    levels = _assign(traffic, hierarchy)
    names = [level.name for level in hierarchy.levels] + [MAIN]
    accesses: dict[str, dict[Tensor, int]] = {
        name: dict.fromkeys(traffic, 0) for name in names
    }
    by_tensor = {}
    for tensor, own in traffic.items():
        flow, total = own.demand, 0.0
        for depth, level in enumerate(hierarchy.levels):
            inside = [
                buffer
                for place, buffer in enumerate(own.used)
                if levels[tensor, place] == depth
            ]
            if not inside:
                continue
            served = flow
            flow = inside[-1].outward
            accesses[level.name][tensor] = served
            filled = flow if hierarchy.count_fills else 0
            total += (served + filled) * hierarchy.price(depth, tensor)
        accesses[MAIN][tensor] = flow
        by_tensor[tensor] = total + flow * hierarchy.dram_pj
    assigned = {
        buffer_name(tensor, place): names[levels[tensor, place]]
        for tensor, own in traffic.items()
        for place in range(len(own.used))
    }
    compulsory = sum(own.compulsory for own in traffic.values()) * hierarchy.dram_pj
    return Packed(accesses, assigned, by_tensor, compulsory)


def _assign(
    traffic: Mapping[Tensor, Traffic], hierarchy: Hierarchy
) -> dict[tuple[Tensor, int], int]:
    """Level of each buffer; as many as there are levels stands for main memory."""
    order = sorted(
        (
            (tensor, place, buffer)
            for tensor, own in traffic.items()
            for place, buffer in enumerate(own.used)
        ),
        key=lambda item: -_served(item[2]),
    )
    depth = dict.fromkeys(traffic, 0)
    taken = [dict.fromkeys(traffic, 0) for _ in hierarchy.levels]
    found = {}
    for tensor, place, buffer in order:
        nbytes = ELEMENT_BYTES * buffer.elements
        while depth[tensor] < len(hierarchy.levels):
            level, used = hierarchy.levels[depth[tensor]], taken[depth[tensor]]
            rest = 0 if level.private else sum(used.values()) - used[tensor]
            if max(nbytes, used[tensor]) + rest <= level.capacity(tensor):
                used[tensor] = max(nbytes, used[tensor])
                break
            if level.private:
                depth[tensor] += 1
            else:
                closed = depth[tensor]
                depth = {t: max(d, closed + 1) for t, d in depth.items()}
        found[tensor, place] = depth[tensor]
    return found


def _served(buffer: Buffer) -> int:
    return buffer.reads + buffer.writes
