"""What the blocking paper's figures show, as this model gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from memplan.blocking.cost.evaluation import Evaluation, best_evaluation, evaluate
from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.cost.pricing import MAIN
from memplan.blocking.design.area_curve import area_curve
from memplan.blocking.design.parallel import CoresEnergy, core_scaling
from memplan.blocking.machine.area import DIANNAO_MM2, area_mm2
from memplan.blocking.machine.energy import MAC_PJ
from memplan.blocking.machine.hierarchy_file import load_hierarchy
from memplan.blocking.nest.layer import PAPER_LAYERS, Layer, Tensor, fully_connected
from memplan.blocking.nest.nest import Nest, parse_nest
from memplan.blocking.plan import CurvePoint
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options, Result

MIB = 1 << 20
UNROLL = {"C": 16, "K": 16}
CONVOLUTIONS = tuple(PAPER_LAYERS[f"conv{i}"] for i in range(1, 6))
# DianNao's own schedule with x split once more, as the paper does (section 5.2): x by
# the largest divisor up to 4, and as many channels as its 2 KB of input hold.
BASELINES = {
    "Conv1": "X4 C16 Fw11 Fh11 C256 K384 X256 Y256",
    "Conv2": "X4 C16 Fw9 Fh9 C32 K48 X500 Y375",
    "Conv3": "X4 C16 Fw4 Fh4 C112 K208 X32 Y32",
    "Conv4": "X4 C32 Fw3 Fh3 C128 K256 X56 Y56",
    "Conv5": "X4 C32 Fw3 Fh3 C256 K512 X28 Y28",
}
BUDGETS = tuple(kib << 10 for kib in (40, 64, 128, 256, 512, 1024, 2048, 4096, 8192))


@dataclass(frozen=True)
class OnDianNao:
    """One schedule: pJ per multiplication on the chip and in main memory, by tensor;
    compulsory: the part of main memory's that has to be."""

    chip: Mapping[Tensor, float]
    main: Mapping[Tensor, float]
    compulsory: float

    @property
    def total(self) -> float:
        """pJ per multiplication."""
        return sum(self.chip.values()) + sum(self.main.values())

    def of(self, tensor: Tensor) -> float:
        """pJ per multiplication of one tensor."""
        return self.chip[tensor] + self.main[tensor]


def unroll_of(layer: Layer) -> dict[str, int]:
    """The datapath's channels, where the layer has any."""
    return {dim: n for dim, n in UNROLL.items() if layer.kernel and layer.size(dim) > 1}


@cache
def on_diannao(layer: Layer, optimal: bool) -> OnDianNao:
    """Figure 5: DianNao's own schedule, or the optimal one."""
    diannao = load_hierarchy("diannao")
    nest = (
        optimize(layer, unroll_of(layer), Fixed(diannao)).nest
        if optimal
        else parse_nest(BASELINES[layer.name], layer, UNROLL)
    )
    packed = (best_evaluation if optimal else evaluate)(layer, nest, Fixed(diannao))
    main = {t: packed.pj(MAIN, t) / layer.macs for t in packed.layer.tensors}
    chip = {t: packed.by_tensor[t] / layer.macs - main[t] for t in main}
    return OnDianNao(chip, main, packed.compulsory / layer.macs)


@cache
def codesigned(layer: Layer, budget: int | None) -> tuple[Result, Evaluation]:
    """Figures 6 and 8: the optimum within a budget, and where its energy goes."""
    found = optimize(layer, unroll_of(layer), Codesign(budget=budget))
    return found, best_evaluation(layer, found.nest, Codesign(budget=budget))


def of_divisors(layer: Layer) -> Result:
    """The optimum among nests whose extents divide each other."""
    within = Options("divisors", time_limit=TIME_LIMIT)
    return optimize(layer, unroll_of(layer), Codesign(), within)


TIME_LIMIT = 120.0  # seconds for one search; what is not proved then is marked


@dataclass(frozen=True)
class AreaPoint:
    """The least energy within a budget; area and energy relative to DianNao's, the
    layer blocked as well as its memories allow."""

    budget: int
    nbytes: int
    area: float
    energy: float
    proved: bool


@cache
def curve(layer: Layer, budgets: tuple[int, ...]) -> list[AreaPoint]:
    """Figure 7."""
    reference = on_diannao(layer, True).total * layer.macs
    points: list[AreaPoint] = []

    def note(one: CurvePoint, found: Result) -> None:
        area, energy = one.area_mm2 / DIANNAO_MM2, one.energy_pj / reference
        point = AreaPoint(one.budget, one.sram_bytes, area, energy, found.proved)
        points.append(point)

    within = Options(time_limit=TIME_LIMIT)
    area_curve(layer, budgets, unroll_of(layer), options=within, progress=note)
    return points


def benchmarks() -> tuple[Layer, ...]:
    """Figure 8's layers: Table 4, and FC2 for a batch, as FC layers are used."""
    return (*PAPER_LAYERS.values(), fully_connected("FC2 x1024", 4096, 4096, 1024))


def per_mac(layer: Layer, pj: float) -> float:
    """pJ per multiplication that the layer really has."""
    return pj / layer.macs


def scaling(nests: Sequence[Nest]) -> list[list[CoresEnergy]]:
    """Figure 9: every nest on 1, 2, 4 and 8 cores, sharing the kernels or the input."""
    return [core_scaling(nest) for nest in nests]


__all__ = [
    "BUDGETS",
    "CONVOLUTIONS",
    "MAC_PJ",
    "MIB",
    "UNROLL",
    "OnDianNao",
    "area_mm2",
    "benchmarks",
    "codesigned",
    "curve",
    "of_divisors",
    "on_diannao",
    "per_mac",
    "scaling",
    "unroll_of",
]
