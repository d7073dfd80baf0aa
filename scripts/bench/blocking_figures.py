"""The blocking paper's figures 3 to 9, each with a table, for the page; and what other
spatial mappings, and memories for whole networks, make of layers."""

from __future__ import annotations

from functools import cache

from bench.blocking_page import Bar, Page, bars, curves
from memplan.blocking.cost.evaluation import Evaluation, best_evaluation, evaluate
from memplan.blocking.cost.latency import datapath_steps
from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.cost.placement import MAIN
from memplan.blocking.design.area_curve import area_curve
from memplan.blocking.design.cores_search import CoresNest, optimize_for_cores
from memplan.blocking.design.network import NETWORKS
from memplan.blocking.design.network_design import design_network
from memplan.blocking.design.parallel import CoresEnergy, cores_energy
from memplan.blocking.machine.energy import MAC_PJ
from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.machine.technology import DIANNAO_MM2
from memplan.blocking.nest.array import Array
from memplan.blocking.nest.layer import (
    PAPER_LAYERS,
    Layer,
    Tensor,
    fully_connected,
    parse_layer,
)
from memplan.blocking.nest.nest import parse_nest
from memplan.blocking.plan import CurvePoint
from memplan.blocking.run.cache import simulate
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options, Result
from memplan.blocking.search.spatial import search_datapath

NAMES = {Tensor.INPUT: "IB", Tensor.KERNEL: "KB", Tensor.OUTPUT: "OB"}
MIB = 1 << 20
UNROLL = {"C": 16, "K": 16}
TIME_LIMIT = 120.0  # seconds for one search; what is not proved then is marked
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
# Found with half of each cache's capacity, and rows of whole lines innermost.
CACHE_NESTS = {
    "conv1": "Fw11 Fh11 X256 K32 Y2 K48 C32 Y32 K96 C256 K192 Y128 Y256 K384",
    "conv2": "Fw9 Fh9 X100 Y5 K24 C32 Y375 K48 X500",
    "conv3": "Fw4 Fh4 C6 Y8 X32 K40 Y32 C108 K200",
    "conv4": "Fw3 Fh3 C8 X56 Y4 K64 Y7 C128 Y56 K256",
    "conv5": "Fw3 Fh3 C16 X28 Y4 K64 C32 Y28 C256 K512",
}


def unroll_of(layer: Layer) -> dict[str, int]:
    """The datapath's channels, where the layer has any."""
    return {dim: n for dim, n in UNROLL.items() if layer.kernel and layer.size(dim) > 1}


@cache
def on_diannao(layer: Layer, optimal: bool) -> Evaluation:
    """DianNao's own schedule, or the optimal one."""
    diannao = Fixed(load_hierarchy("diannao"))
    if not optimal:
        own = parse_nest(BASELINES[layer.name], layer, UNROLL)
        return evaluate(layer, own, diannao)
    nest = optimize(layer, unroll_of(layer), diannao).nest
    return best_evaluation(layer, nest, diannao)


@cache
def codesigned(layer: Layer, budget: int | None) -> tuple[Result, Evaluation]:
    """The optimum within a budget, and where its energy goes."""
    found = optimize(layer, unroll_of(layer), Codesign(budget=budget))
    return found, best_evaluation(layer, found.nest, Codesign(budget=budget))


def mark(found: Result) -> str:
    """A star behind what is not proved."""
    return "" if found.proved else " *"


def figures_3_and_4(page: Page) -> None:
    """Cache accesses of the blocked nest and of im2col with a matrix product."""
    machine, table = load_hierarchy("xeon-e5645"), []
    rows: dict[str, list[Bar]] = {"L2": [], "L3": []}
    for name, string in CACHE_NESTS.items():
        layer = PAPER_LAYERS[name]
        run = simulate(layer, parse_nest(string, layer), machine, pad=True)
        row = f"{layer.name} | {run.share:.1%}"
        for level, own, other in zip(rows, run.blocked, run.gemm, strict=False):
            blocked, gemm = own.misses, other.misses
            row += f" | {blocked:,.3g} | {gemm:,.3g} | {gemm / blocked:.1f}"
            rows[level].append((layer.name, "blocked", {"blocked": blocked}))
            rows[level].append((layer.name, "GEMM", {"im2col + GEMM": gemm}))
        against_model = zip(run.blocked[:2], run.expected[:2], strict=True)
        for own, expected in against_model:
            row += f" | {own.misses / expected:.2f}"
        table.append(row)
    page.table(
        "layer | simulated | blocked L2 | GEMM L2 | ratio | blocked L3 | GEMM L3 | "
        "ratio | misses / model, L1 | L2",
        table,
    )
    for figure, (level, own_rows) in zip("34", rows.items(), strict=True):
        title = f"Figure {figure}: accesses to {level}"
        facts = "simulated caches of the Xeon E5645"
        drawn = bars(own_rows, title, facts, "accesses (log)", log=True)
        page.figure(f"figure{figure}", drawn)


def figure_5(page: Page) -> None:
    """DianNao with its own schedule, and with the optimal one."""
    rows: list[Bar] = []
    table = []
    for layer in CONVOLUTIONS:
        own, best = on_diannao(layer, False), on_diannao(layer, True)
        for name, one in (("own", own), ("optimal", best)):
            main = {t: one.pj(MAIN, t) / layer.macs for t in Tensor}
            every = {t: one.by_tensor[t] / layer.macs for t in Tensor}
            parts = {f"{NAMES[t]} SRAM": every[t] - main[t] for t in Tensor}
            parts |= {f"{NAMES[t]} DRAM": main[t] for t in Tensor}
            rows.append((layer.name, name, parts))
        kernel = own.by_tensor[Tensor.KERNEL] / best.by_tensor[Tensor.KERNEL]
        table.append(
            f"{layer.name} | {own.per_mac(own.total):.1f} | "
            f"{best.per_mac(best.total):.2f} | {own.total / best.total:.1f} | "
            f"{kernel:.1f} | {best.per_mac(best.pj(MAIN)):.2f} | "
            f"{best.per_mac(best.compulsory):.2f}"
        )
    page.table(
        "layer | own, pJ/MAC | optimal | ratio | KB ratio | optimal's DRAM | "
        "compulsory",
        table,
    )
    title = "Figure 5: energy of memory on DianNao"
    facts = "2 KB of input, 32 KB of kernels, 2 KB of output; pJ per multiplication"
    page.figure("figure5", bars(rows, title, facts, "pJ per MAC"))


def figure_6(page: Page) -> None:
    """Memories and nest together, within 8 MB."""
    rows: list[Bar] = []
    table = []
    for layer in CONVOLUTIONS:
        found, energy = codesigned(layer, 8 * MIB)
        total, own = on_diannao(layer, True).total, on_diannao(layer, False)
        parts = {
            f"{NAMES[t]}": (energy.by_tensor[t] - energy.pj(MAIN, t)) / total
            for t in Tensor
        }
        parts["DRAM"] = energy.pj(MAIN) / total
        rows.append((layer.name, "", parts))
        table.append(
            f"{layer.name} | {found.energy / layer.macs:.3f}{mark(found)} | "
            f"{energy.sram_bytes / 1024:,.0f} | {own.total / found.energy:.1f} | "
            f"{total / found.energy:.1f} | "
            f"{own.without_compulsory / energy.without_compulsory:.1f}"
        )
    page.table(
        "layer | pJ/MAC | SRAM KiB | DianNao's own / this | optimal / this | "
        "own / this, both without compulsory",
        table,
    )
    title = "Figure 6: energy of memory with 8 MB"
    facts = "DianNao with its optimal schedule is 1"
    page.figure("figure6", bars(rows, title, facts, "energy"))


def windows_apart(page: Page) -> None:
    """What no block of window loops and no divisors can do."""
    rows = []
    within = Options("divisors", time_limit=TIME_LIMIT)
    for layer in CONVOLUTIONS:
        whole = optimize(layer, unroll_of(layer), Codesign(), within)
        apart, _ = codesigned(layer, None)
        rows.append(
            f"{layer.name} | {whole.energy / layer.macs:.3f} | "
            f"{apart.energy / layer.macs:.3f} | {apart.energy / whole.energy:.3f} | "
            f"{(apart.lower_bound or 0) / layer.macs:.3f} | `{apart.nest}`"
        )
    page.table("layer | divisors, pJ/MAC | all nests | ratio | bound | nest", rows)


def figure_7(page: Page) -> None:
    """Least energy within an area."""
    points: dict[str, list[tuple[float, float]]] = {}
    table, within = [], Options(time_limit=TIME_LIMIT)
    for layer in CONVOLUTIONS[2:]:
        reference, marks = on_diannao(layer, True).total, []

        def note(_: CurvePoint, found: Result, marks: list[str] = marks) -> None:
            marks.append(mark(found))

        curve = area_curve(
            layer, BUDGETS, unroll_of(layer), options=within, progress=note
        )
        own = points[layer.name] = [
            (p.area_mm2 / DIANNAO_MM2, p.energy_pj / reference) for p in curve
        ]
        most = -1
        for point, (area, energy), star in zip(curve, own, marks, strict=True):
            if point.sram_bytes > most:
                table.append(
                    f"{layer.name}, {point.budget >> 10:,} KiB | "
                    f"{point.sram_bytes / 1024:,.0f} | {area:.1f} | "
                    f"{1 / energy:.1f}{star}"
                )
            most = point.sram_bytes
    page.table("budget | used KiB | area / DianNao | DianNao's optimum / this", table)
    title = "Figure 7: energy against area"
    drawn = curves(points, title, "DianNao with its optimal schedule is 1")
    page.figure("figure7", drawn)


def figure_8(page: Page) -> None:
    """Memory beside computation: of Table 4, and of FC2 for a batch."""
    rows: list[Bar] = []
    table = []
    batched = fully_connected("FC2 x1024", 4096, 4096, 1024)
    for layer in (*PAPER_LAYERS.values(), batched):
        found, energy = codesigned(layer, 8 * MIB)
        memory = found.energy / layer.macs
        without = energy.without_compulsory / layer.macs
        rows.append((layer.name, "MAC", {"computation": MAC_PJ}))
        rows.append((layer.name, "mem", {"memory": memory}))
        below = ["yes" if pj < 0.8 * MAC_PJ else "no" for pj in (memory, without)]
        table.append(
            f"{layer.name} | {memory:.3g}{mark(found)} | {without:.3g} | "
            f"{' | '.join(below)}"
        )
    page.table(
        "layer | memory, pJ/MAC | without compulsory DRAM | < 80 % of a MAC | "
        "the same without",
        table,
    )
    title = "Figure 8: energy of memory and of computation"
    facts = "memories of 8 MB at most; a 16-bit multiplication takes 1 pJ"
    drawn = bars(rows, title, facts, "pJ per MAC (log)", log=True, line=0.8)
    page.figure("figure8", drawn)


# Nests for Conv1 whose outermost memory holds more or less of the kernels.
SCHEDULES = (
    "Y2 Y4 X2 Y8 X8 Fw11 Fh11 Y16 Y32 X16 X64 K32 C32 C64 Y64 X128 K96 K192 C256 Y256 "
    "X256 K384",
    "X4 Y16 Fw11 Fh11 X256 K192 C256 Y256 K384",
    "X4 Y16 Fw11 Fh11 X256 K384 C256 Y256",
    "X8 Y8 Fw11 Fh11 X256 K384 C256 Y256",
)
_SHARED = (("xy", "KB"), ("k", "IB"))
_WAYS = [(way, n) for way, _ in _SHARED for n in (1, 2, 4, 8)]
# Of ResNet-50 and MobileNetV3, and a product; every kind once or twice.
_MAPPED = (
    *("3,64,112,112,7,7,S2", "64,64,56,56", "64,64,56,56,3,3", "64,256,56,56"),
    *("128,128,28,28,3,3,S2", "256,256,14,14,3,3", "1024,256,14,14"),
    *("512,512,7,7,3,3", "512,2048,7,7", "1,1,112,112,3,3,G16"),
    *("1,1,56,56,3,3,G72", "1,1,28,28,5,5,G120", "1,1,14,14,3,3,G480"),
    *("1,1,7,7,5,5,G960", "960,160,7,7", "768,3072,1,1,B1024"),
)


@cache
def anew() -> list[CoresNest]:
    """Conv1's nests for every number of cores and split."""
    layer = CONVOLUTIONS[0]
    one = optimize(layer, UNROLL, Codesign()).nest
    return optimize_for_cores(one, [(n, way) for way, n in _WAYS])


def figure_9(page: Page) -> None:
    """Several cores."""
    layer = CONVOLUTIONS[0]
    nests = [parse_nest(text, layer, UNROLL) for text in SCHEDULES]
    scaled = [
        (f"schedule {number}", [cores_energy(nest, n, way) for way, n in _WAYS])
        for number, nest in enumerate(nests, 1)
    ]
    scaled.append(("one core's", [one.one_nest for one in anew()]))
    scaled.append(("searched", [one.energy for one in anew()]))
    rows: list[Bar] = []
    table = []
    for name, own in scaled:
        rows += [_bar(layer, name, one) for one in own]
        for split, shared in _SHARED:
            shown = [f"{e.total / layer.macs:.3f}" for e in own if e.split == split]
            table.append(" | ".join((f"{name}, {shared} shared", *shown)))
    for split, shared in _SHARED:
        gaps = [f"{one.gap:.1%}" for one in anew() if one.energy.split == split]
        table.append(" | ".join((f"searched, {shared} shared: gap", *gaps)))
    page.table("pJ/MAC | 1 core | 2 | 4 | 8", table)
    page.figure(
        "figure9",
        bars(
            rows,
            "Figure 9: energy of memory on 1, 2, 4 and 8 cores",
            "Conv1; the kernels shared (KB) or the input (IB); S1 to S4: the schedules",
            "pJ per MAC",
        ),
    )
    page.table(
        "shared | cores | pJ/MAC | on chip, KiB | nest",
        [
            f"{dict(_SHARED)[one.energy.split]} | {one.energy.cores} | "
            f"{one.energy.total / layer.macs:.4f} | "
            f"{one.energy.sram_bytes / 1024:,.0f} | `{one.nest}`"
            for one in anew()
        ],
    )


def _bar(layer: Layer, name: str, one: CoresEnergy) -> Bar:
    parts = {"private": one.private}
    parts |= {f"last {NAMES[t]}": pj for t, pj in one.last.items()}
    parts |= {"DRAM": one.main, "shuffle": one.shuffle}
    per_mac = {part: pj / layer.macs for part, pj in parts.items()}
    short = name.replace("schedule ", "S").replace(" core's", "")
    return (f"{short}, {dict(_SHARED)[one.split]}", str(one.cores), per_mac)


def mappings(page: Page) -> None:
    """The best spatial mapping beside 16 x 16 channels, on DianNao's memories."""
    diannao = Fixed(load_hierarchy("diannao"))
    rows = []
    for text in _MAPPED:
        layer = parse_layer(text)
        fixed = optimize(layer, UNROLL, diannao)
        found = search_datapath(layer, Array(), diannao)
        assert found.mapping is not None
        chosen = ",".join(f"{dim}{n}" for dim, n in found.nest.unroll.items())
        rows.append(
            f"{text} | {fixed.energy / layer.macs:.3f} | {_used(fixed):.1%} | "
            f"{found.energy / layer.macs:.3f}{mark(found)} | {_used(found):.1%} | "
            f"{found.energy / fixed.energy:.3f} | {chosen} | "
            f"{found.mapping.mappings:,} | {found.mapping.searched}"
        )
    page.table(
        "layer | C16,K16 | used | best | used | ratio | mapping | of | searched", rows
    )


def _used(found: Result) -> float:
    return found.nest.layer.macs / (datapath_steps(found.nest) * 256)


def networks(page: Page) -> None:
    """Whole networks on one hierarchy (section 3.6): the paper's method, and ours."""
    rows = []
    for name, layers in NETWORKS.items():
        for budget in (MIB, 8 * MIB):
            options = Options(time_limit=TIME_LIMIT)
            found = design_network(layers, _datapath, budget, options=options)
            paper, ours = found.common.energy, found.network.energy
            gap = "" if found.gap is None else f"{found.gap:.1%}"
            star = "" if found.complete else " *"
            rows.append(
                f"{name} | {budget // MIB} MiB | {paper / 1e9:.3f} | "
                f"{ours / 1e9:.3f}{star} | {ours / paper:.3f} | {gap} | "
                f"{found.seconds:.0f}"
            )
    page.table(
        "network | budget | paper's method, mJ | memplan, mJ | ratio | gap | seconds",
        rows,
    )


def _datapath(layer: Layer) -> dict[str, int]:
    """The paper's, cut to the channels that the layer has."""
    return {dim: min(count, layer.size(dim)) for dim, count in UNROLL.items()}


SECTIONS = (
    *(figures_3_and_4, figure_5, figure_6, figure_7, figure_8, figure_9),
    *(mappings, networks, windows_apart),
)
