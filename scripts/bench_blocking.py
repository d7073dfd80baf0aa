"""Blocking: the optimum and its time, layer by layer, and ZigZag beside it.

    python scripts/bench_blocking.py [--repeats 5] [--zigzag PYTHON]
    python scripts/bench_blocking.py --code [FILE.toml] [--repeats 5]

Energies are of memory accesses, pJ; sizes are rounded up to a datapath of 16 x 16
channels, and pJ per multiplication are of those the layer really has. --zigzag: an
interpreter that has zigzag-dse, if this one has not. --code: instead, emitted code
beside im2col with a matrix product and torch, on one thread; for the caches of a file.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import blocking_code
from bench.against_zigzag import LPF_LIMIT, MEMORIES, UNROLL, ask_zigzag, private
from bench.blocking_page import Page

from memplan.blocking.cost.evaluation import evaluate
from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.machine.hierarchy_file import load_hierarchy
from memplan.blocking.nest.layer import PAPER_LAYERS
from memplan.blocking.nest.nest import parse_nest
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options, Result

EXACT = Options()
CONVOLUTIONS = [PAPER_LAYERS[f"conv{i}"] for i in range(1, 6)]
PAPER_BASELINES = {  # DianNao's own schedule, x split once more (paper, section 5.2)
    "conv1": "X4 C16 Fw11 Fh11 C256 K384 X256 Y256",
    "conv2": "X4 C16 Fw9 Fh9 C32 K48 X500 Y375",
    "conv3": "X4 C16 Fw4 Fh4 C112 K208 X32 Y32",
    "conv4": "X4 C32 Fw3 Fh3 C128 K256 X56 Y56",
    "conv5": "X4 C32 Fw3 Fh3 C256 K512 X28 Y28",
}


def timed(search: Callable[[], Result], repeats: int) -> tuple[Result, list[float]]:
    """What it finds, and its seconds, ascending; the first run is not counted."""
    seconds: list[float] = []
    for run in range(repeats + 1):
        begin = time.perf_counter()
        found = search()
        if run:
            seconds.append(time.perf_counter() - begin)
    return found, sorted(seconds)


def spread(seconds: list[float]) -> str:
    """Median, and the extremes."""
    middle = statistics.median(seconds)
    return f"{middle:>9.3f}{seconds[0]:>9.3f}{seconds[-1]:>9.3f}"


def show(
    title: str, objective: Objective, repeats: int, options: Options = EXACT
) -> None:
    """One row a layer: the energy found, how good it is, and how long it took."""
    print(f"\n{title}")
    print(
        f"{'layer':<7}{'pJ':>13}{'pJ/MAC':>9}{'gap':>8}{'SRAM KiB':>10}"
        f"{'median s':>9}{'min':>9}{'max':>9}"
    )
    for layer in CONVOLUTIONS:
        found, seconds = timed(
            partial(optimize, layer, UNROLL, objective, options), repeats
        )
        gap = "unknown" if found.gap is None else f"{100 * found.gap:.2f} %"
        kib = ""
        if isinstance(objective, Codesign):
            detail = evaluate(layer, found.nest, objective)
            kib = f"{detail.sram_bytes / 1024:,.0f}"
        print(
            f"{layer.name:<7}{found.energy:>13.6g}{found.energy / layer.macs:>9.3f}"
            f"{gap:>8}{kib:>10}{spread(seconds)}"
        )


def baselines() -> None:
    """DianNao's own schedule beside the optimum for it."""
    print("\nDianNao, own schedule / optimum (paper, Figure 5)")
    diannao = load_hierarchy("diannao")
    for layer in CONVOLUTIONS:
        nest = parse_nest(PAPER_BASELINES[layer.name.lower()], layer, UNROLL)
        own = Fixed(diannao).evaluate(nest)
        best = optimize(layer, UNROLL, Fixed(diannao)).energy
        print(
            f"{layer.name:<7}{own / layer.macs:>9.2f} / {best / layer.macs:.2f} pJ/MAC "
            f"= {own / best:.1f}"
        )


def zigzag(python: str, repeats: int) -> None:
    """Both, in turn, on the same memories."""
    print(f"\nZigZag (LOMA, lpf_limit {LPF_LIMIT}) on the same memories, KiB of I/K/O")
    print(
        f"{'layer':<7}{'memories':<22}{'memplan pJ':>12}{'ZigZag pJ':>12}"
        f"{'ratio':>7}{'s':>8}{'s':>8}{'faster':>8}"
    )
    for name, levels in MEMORIES.items():
        hierarchy = private(levels)
        for layer in (PAPER_LAYERS["conv4"], PAPER_LAYERS["conv5"]):
            ours, theirs, pj = [], [], 0.0
            for _ in range(repeats):
                try:
                    answer = ask_zigzag(python, layer, UNROLL, hierarchy)
                except RuntimeError as reason:
                    print(f"ZigZag was left out: {reason}")
                    return
                theirs.append(answer.seconds)
                pj = answer.pj
                found, seconds = timed(
                    partial(optimize, layer, UNROLL, Fixed(hierarchy)), 1
                )
                ours += seconds
            mine, its = statistics.median(ours), statistics.median(theirs)
            print(
                f"{layer.name:<7}{name:<22}{found.energy:>12.4g}{pj:>12.4g}"
                f"{found.energy / pj:>7.2f}{mine:>8.3f}{its:>8.2f}{its / mine:>7.0f}x"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--zigzag", default=sys.executable, metavar="PYTHON")
    parser.add_argument(
        "--budget", action="store_true", help="Conv1 in 8 MiB too: takes a minute"
    )
    parser.add_argument(
        "--code",
        nargs="?",
        const="xeon-e5645",
        metavar="NAME|FILE",
        help="emitted code beside im2col and torch, blocked for these caches",
    )
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error("--repeats must be at least 1")
    if args.code is not None:
        with tempfile.TemporaryDirectory() as folder:
            page = Page(Path(folder))
            blocking_code.section(page, args.code, args.repeats)
            page.write()
            print(Path(folder, "blocking.md").read_text("utf-8"))
        return
    show("Own memory for each buffer, exact", Codesign(), args.repeats)
    show("The same, by the paper's beam", Codesign(), 1, Options("beam"))
    show("DianNao, exact", Fixed(load_hierarchy("diannao")), args.repeats)
    baselines()
    if args.budget:
        show("Own memories of 8 MiB in all, exact", Codesign(budget=8 << 20), 1)
        show("Own memories of 1 MiB in all, exact", Codesign(budget=1 << 20), 1)
    zigzag(args.zigzag, args.repeats)


if __name__ == "__main__":
    main()
