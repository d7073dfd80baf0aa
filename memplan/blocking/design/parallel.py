"""Energy of a layer spread over several cores (paper, section 3.3 and figure 9).

Only the last level of memories is spread. Either the cores share the input and each has
its own kernels and outputs ("k"), or they share the kernels and each has its own part
of the image ("xy"). What is shared is sent to all cores at once, over wires as long as
all memories are wide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memplan.blocking.cost.objective import Codesign
from memplan.blocking.cost.pricing import paid
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.nest import Nest
from memplan.errors import UsageError

SHARED: Mapping[str, Tensor] = {"k": Tensor.INPUT, "xy": Tensor.KERNEL}


@dataclass(frozen=True)
class CoresEnergy:
    """One bar of figure 9, in pJ of the whole layer.

    private: of all memories but the last of each tensor; last: of these, by tensor, 0
    where it has none on the chip; main: of main memory; shuffle: of handing every
    output to all cores, where they split the kernels.
    """

    cores: int
    split: str
    private: float
    last: Mapping[Tensor, float]
    main: float
    shuffle: float

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
    _check(nest, cores, split)
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
    return CoresEnergy(cores, split, sum(private), last, sum(main), shuffle)


def core_scaling(
    nest: Nest,
    objective: Codesign | None = None,
    cores: Sequence[int] = (1, 2, 4, 8),
) -> list[CoresEnergy]:
    """Figure 9's bars of one nest: every number of cores, the kernels shared, then the
    input. Raises UsageError as `cores_energy` does."""
    return [
        cores_energy(nest, number, split, objective)
        for split in ("xy", "k")
        for number in cores
    ]


def _check(nest: Nest, cores: int, split: str) -> None:
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
