"""memplan blocking layers"""

from __future__ import annotations

import click

from memplan.blocking.cost.placement import MAIN
from memplan.blocking.design.network import NETWORKS
from memplan.blocking.machine.hierarchy import Hierarchy, load_hierarchy, presets
from memplan.blocking.nest.layer import DIMS, PAPER_LAYERS, Layer, elements
from memplan.blocking.run.inventory import ModelLayer, ModelLayers
from memplan.blocking.run.models import is_model, layers_of_source
from memplan.cli import show
from memplan.cli.blocking import meanings, options, report
from memplan.cli.blocking.meanings import share_text
from memplan.cli.blocking.results import layer_entry
from memplan.errors import UsageError
from memplan.units import format_gap


@click.command("layers")
@click.argument("model", required=False)
@options.json_
def command(model: str | None, json_: bool) -> None:
    """List the layers, networks and hierarchies that come with memplan, or a model's
    layers.

    MODEL is model.py:factory, a function that returns a PyTorch model and its
    inputs, or model.onnx. If an ONNX file leaves dimensions open, append their
    sizes: model.onnx:batch=8. memplan also lists operations that belong to no
    layer, with their share of the multiply-adds if that is known. For a PyTorch
    model, it compares the multiply-adds with torch's own counter, if torch can
    count the operation.

    \b
    Example: memplan blocking layers model.py:factory
    """
    if model is not None:
        _of_model(model, json_)
        return
    hierarchies = [load_hierarchy(name) for name in presets()]
    if json_:
        networks = NETWORKS.items()
        entries = {
            "layers": {name: layer_entry(one) for name, one in PAPER_LAYERS.items()},
            "networks": {name: list(map(layer_entry, each)) for name, each in networks},
            "hierarchies": {one.name: _hierarchy(one) for one in hierarchies},
        }
        show.as_json(entries, "memplan.blocking-layers")
        return
    columns = ("layer", *DIMS, "stride", "MACs", "elements")
    paper = [_row(name, layer) for name, layer in PAPER_LAYERS.items()]
    show.table("Layers, the paper's Table 4", columns, paper)
    show.line("")
    rows = []
    for name, network in NETWORKS.items():
        macs = report.amount(sum(layer.macs for layer in network))
        rows.append((name, f"{len(network)} layers, {macs} MACs"))
    show.facts("Networks", rows)
    show.line("")
    show.line("Hierarchies")
    for one in hierarchies:
        show.line(f"  {one.name}: {one.title}")
        for level in one.levels:
            show.line(f"    {report.level_text(level)}")
        show.line(f"    {MAIN}, {one.dram_pj:g} pJ for 16 bits")


def _of_model(text: str, json_: bool) -> None:
    """A model's layers, what is in none of them, and what torch counts."""
    if not is_model(text):
        raise UsageError(f"{text!r} is no model: give model.py:factory or model.onnx")
    found = layers_of_source(text)
    if json_:
        layers = [
            {**layer_entry(one.layer), "count": one.count} for one in found.layers
        ]
        entries = {**meanings.model_entries(found), "layers": layers}
        show.as_json(entries, "memplan.blocking-model")
        return
    rows = [("multiply-adds", f"{found.macs:,}"), ("in layers", f"{found.counted:,}")]
    show.facts(f"memplan: {text}", [*rows, ("checked", meanings.check_text(found))])
    for note in found.notes:
        show.note(note)
    show.line("")
    dims = [d for d in DIMS if any(one.layer.size(d) > 1 for one in found.layers)]
    columns = ["layer", *dims, "stride", "runs", "MACs", "share"]
    own = [_model_row(found, one, dims) for one in found.layers]
    show.table("Layers: MACs of one run, the share of all its runs", columns, own)
    if found.left_out:
        show.line("")
        pairs = [
            (f"{a.where}: {a.reason}", share_text(found, a)) for a in found.left_out
        ]
        show.table("In no layer", ["operation", "multiply-adds"], pairs)


def _model_row(model: ModelLayers, one: ModelLayer, dims: list[str]) -> list[str]:
    """A layer's sizes along `dims`: others are 1 in all layers."""
    layer = one.layer
    sizes = [f"{layer.size(dim):,}" for dim in dims]
    stride = "x".join(map(str, dict.fromkeys(layer.stride)))
    share = format_gap(model.share(one.count * layer.macs)) if layer.kernel else "none"
    macs = report.amount(layer.macs)
    return [layer.name, *sizes, stride, f"{one.count:,}", macs, share]


def _row(name: str, layer: Layer) -> list[str]:
    total = sum(elements(layer, tensor) for tensor in layer.tensors)
    sizes = [f"{layer.size(dim):,}" for dim in DIMS]
    stride = f"{layer.stride[0]}"
    return [name, *sizes, stride, report.amount(layer.macs), report.amount(total)]


def _hierarchy(one: Hierarchy) -> dict[str, object]:
    return {
        **show.picked(one, "title", "source", dram_pJ="dram_pj", mac_pJ="mac_pj"),
        "levels": [
            show.picked(level, "name", "private_bytes", shared_bytes="shared")
            for level in one.levels
        ],
    }
