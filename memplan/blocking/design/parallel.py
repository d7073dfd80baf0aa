"""Energy of a layer spread over several cores (paper, section 3.3 and figure 9).

Only the last level of memories is spread. Either the cores share the input and each has
its own kernels and outputs ("k"), or they share the kernels and each has its own part
of the image ("xy"). What is shared is sent to all cores at once, over wires as long as
all memories are wide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memplan.arrays import Float64Array
from memplan.blocking.cost.objective import Codesign
from memplan.blocking.cost.placement import paid
from memplan.blocking.nest.counts import Traffic
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.nest import Nest
from memplan.errors import UsageError

SHARED: Mapping[str, Tensor] = {"k": Tensor.INPUT, "xy": Tensor.KERNEL}


@dataclass(frozen=True)
class CoresEnergy:
    """One bar of figure 9, in pJ of the whole layer.

    private: of all memories but the last of each tensor; last: of these, by tensor, 0
    where it has none on the chip; main: of main memory; shuffle: of handing every
    output to all cores, where they split the kernels; sram_bytes: of all memories.
    """

    cores: int
    split: str
    private: float
    last: Mapping[Tensor, float]
    main: float
    shuffle: float
    sram_bytes: int = 0

    @property
    def total(self) -> float:
        """pJ of all of them."""
        return self.private + sum(self.last.values()) + self.main + self.shuffle


def cores_energy(
    nest: Nest, cores: int, split: str, objective: Codesign | None = None
) -> CoresEnergy:
    """Energy of the nest on so many cores, every buffer a memory of its own.

    split: "k" or "xy". A last-level memory that is split is that many times smaller;
    an access to the shared one costs what one to all memories of the nest together
    would, or to itself if that is more, and serves all cores.
    Raises UsageError where the layer cannot be split among so many.
    """
    check_split(nest, cores, split)
    objective = objective or Codesign()
    traffic = objective.traffic(nest)
    placement = objective.place(traffic)
    sram_bytes = objective.sram_bytes(placement)
    private: list[float] = []
    last = dict.fromkeys(traffic, 0.0)
    main: list[float] = []
    for tensor, own in traffic.items():
        *inner, outside = objective.shares({tensor: own}, placement)
        main.append(outside.pj)
        if not inner:
            continue
        private += [share.pj for share in inner[:-1]]
        curve, outermost = objective.curves[tensor], placement[tensor][-1].outermost
        within = placement[tensor][:-1]
        served = within[-1].outermost.outward_words if within else own.demand_words
        accesses = paid(served, outermost, objective.count_fills)
        if cores == 1:
            last[tensor] = inner[-1].pj
        elif tensor is SHARED[split]:
            wires = max(curve.on_chip(sram_bytes), curve(outermost.nbytes))
            last[tensor] = accesses / cores * wires
        else:
            last[tensor] = accesses * curve(outermost.nbytes / cores)
    shuffle = 0.0
    if split == "k" and cores > 1:
        outputs = traffic[Tensor.OUTPUT]
        shuffle = outputs.compulsory_words * objective.curves[Tensor.OUTPUT].on_chip(
            sram_bytes
        )
    return CoresEnergy(cores, split, sum(private), last, sum(main), shuffle, sram_bytes)


@dataclass(frozen=True)
class _Way:
    """Some of a tensor's buffers, each in a memory: their bytes, pJ of all but the last
    and of the last if it is no shared one, and of main memory; of a shared one, the
    accesses that a core's are, and its own price."""

    nbytes: int
    private: float
    last: float
    main: float
    shared: float = 0.0
    price: float = 0.0

    def measures(self) -> tuple[float, ...]:
        """What a better one has less of."""
        pj = self.private + self.last + self.main
        return self.nbytes, pj, self.shared, self.shared * self.price


def best_cores_energy(
    nest: Nest, cores: int, split: str, objective: Codesign | None = None
) -> CoresEnergy:
    """The same as `cores_energy`, with those of the buffers kept, stripes of the input
    too and, in memories that can have them, sliding ones, that together take the least;
    raises as it does. The last memory of the input does not slide where cores split the
    image: what the next tile has in common with this one lies in another core."""
    check_split(nest, cores, split)
    objective = objective or Codesign()
    traffic = objective.traffic(nest)
    ways = [_worth(_ways(own, cores, split, objective)) for own in traffic.values()]
    outputs = objective.curves[Tensor.OUTPUT]
    shuffled = 0.0
    if split == "k" and cores > 1:
        shuffled = traffic[Tensor.OUTPUT].compulsory_words
    nbytes = _of_all([[way.nbytes for way in own] for own in ways])
    total = _of_all(
        [[way.private + way.last + way.main for way in own] for own in ways]
    )
    wires = objective.curves[SHARED[split]].on_chips(np.maximum(nbytes, 1.0))
    for place, own in enumerate(ways):
        along = [1] * len(ways)
        along[place] = len(own)
        price = np.array([way.price for way in own]).reshape(along)
        sent = np.array([way.shared for way in own]).reshape(along)
        total = total + sent * np.maximum(wires, price)
    if shuffled:
        total = total + shuffled * outputs.on_chips(np.maximum(nbytes, 1.0))
    if objective.budget is not None:
        total = np.where(nbytes <= objective.budget, total, np.inf)
    best = np.unravel_index(int(np.argmin(total)), total.shape)
    chosen = [own[int(number)] for own, number in zip(ways, best, strict=True)]
    bytes_, length = sum(way.nbytes for way in chosen), float(wires[best])
    last = {
        tensor: way.last + way.shared * max(length, way.price)
        for tensor, way in zip(traffic, chosen, strict=True)
    }
    private, main = (sum(w.private for w in chosen), sum(w.main for w in chosen))
    handed = shuffled * outputs.on_chip(bytes_)
    return CoresEnergy(cores, split, private, last, main, handed, bytes_)


def _of_all(parts: Sequence[Sequence[float]]) -> Float64Array:
    """The sum of one of each, for every combination."""
    found: Float64Array = np.zeros(())
    for own in parts:
        found = np.add.outer(found, np.array(own, dtype=np.float64))
    return found


def _ways(own: Traffic, cores: int, split: str, objective: Codesign) -> Iterator[_Way]:
    """Choices of a tensor's buffers that are on the chip, of the input stripes too;
    without those that others beat whatever lies outside."""
    curve, fills = objective.curves[own.tensor], objective.count_fills
    main_pj, shared = objective.main_pj(own.tensor), own.tensor is SHARED[split]
    yield _Way(0, 0.0, 0.0, own.demand_words * main_pj)
    # Of each buffer the choices that end with it, none the last, and what passes out.
    ends = [(own.demand_words, [_Way(0, 0.0, 0.0, 0.0)])]
    apart = cores > 1 and not shared
    for buffer in own.choices:
        if not buffer.reuses or buffer.nbytes > curve.dram_above:
            continue
        price, part = curve(buffer.nbytes), curve(buffer.nbytes / cores)
        main = buffer.outward_words * main_pj
        found = []
        for words, inside in ends:
            accesses = paid(words, buffer, fills)
            for way in inside:
                nbytes, pj = way.nbytes + buffer.nbytes, way.private
                found.append(_Way(nbytes, pj + accesses * price, 0.0, 0.0))
                if apart and buffer.slides:
                    continue  # never the last one
                if cores > 1 and shared:
                    yield _Way(nbytes, pj, 0.0, main, accesses / cores, price)
                else:
                    yield _Way(nbytes, pj, accesses * part, main)
        ends.append((buffer.outward_words, _worth(found)))


def _worth(ways: Iterable[_Way]) -> list[_Way]:
    """Those that no other one is as good as in everything."""
    kept: list[_Way] = []
    for way in sorted(ways, key=_Way.measures):
        mine = way.measures()
        if not any(
            all(a <= b for a, b in zip(one.measures(), mine, strict=True))
            for one in kept
        ):
            kept.append(way)
    return kept


def check_split(nest: Nest, cores: int, split: str) -> None:
    """Raises UsageError where the layer cannot be split so among so many cores."""
    if split not in SHARED:
        raise UsageError(f"cores can split k or xy, not {split!r}")
    if cores < 1:
        raise UsageError(f"{cores} cores: there must be at least one")
    tiles = 1
    for dim in split.upper():
        tiles *= -(-nest.layer.size(dim) // nest.base(dim))
    if tiles % cores:
        raise UsageError(
            f"{nest.layer.name}: {cores} cores cannot share {tiles} tiles of "
            f"{split.upper()} evenly"
        )
