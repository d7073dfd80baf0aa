"""The blocking paper's figures 3 to 8, each with a table, for the page."""

from __future__ import annotations

from bench import blocking_data as data
from bench.blocking_page import Page
from bench.blocking_plots import Bar, bars, curves
from memplan.blocking.cost.placement import MAIN
from memplan.blocking.nest.layer import Tensor

NAMES = {Tensor.INPUT: "IB", Tensor.KERNEL: "KB", Tensor.OUTPUT: "OB"}


def figures_3_and_4(page: Page) -> None:
    """Cache accesses of the blocked nest and of im2col with a matrix product."""
    counted = data.cache_counts()
    page.table(
        "layer | simulated | blocked L2 | GEMM L2 | ratio | blocked L3 | GEMM L3 | "
        "ratio | misses / model, L1 | L2",
        [
            (
                one.name,
                f"{one.share:.1%}",
                f"{one.blocked[0]:,.3g}",
                f"{one.gemm[0]:,.3g}",
                f"{one.gemm[0] / one.blocked[0]:.1f}",
                f"{one.blocked[1]:,.3g}",
                f"{one.gemm[1]:,.3g}",
                f"{one.gemm[1] / one.blocked[1]:.1f}",
                *(f"{ratio:.2f}" for ratio in one.against_model),
            )
            for one in counted
        ],
    )
    rows: list[Bar] = []
    for level, number in (("L2", 0), ("L3", 1)):
        for one in counted:
            group = f"{level}, {one.name}"
            rows.append((group, "blocked", {"blocked": one.blocked[number]}))
            rows.append((group, "GEMM", {"im2col + GEMM": one.gemm[number]}))
    half = len(rows) // 2
    for figure, part in (("3", rows[:half]), ("4", rows[half:])):
        level = "L2" if figure == "3" else "L3"
        page.figure(
            f"figure{figure}",
            bars(
                [(group.split(", ")[1], name, parts) for group, name, parts in part],
                f"Figure {figure}: accesses to {level}",
                "simulated caches of the Xeon E5645",
                "accesses (log)",
                log=True,
            ),
        )


def figure_5(page: Page) -> None:
    """DianNao with its own schedule, and with the optimal one."""
    rows: list[Bar] = []
    table = []
    for layer in data.CONVOLUTIONS:
        own, best = data.on_diannao(layer, False), data.on_diannao(layer, True)
        for name, one in (("own", own), ("optimal", best)):
            parts = {f"{NAMES[t]} SRAM": one.chip[t] for t in Tensor}
            parts |= {f"{NAMES[t]} DRAM": one.main[t] for t in Tensor}
            rows.append((layer.name, name, parts))
        kernel = own.of(Tensor.KERNEL) / best.of(Tensor.KERNEL)
        table.append(
            (
                layer.name,
                f"{own.total:.1f}",
                f"{best.total:.2f}",
                f"{own.total / best.total:.1f}",
                f"{kernel:.1f}",
                f"{sum(best.main.values()):.2f}",
                f"{best.compulsory:.2f}",
            )
        )
    page.table(
        "layer | own, pJ/MAC | optimal | ratio | KB ratio | optimal's DRAM | "
        "compulsory",
        table,
    )
    page.figure(
        "figure5",
        bars(
            rows,
            "Figure 5: energy of memory on DianNao",
            "2 KB of input, 32 KB of kernels, 2 KB of output; pJ per multiplication",
            "pJ per MAC",
        ),
    )


def figure_6(page: Page) -> None:
    """Memories and nest together, within 8 MB."""
    rows: list[Bar] = []
    table = []
    for layer in data.CONVOLUTIONS:
        found, energy = data.codesigned(layer, 8 * data.MIB)
        reference = data.on_diannao(layer, True)
        total = reference.total * layer.macs
        parts = {
            f"{NAMES[t]}": (energy.by_tensor[t] - energy.pj(MAIN, t)) / total
            for t in Tensor
        }
        parts["DRAM"] = energy.pj(MAIN) / total
        rows.append((layer.name, "", parts))
        own = data.on_diannao(layer, False).total * layer.macs
        without = own - reference.compulsory * layer.macs
        table.append(
            (
                layer.name,
                f"{found.energy / layer.macs:.3f}" + ("" if found.proved else " *"),
                f"{energy.sram_bytes / 1024:,.0f}",
                f"{own / found.energy:.1f}",
                f"{total / found.energy:.1f}",
                f"{without / energy.without_compulsory:.1f}",
            )
        )
    page.table(
        "layer | pJ/MAC | SRAM KiB | DianNao's own / this | optimal / this | "
        "own / this, both without compulsory",
        table,
    )
    page.figure(
        "figure6",
        bars(
            rows,
            "Figure 6: energy of memory with 8 MB",
            "DianNao with its optimal schedule is 1",
            "energy",
        ),
    )


def windows_apart(page: Page) -> None:
    """What no block of window loops and no divisors can do."""
    rows = []
    for layer in data.CONVOLUTIONS:
        whole = data.of_divisors(layer)
        apart, _ = data.codesigned(layer, None)
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
    points, table = {}, []
    for layer in data.CONVOLUTIONS[2:]:
        found = data.curve(layer, data.BUDGETS)
        points[layer.name] = [(p.area, p.energy) for p in found]
        table += [
            (
                f"{layer.name}, {p.budget >> 10:,} KiB",
                f"{p.nbytes / 1024:,.0f}",
                f"{p.area:.1f}",
                f"{1 / p.energy:.1f}" + ("" if p.proved else " *"),
            )
            for p, before in zip(found, [None, *found], strict=False)
            if before is None or p.nbytes > before.nbytes
        ]
    page.table("budget | used KiB | area / DianNao | DianNao's optimum / this", table)
    page.figure(
        "figure7",
        curves(
            points,
            "Figure 7: energy against area",
            "DianNao with its optimal schedule is 1",
        ),
    )


def figure_8(page: Page) -> None:
    """Memory beside computation."""
    rows: list[Bar] = []
    table = []
    for layer in data.benchmarks():
        found, energy = data.codesigned(layer, 8 * data.MIB)
        memory = found.energy / layer.macs
        without = energy.without_compulsory / layer.macs
        rows.append((layer.name, "MAC", {"computation": data.MAC_PJ}))
        rows.append((layer.name, "mem", {"memory": memory}))
        table.append(
            (
                layer.name,
                f"{memory:.3g}" + ("" if found.proved else " *"),
                f"{without:.3g}",
                "yes" if memory < 0.8 * data.MAC_PJ else "no",
                "yes" if without < 0.8 * data.MAC_PJ else "no",
            )
        )
    page.table(
        "layer | memory, pJ/MAC | without compulsory DRAM | < 80 % of a MAC | "
        "the same without",
        table,
    )
    page.figure(
        "figure8",
        bars(
            rows,
            "Figure 8: energy of memory and of computation",
            "memories of 8 MB at most; a 16-bit multiplication takes 1 pJ",
            "pJ per MAC (log)",
            log=True,
            line=0.8,
        ),
    )
