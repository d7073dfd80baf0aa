"""What the blocking paper's figures show, as this model gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from memplan.blocking.cost.evaluation import Evaluation, best_evaluation, evaluate
from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.cost.placement import MAIN
from memplan.blocking.design.area_curve import area_curve
from memplan.blocking.design.parallel import CoresEnergy, core_scaling
from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.machine.technology import DIANNAO_MM2
from memplan.blocking.nest.layer import PAPER_LAYERS, Layer, Tensor, fully_connected
from memplan.blocking.nest.nest import Nest, parse_nest
from memplan.blocking.plan import CurvePoint
from memplan.blocking.run.cache import simulate
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


def scaling(nests: Sequence[Nest]) -> list[list[CoresEnergy]]:
    """Figure 9: every nest on 1, 2, 4 and 8 cores, sharing the kernels or the input."""
    return [core_scaling(nest) for nest in nests]


MACHINE = "xeon-e5645"
# Found with half of each cache's capacity, and rows of whole lines innermost.
NESTS = {
    "conv1": "Fw11 Fh11 X256 K32 Y2 K48 C32 Y32 K96 C256 K192 Y128 Y256 K384",
    "conv2": "Fw9 Fh9 X100 Y5 K24 C32 Y375 K48 X500",
    "conv3": "Fw4 Fh4 C6 Y8 X32 K40 Y32 C108 K200",
    "conv4": "Fw3 Fh3 C8 X56 Y4 K64 Y7 C128 Y56 K256",
    "conv5": "Fw3 Fh3 C16 X28 Y4 K64 C32 Y28 C256 K512",
}


@dataclass(frozen=True)
class CacheCounts:
    """Accesses to L2 and L3, of the part that was simulated; against_model: misses of
    L1 and L2 over those that the model gives."""

    name: str
    share: float
    blocked: tuple[int, int]
    gemm: tuple[int, int]
    against_model: tuple[float, float]


def cache_counts() -> list[CacheCounts]:
    """Every layer, with planes padded so that they do not share sets."""
    machine = load_hierarchy(MACHINE)
    found = []
    for name, string in NESTS.items():
        layer = PAPER_LAYERS[name]
        run = simulate(layer, parse_nest(string, layer), machine, pad=True)
        assert run.gemm is not None
        own = [level.misses for level in run.blocked]
        other = [level.misses for level in run.gemm]
        found.append(
            CacheCounts(
                layer.name,
                run.share,
                (own[0], own[1]),
                (other[0], other[1]),
                (own[0] / run.expected[0], own[1] / run.expected[1]),
            )
        )
    return found
