"""What a loop nest comes to: its buffers, where each lies, and what all that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memplan.blocking.cost.codesign import codesign_energy
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.cost.packing import MAIN, buffer_name, pack
from memplan.blocking.machine.energy import MAC_PJ
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.nest.counts import ELEMENT_BYTES, Buffer, Traffic, count, runs
from memplan.blocking.nest.layer import Layer, Tensor
from memplan.blocking.nest.nest import Nest
from memplan.blocking.nest.paper_counts import count_literally


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
        return ELEMENT_BYTES * self.buffer.elements


@dataclass(frozen=True)
class Share:
    """What one tensor does in one level: elements served, and their energy in pJ."""

    level: str
    tensor: Tensor
    accesses: int
    pj: float


@dataclass(frozen=True)
class Evaluation:
    """layer: as it was given, without padding; nest: over it as the datapath pads it.

    shares: by level, innermost first and main memory last, and by tensor; compulsory:
    pJ of each element's one access to main memory, however the loops are blocked;
    sram_bytes: of all memories on the chip; mac_pj: of one multiplication.
    """

    layer: Layer
    nest: Nest
    buffers: tuple[Placed, ...]
    shares: tuple[Share, ...]
    compulsory: float
    sram_bytes: int
    mac_pj: float = MAC_PJ

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

    def pj(self, level: str | None = None, tensor: Tensor | None = None) -> float:
        """Energy of a level, of a tensor, of one in the other, or of all."""
        return sum(
            share.pj
            for share in self.shares
            if level in (None, share.level) and tensor in (None, share.tensor)
        )

    def per_mac(self, pj: float) -> float:
        """`pj` by multiplication, of those that the layer needs: no padding."""
        return pj / self.layer.macs


def evaluate(
    layer: Layer,
    nest: Nest,
    objective: Objective | None = None,
    *,
    literally: bool = False,
) -> Evaluation:
    """The buffers of `nest` in a given hierarchy, or each in a memory of its own,
    which is what a missing objective means, too. Those used most come first.

    literally: count as the paper's Table 2 and equation 1 do, instead of exactly. Then
    memories of the buffers' own have no budget.
    """
    objective = objective or Codesign()
    if isinstance(objective, Fixed):
        traffic = _as_counted(nest) if literally else count(nest)
        return _in_hierarchy(layer, nest, traffic, objective.hierarchy)
    own_memories = _literally if literally else _in_own_memories
    return own_memories(layer, nest, objective)


def _as_counted(nest: Nest) -> dict[Tensor, Traffic]:
    """The paper's counts in the shape of exact ones: all accesses are reads."""
    found = {}
    for tensor, own in count_literally(nest).items():
        served = [round(buffer.accesses) for buffer in own.buffers] + [own.alpha]
        # Where the paper has fewer buffers than there are runs, the first is missing.
        spans = list(runs(nest, tensor))
        spans = spans[len(spans) - len(own.buffers) :]
        buffers = tuple(
            Buffer(
                *spans[place], buffer.elements, served[place], 0, served[place + 1], 0
            )
            for place, buffer in enumerate(own.buffers)
        )
        found[tensor] = Traffic(tensor, own.alpha, served[0], buffers, own.alpha)
    return found


def _in_hierarchy(
    layer: Layer, nest: Nest, traffic: Mapping[Tensor, Traffic], hierarchy: Hierarchy
) -> Evaluation:
    packed = pack(traffic, hierarchy)
    shares = tuple(
        Share(level, tensor, accesses, packed.pj[level][tensor])
        for level, served in packed.accesses.items()
        for tensor, accesses in served.items()
    )
    return Evaluation(
        layer,
        nest,
        _placed(traffic, packed.assigned),
        shares,
        packed.compulsory,
        sram_bytes(hierarchy),
        hierarchy.mac_pj,
    )


def sram_bytes(hierarchy: Hierarchy) -> int:
    """Bytes of all its memories that hold an element, or more."""
    sizes: list[int] = []
    for level in hierarchy.levels:
        if level.private_bytes is not None:
            sizes += level.private_bytes.values()
        else:
            sizes.append(level.capacity(Tensor.INPUT))
    return sum(nbytes for nbytes in sizes if nbytes >= ELEMENT_BYTES)


def _in_own_memories(layer: Layer, nest: Nest, machine: Codesign) -> Evaluation:
    traffic = count(nest)
    energy = codesign_energy(
        traffic,
        machine.curves,
        budget=machine.budget,
        count_fills=machine.count_fills,
    )
    flow = {tensor: own.demand for tensor, own in traffic.items()}
    place = dict.fromkeys(traffic, 0)
    assigned, shares = {}, []
    for memory in energy.memories:
        tensor = memory.tensor
        level = f"B{place[tensor]}"
        assigned[buffer_name(tensor, place[tensor])] = level
        shares.append(Share(level, tensor, memory.accesses, memory.pj))
        flow[tensor], place[tensor] = memory.buffer.outward, place[tensor] + 1
    shares.sort(key=lambda share: int(share.level[1:]))
    shares += [Share(MAIN, t, flow[t], pj) for t, pj in energy.main.items()]
    return Evaluation(
        layer,
        nest,
        _placed(traffic, assigned),
        tuple(shares),
        sum(energy.compulsory.values()),
        energy.sram_bytes,
    )


def _literally(layer: Layer, nest: Nest, machine: Codesign) -> Evaluation:
    """Every buffer pays for its accesses, and main memory for each element once where
    the outermost buffer is on the chip."""
    assigned, shares, main, on_chip, compulsory = {}, [], [], 0, 0.0
    for tensor, own in count_literally(nest).items():
        curve, outside = machine.curves[tensor], 0.0
        for place, buffer in enumerate(own.buffers):
            nbytes, accesses = ELEMENT_BYTES * buffer.elements, buffer.accesses
            if nbytes > curve.dram_above:
                outside += accesses
                continue
            level = f"B{place}"
            assigned[buffer_name(tensor, place)] = level
            pj = accesses * curve(nbytes)
            shares.append(Share(level, tensor, round(accesses), pj))
            on_chip += nbytes
        outside = outside or own.alpha
        main.append(Share(MAIN, tensor, round(outside), outside * curve.dram_pj))
        compulsory += own.alpha * curve.dram_pj
    shares.sort(key=lambda share: int(share.level[1:]))
    buffers = _placed(_as_counted(nest), assigned)
    return Evaluation(layer, nest, buffers, (*shares, *main), compulsory, on_chip)


def _placed(
    traffic: Mapping[Tensor, Traffic], assigned: Mapping[str, str]
) -> tuple[Placed, ...]:
    """Every buffer that saves anything; in main memory, where no level is assigned."""
    return tuple(
        Placed(name, tensor, assigned.get(name, MAIN), buffer)
        for tensor, own in traffic.items()
        for place, buffer in enumerate(own.used)
        for name in [buffer_name(tensor, place)]
    )
