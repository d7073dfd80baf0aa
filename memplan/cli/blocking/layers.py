"""memplan blocking layers"""

from __future__ import annotations

import click

from memplan.blocking.cost.pricing import MAIN
from memplan.blocking.design.networks import NETWORKS
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.machine.hierarchy_file import load_hierarchy, presets
from memplan.blocking.nest.layer import DIMS, PAPER_LAYERS, Layer, elements
from memplan.cli import show
from memplan.cli.blocking import options, report
from memplan.cli.blocking.entries import layer_entry


@click.command("layers")
@options.json_
def command(json_: bool) -> None:
    """List the layers of the paper's Table 4, networks and hierarchies.

    \b
    Example: memplan blocking layers
    """
    hierarchies = [load_hierarchy(name) for name in presets()]
    if json_:
        show.as_json(
            {
                "schema": "memplan.blocking-layers",
                "version": 1,
                "layers": {
                    name: layer_entry(one) for name, one in PAPER_LAYERS.items()
                },
                "networks": {
                    name: [layer_entry(one) for one in network]
                    for name, network in NETWORKS.items()
                },
                "hierarchies": {one.name: _hierarchy(one) for one in hierarchies},
            }
        )
        return
    columns = ("layer", *DIMS, "stride", "MACs", "elements")
    rows = [_row(name, layer) for name, layer in PAPER_LAYERS.items()]
    show.table("Layers, the paper's Table 4", columns, rows)
    show.line("")
    networks = []
    for name, network in NETWORKS.items():
        macs = report.amount(sum(layer.macs for layer in network))
        networks.append((name, f"{len(network)} layers, {macs} MACs"))
    show.facts("Networks", networks)
    show.line("")
    show.line("Hierarchies")
    for one in hierarchies:
        show.line(f"  {one.name}: {one.title}")
        for level in one.levels:
            show.line(f"    {report.level_text(level)}")
        show.line(f"    {MAIN}, {one.dram_pj:g} pJ for 16 bits")


def _row(name: str, layer: Layer) -> list[str]:
    total = sum(elements(layer, tensor) for tensor in layer.tensors)
    sizes = [f"{layer.size(dim):,}" for dim in DIMS]
    stride = f"{layer.stride[0]}"
    return [name, *sizes, stride, report.amount(layer.macs), report.amount(total)]


def _hierarchy(one: Hierarchy) -> dict[str, object]:
    return {
        "title": one.title,
        "source": one.source,
        "dram_pJ": one.dram_pj,
        "mac_pJ": one.mac_pj,
        "levels": [
            {
                "name": level.name,
                "shared_bytes": level.shared,
                "private_bytes": None
                if level.private_bytes is None
                else {t.value: size for t, size in level.private_bytes.items()},
            }
            for level in one.levels
        ],
    }
