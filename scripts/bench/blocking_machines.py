"""What a machine of several cores, or of other spatial mappings, makes of layers."""

from __future__ import annotations

from functools import cache

from bench import blocking_figures as data
from bench.blocking_figures import NAMES
from bench.blocking_page import Bar, Page, bars
from memplan.blocking.cost.latency import datapath_steps
from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.design.cores_search import CoresNest, optimize_for_cores
from memplan.blocking.design.network import NETWORKS
from memplan.blocking.design.network_design import design_network
from memplan.blocking.design.parallel import CoresEnergy, cores_energy
from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.nest.array import Array
from memplan.blocking.nest.layer import Layer, parse_layer
from memplan.blocking.nest.nest import parse_nest
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options, Result
from memplan.blocking.search.spatial import search_datapath

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
    layer = data.CONVOLUTIONS[0]
    one = optimize(layer, data.UNROLL, Codesign()).nest
    return optimize_for_cores(one, [(n, way) for way, n in _WAYS])


def figure_9(page: Page) -> None:
    """Several cores."""
    layer = data.CONVOLUTIONS[0]
    nests = [parse_nest(text, layer, data.UNROLL) for text in SCHEDULES]
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
            bars_ = [one.total / layer.macs for one in own if one.split == split]
            table.append((f"{name}, {shared} shared", *(f"{pj:.3f}" for pj in bars_)))
    for split, shared in _SHARED:
        gaps = [one.gap for one in anew() if one.energy.split == split]
        table.append((f"searched, {shared} shared: gap", *(f"{g:.1%}" for g in gaps)))
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
            (
                dict(_SHARED)[one.energy.split],
                str(one.energy.cores),
                f"{one.energy.total / layer.macs:.4f}",
                f"{one.energy.sram_bytes / 1024:,.0f}",
                f"`{one.nest}`",
            )
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
        fixed = optimize(layer, data.UNROLL, diannao)
        found = search_datapath(layer, Array(), diannao)
        assert found.mapping is not None
        chosen = ",".join(f"{dim}{n}" for dim, n in found.nest.unroll.items())
        rows.append(
            (
                text,
                f"{fixed.energy / layer.macs:.3f}",
                f"{_used(fixed):.1%}",
                f"{found.energy / layer.macs:.3f}" + " *" * (not found.proved),
                f"{_used(found):.1%}",
                f"{found.energy / fixed.energy:.3f}",
                chosen,
                f"{found.mapping.mappings:,}",
                f"{found.mapping.searched}",
            )
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
        for budget in (data.MIB, 8 * data.MIB):
            options = Options(time_limit=data.TIME_LIMIT)
            found = design_network(layers, _datapath, budget, options=options)
            paper, ours = found.common.energy, found.network.energy
            rows.append(
                (
                    name,
                    f"{budget // data.MIB} MiB",
                    f"{paper / 1e9:.3f}",
                    f"{ours / 1e9:.3f}" + ("" if found.complete else " *"),
                    f"{ours / paper:.3f}",
                    "" if found.gap is None else f"{found.gap:.1%}",
                    f"{found.seconds:.0f}",
                )
            )
    page.table(
        "network | budget | paper's method, mJ | memplan, mJ | ratio | gap | seconds",
        rows,
    )


def _datapath(layer: Layer) -> dict[str, int]:
    """The paper's, cut to the channels that the layer has."""
    return {dim: min(count, layer.size(dim)) for dim, count in data.UNROLL.items()}
