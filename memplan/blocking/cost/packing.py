"""A nest's buffers in the memories of a given machine (paper, section 3.5).

The buffers with most accesses come first, each into its tensor's current level. One
that does not fit closes the level: for its tensor, or for all where they share it.
A tensor's buffers in one level lie in the same memory, so only the largest takes room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.nest.counts import ELEMENT_BYTES, Buffer, Traffic
from memplan.blocking.nest.layer import Tensor

MAIN = "DRAM"
_LETTER = {Tensor.INPUT: "I", Tensor.KERNEL: "K", Tensor.OUTPUT: "O"}


@dataclass(frozen=True)
class Packed:
    """accesses, pj: elements served and their energy by level, innermost first and main
    memory last, and by tensor; assigned: the level of each buffer, named IB0, KB0, OB0
    from the inside; compulsory: pJ of main memory's accesses that have to be."""

    accesses: Mapping[str, Mapping[Tensor, int]]
    pj: Mapping[str, Mapping[Tensor, float]]
    assigned: Mapping[str, str]
    compulsory: float

    @property
    def by_tensor(self) -> dict[Tensor, float]:
        """pJ of all accesses, by tensor."""
        return {
            tensor: sum(own[tensor] for own in self.pj.values())
            for tensor in self.pj[MAIN]
        }

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
    pj: dict[str, dict[Tensor, float]] = {
        name: dict.fromkeys(traffic, 0.0) for name in names
    }
    for tensor, own in traffic.items():
        flow = own.demand
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
            pj[level.name][tensor] = (served + filled) * hierarchy.price(depth, tensor)
        accesses[MAIN][tensor] = flow
        pj[MAIN][tensor] = flow * hierarchy.dram_pj
    assigned = {
        buffer_name(tensor, place): names[levels[tensor, place]]
        for tensor, own in traffic.items()
        for place in range(len(own.used))
    }
    compulsory = sum(own.compulsory for own in traffic.values()) * hierarchy.dram_pj
    return Packed(accesses, pj, assigned, compulsory)


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
