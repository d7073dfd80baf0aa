"""memplan blocking network"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import click

from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.design.network import NETWORKS, distinct
from memplan.blocking.design.network_design import (
    MAX_LEVELS,
    NetworkDesign,
    design_network,
)
from memplan.blocking.design.network_mappings import design_mapped_network
from memplan.blocking.machine.technology import Technology
from memplan.blocking.nest.array import parse_array
from memplan.blocking.run.inventory import ModelLayer
from memplan.blocking.run.models import is_model
from memplan.blocking.search.result import Options
from memplan.cli import show
from memplan.cli.blocking import meanings, options, report, results
from memplan.cli.progress import working
from memplan.errors import UsageError
from memplan.units import format_bytes, format_gap, format_seconds

_LEVELS = 2  # memories a tensor


@click.command("network")
@click.argument("network", metavar="NETWORK")
@options.machine()
@click.option(
    "--levels",
    type=click.IntRange(1, MAX_LEVELS),
    metavar="N",
    help=f"Largest number of memories per tensor, with --budget.  [default: {_LEVELS}]",
)
@options.unroll_or_auto
@options.minimize("Only with --memory.")
@options.search
@options.ray
@options.output
def command(
    network: str,
    objective: Objective,
    levels: int | None,
    unroll: str,
    how: Options,
    ray: str | None,
    output: results.Output,
) -> None:
    """Block every layer of a network for one hierarchy that all layers share.

    NETWORK is alexnet, vgg-b, vgg-d, model.py:factory or model.onnx. Give the
    hierarchy with --memory, or let memplan design one whose memories fit --budget.
    memplan leaves out layers without weights.

    With --budget, memplan first compares memories by nests whose extents divide
    each other, then searches all nests on the chosen memories. The result takes at
    most the energy of the paper's method, which picks the best design among the ten
    best of every layer. The gaps of layers refer to nests on the chosen memories.
    The gap of the sizes compares with a design in which each layer has all memories
    for itself.

    --unroll auto chooses each layer's spatial mapping. With --budget, it alternates
    between memories and mappings as long as the energy falls.

    \b
    Example: memplan blocking network alexnet --budget 1MiB
    """
    if isinstance(objective, Fixed):
        if levels is not None:
            raise UsageError("--levels is for a --budget; leave it out")
        layers = _layers(network)
        tasks = meanings.tasks(layers, objective, unroll, how)
        found = meanings.swept("layers", tasks, how.threads, ray)
        plan = results.planned(layers, found, objective)
        results.hand_over(plan, objective, output)
        return
    if objective.budget is None:
        raise UsageError("give --memory for a hierarchy, or --budget to look for one")
    if ray is not None:
        raise UsageError("--ray is for a given --memory; leave it out")
    if how.minimize != "energy":
        raise UsageError("--minimize is for a given --memory; leave it out")
    design = _designed(_layers(network), unroll, objective, levels or _LEVELS, how)
    if not design.complete:
        show.complaint("stopped before all memories were looked at")
    chosen = Fixed(design.network.hierarchy)
    plan = results.planned(
        [ModelLayer(one.layer, one.count) for one in design.network.layers],
        [one.result for one in design.network.layers],
        chosen,
    )
    plan = replace(plan, budget=objective.budget)
    rows = _rows(design, objective.technology)
    results.hand_over(plan, chosen, output, _entries(design), rows)


def _designed(
    layers: Sequence[ModelLayer],
    unroll: str,
    objective: Codesign,
    levels: int,
    how: Options,
) -> NetworkDesign:
    """The memories that all layers need least energy with."""
    weighted = _with_weights(layers)
    with working("memories") as report_line:

        def progress(energy: float, seconds: float) -> None:
            report_line(f"{report.energy(energy)}, {format_seconds(seconds)}")

        array = parse_array(unroll)
        kept, within = [one.layer for one in weighted], objective.budget or 0
        if array is not None:
            designed = partial(design_mapped_network, kept, array, within)
        else:
            datapath = meanings.datapath(unroll)
            designed = partial(design_network, kept, datapath, within)
        return designed(
            levels=levels,
            counts=[one.count for one in weighted],
            objective=objective,
            options=how,
            progress=progress,
        )


def _layers(network: str) -> list[ModelLayer]:
    """Layers that differ, and how often each is run."""
    if is_model(network):
        every = meanings.all_layers([network])
    elif network.lower() in NETWORKS:
        every = [ModelLayer(layer, 1) for layer in NETWORKS[network.lower()]]
    else:
        raise UsageError(
            f"{network!r} is no network: give one of {', '.join(NETWORKS)}, or "
            "model.py:factory, or model.onnx"
        )
    pairs = distinct([one.layer for one in every], [one.count for one in every])
    return [ModelLayer(layer, count) for layer, count in pairs]


def _with_weights(layers: Sequence[ModelLayer]) -> list[ModelLayer]:
    """Those that a datapath of multipliers by weights works on."""
    for one in layers:
        if not one.layer.kernel:
            show.note(f"left out {one.layer.name}: it has no weights")
    kept = [one for one in layers if one.layer.kernel]
    if not kept:
        raise UsageError("no layer has weights; give --memory instead of --budget")
    return kept


def _rows(design: NetworkDesign, technology: Technology) -> list[tuple[str, str]]:
    """How large the memories are, and how much better than the paper's method's."""
    common, own = design.common.energy, design.network.energy
    better = f"{report.energy(common)}, {format_gap(common / own - 1)} more"
    return [
        ("on the chip", f"{format_bytes(design.network.nbytes)}"),
        ("sizes", _sizes_gap(design)),
        ("area", report.area_text(design.network.mm2, technology)),
        ("the paper's way", f"{better}: in every layer's {design.considered:,} best"),
        ("found in", format_seconds(design.seconds)),
    ]


def _sizes_gap(design: NetworkDesign) -> str:
    """How much better other memories may be; the layers' own gaps are on these."""
    if design.gap is None or design.lower_bound is None:
        return "the best found, not proved: gaps are of nests on them"
    least = report.energy(design.lower_bound)
    return f"within {format_gap(design.gap)} of what none take less than, {least}"


def _entries(design: NetworkDesign) -> dict[str, object]:
    return {
        **show.picked(design, "sizes", "complete", "seconds"),
        **show.picked(design.network, sram_bytes="nbytes", area_mm2="mm2"),
        "common_energy_pJ": design.common.energy,
        "common_of_best": design.considered,
        "sizes_lower_bound_pJ": design.lower_bound,
        "sizes_gap": design.gap,
    }
