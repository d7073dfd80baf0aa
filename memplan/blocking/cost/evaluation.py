"""What a loop nest comes to: its buffers, where each lies, and what all that costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from memplan.blocking.cost.best_memories import best_memories
from memplan.blocking.cost.latency import Latency
from memplan.blocking.cost.objective import Choice, Codesign, Fixed, Objective
from memplan.blocking.cost.placement import MAIN, Memory, Share
from memplan.blocking.machine.energy import MAC_PJ
from memplan.blocking.nest.counts import Buffer, Traffic
from memplan.blocking.nest.layer import Layer, Tensor
from memplan.blocking.nest.nest import Loop, Nest
from memplan.blocking.nest.precision import Precision

_DEFAULT = Precision()
_LETTER = {Tensor.INPUT: "I", Tensor.KERNEL: "K", Tensor.OUTPUT: "O"}


@dataclass(frozen=True)
class Placed:
    """A buffer, named from the inside (IB0, IB1, ...), and the level it lies in.

    Where every buffer has a memory of its own, levels are named by how far out it is:
    B0, B1, ...; MAIN is main memory.
    """

    name: str
    tensor: Tensor
    level: str
    buffer: Buffer

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.buffer.nbytes


@dataclass(frozen=True)
class Evaluation:
    """shares: by level, innermost first and main memory last, and by tensor.

    compulsory: pJ of each element's one access to main memory, however the loops are
    blocked; sram_bytes: of all memories on the chip; mac_pj: of one multiplication;
    precision: bits of the elements; latency: cycles, None where they were not counted.
    """

    layer: Layer
    nest: Nest
    buffers: tuple[Placed, ...]
    shares: tuple[Share, ...]
    compulsory: float
    sram_bytes: int
    mac_pj: float = MAC_PJ
    precision: Precision = _DEFAULT
    latency: Latency | None = None

    @property
    def total(self) -> float:
        """pJ of all accesses."""
        return sum(share.pj for share in self.shares)

    @property
    def without_compulsory(self) -> float:
        """pJ of all accesses but those that no blocking saves."""
        return self.total - self.compulsory

    @property
    def levels(self) -> tuple[str, ...]:
        """Their names, innermost first, main memory last."""
        return tuple(dict.fromkeys(share.level for share in self.shares))

    @property
    def by_tensor(self) -> dict[Tensor, float]:
        """pJ of each tensor's accesses."""
        return {tensor: self.pj(tensor=tensor) for tensor in self.layer.tensors}

    def pj(self, level: str | None = None, tensor: Tensor | None = None) -> float:
        """Energy of a level, of a tensor, of one in the other, or of all."""
        return sum(
            share.pj
            for share in self.shares
            if level in (None, share.level) and tensor in (None, share.tensor)
        )

    def swept_by(self, placed: Placed) -> Loop | None:
        """The loop that sweeps over it, of a stripe of the input; None of others."""
        return None if placed.buffer.slides else self._along(placed)

    def slides_along(self, placed: Placed) -> Loop | None:
        """The loop along which it slides; None of others."""
        return self._along(placed) if placed.buffer.slides else None

    def _along(self, placed: Placed) -> Loop | None:
        if placed.tensor is not Tensor.INPUT or not self.nest.loops:
            return None
        loop = self.nest.loops[placed.buffer.begin]
        return loop if loop.dim in ("X", "Y") else None

    @property
    def busy(self) -> float | None:
        """The part of all cycles' multiplications that is the layer's, in (0, 1]."""
        if self.latency is None:
            return None
        lanes = math.prod(self.nest.unroll.values())
        return self.layer.macs / (self.latency.cycles * lanes)

    @property
    def edp(self) -> float | None:
        """pJ, with those of the multiplications, times cycles."""
        if self.latency is None:
            return None
        return (self.total + self.layer.macs * self.mac_pj) * self.latency.cycles

    def per_mac(self, pj: float) -> float:
        """`pj` by multiplication, of those that the layer needs."""
        return pj / self.layer.macs


def evaluate(
    layer: Layer,
    nest: Nest,
    objective: Objective | None = None,
    choice: Choice | None = None,
) -> Evaluation:
    """The buffers of `nest` in a given hierarchy, or each in a memory of its own,
    which is what a missing objective means, too. Those used most come first.

    choice: the buffers that have a memory, as a search chose them, instead of that
    rule: where buffers compete for bytes, it may do better.
    """
    objective = objective or Codesign()
    traffic = objective.traffic(nest)
    placement = objective.place(traffic, choice)
    found = objective.shares(traffic, placement)
    shares = _by_level(found, [*objective.levels(placement), MAIN], layer.tensors)
    return Evaluation(
        layer,
        nest,
        tuple(one for t, own in traffic.items() for one in _placed(own, placement[t])),
        # A level that a machine was given is named though it may serve nothing.
        tuple(s for s in shares if s.accesses or isinstance(objective, Fixed)),
        objective.compulsory_pj(traffic),
        objective.sram_bytes(placement),
        objective.mac_pj,
        objective.precision,
        objective.latency(nest, traffic, placement),
    )


def best_evaluation(layer: Layer, nest: Nest, objective: Objective) -> Evaluation:
    """The same with the buffers kept, and in the memories, that take the least."""
    memories = best_memories(objective.traffic(nest), objective)
    return evaluate(layer, nest, objective, choice=memories)


def _by_level(
    shares: Iterable[Share], levels: Sequence[str], tensors: Sequence[Tensor]
) -> Iterable[Share]:
    """One share of each level and tensor, in this order."""
    found = {(lvl, t): Share(lvl, t, 0, 0.0) for lvl in levels for t in tensors}
    for share in shares:
        place = share.level, share.tensor
        accesses, pj = found[place].accesses, found[place].pj
        found[place] = Share(*place, accesses + share.accesses, pj + share.pj)
    return found.values()


def _placed(own: Traffic, memories: Sequence[Memory]) -> Iterator[Placed]:
    """The buffers that have a memory, and those outside them that could use one."""
    found = [(memory.level, one) for memory in memories for one in memory.buffers]
    for buffer in own.used:
        last = found[-1][1] if found else None
        if last is None:
            found.append((MAIN, buffer))
        elif buffer.begin >= last.end and buffer.outward < last.outward:
            served = replace(buffer, reads=last.fills, writes=last.drains)
            found.append((MAIN, served))
    for place, (level, buffer) in enumerate(found):
        name = f"{_LETTER[own.tensor]}B{place}"
        yield Placed(name, own.tensor, level, buffer)
