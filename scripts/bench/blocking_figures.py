"""The blocking paper's figures 3 to 8, each with a table, for the page."""

from __future__ import annotations

from functools import cache

from bench.blocking_page import Bar, Page, bars, curves
from memplan.blocking.cost.evaluation import Evaluation, best_evaluation, evaluate
from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.cost.placement import MAIN
from memplan.blocking.design.area_curve import area_curve
from memplan.blocking.machine.energy import MAC_PJ
from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.machine.technology import DIANNAO_MM2
from memplan.blocking.nest.layer import PAPER_LAYERS, Layer, Tensor, fully_connected
from memplan.blocking.nest.nest import parse_nest
from memplan.blocking.plan import CurvePoint
from memplan.blocking.run.cache import simulate
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options, Result

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


def figures_3_and_4(page: Page) -> None:
    """Cache accesses of the blocked nest and of im2col with a matrix product."""
    machine, table = load_hierarchy("xeon-e5645"), []
    rows: dict[str, list[Bar]] = {"L2": [], "L3": []}
    for name, string in CACHE_NESTS.items():
        layer = PAPER_LAYERS[name]
        run = simulate(layer, parse_nest(string, layer), machine, pad=True)
        cells = [layer.name, f"{run.share:.1%}"]
        for level, own, other in zip(rows, run.blocked, run.gemm, strict=False):
            blocked, gemm = own.misses, other.misses
            cells += [f"{blocked:,.3g}", f"{gemm:,.3g}", f"{gemm / blocked:.1f}"]
            rows[level].append((layer.name, "blocked", {"blocked": blocked}))
            rows[level].append((layer.name, "GEMM", {"im2col + GEMM": gemm}))
        against_model = zip(run.blocked[:2], run.expected[:2], strict=True)
        cells += [f"{own.misses / expected:.2f}" for own, expected in against_model]
        table.append(cells)
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
            (
                layer.name,
                f"{own.per_mac(own.total):.1f}",
                f"{best.per_mac(best.total):.2f}",
                f"{own.total / best.total:.1f}",
                f"{kernel:.1f}",
                f"{best.per_mac(best.pj(MAIN)):.2f}",
                f"{best.per_mac(best.compulsory):.2f}",
            )
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
            (
                layer.name,
                f"{found.energy / layer.macs:.3f}" + ("" if found.proved else " *"),
                f"{energy.sram_bytes / 1024:,.0f}",
                f"{own.total / found.energy:.1f}",
                f"{total / found.energy:.1f}",
                f"{own.without_compulsory / energy.without_compulsory:.1f}",
            )
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
            (
                layer.name,
                f"{whole.energy / layer.macs:.3f}",
                f"{apart.energy / layer.macs:.3f}",
                f"{apart.energy / whole.energy:.3f}",
                f"{(apart.lower_bound or 0) / layer.macs:.3f}",
                f"`{apart.nest}`",
            )
        )
    page.table("layer | divisors, pJ/MAC | all nests | ratio | bound | nest", rows)


def figure_7(page: Page) -> None:
    """Least energy within an area."""
    points: dict[str, list[tuple[float, float]]] = {}
    table, within = [], Options(time_limit=TIME_LIMIT)
    for layer in CONVOLUTIONS[2:]:
        reference, marks = on_diannao(layer, True).total, []

        def note(_: CurvePoint, found: Result, marks: list[str] = marks) -> None:
            marks.append("" if found.proved else " *")

        curve = area_curve(
            layer, BUDGETS, unroll_of(layer), options=within, progress=note
        )
        own = points[layer.name] = [
            (p.area_mm2 / DIANNAO_MM2, p.energy_pj / reference) for p in curve
        ]
        most = -1
        for point, (area, energy), mark in zip(curve, own, marks, strict=True):
            if point.sram_bytes > most:
                table.append(
                    (
                        f"{layer.name}, {point.budget >> 10:,} KiB",
                        f"{point.sram_bytes / 1024:,.0f}",
                        f"{area:.1f}",
                        f"{1 / energy:.1f}{mark}",
                    )
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
        table.append(
            (
                layer.name,
                f"{memory:.3g}" + ("" if found.proved else " *"),
                f"{without:.3g}",
                "yes" if memory < 0.8 * MAC_PJ else "no",
                "yes" if without < 0.8 * MAC_PJ else "no",
            )
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
