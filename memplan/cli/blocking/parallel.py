"""memplan blocking parallel"""

from __future__ import annotations

from pathlib import Path

import click

from memplan.blocking.cost.objective import Codesign
from memplan.blocking.design.parallel import SHARED, CoresEnergy, cores_energy
from memplan.blocking.nest.layer import Layer, parse_layer
from memplan.blocking.nest.nest import Nest, parse_nest
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options
from memplan.cli import arguments, show
from memplan.cli.blocking import options, report
from memplan.cli.blocking.entries import bits_entry, layer_entry
from memplan.cli.blocking.progress import searching
from memplan.errors import UsageError


@click.command("parallel")
@options.layer
@click.option(
    "--cores",
    default="1,2,4,8",
    show_default=True,
    metavar="N,...",
    help="How many cores; of the default those that share the nest's tiles evenly.",
)
@click.option(
    "--split",
    type=click.Choice(tuple(SHARED)),
    help="What cores split: the kernels (k), or the image (xy).  [default: each]",
)
@click.option(
    "--string",
    metavar="LOOPS",
    help="The loop nest, innermost first.  [default: the best found for one core]",
)
@options.unroll_or_auto
@options.budget
@options.precision
@options.search
@options.json_
def command(
    layer_text: str,
    cores: str,
    split: str | None,
    string: str | None,
    unroll: str,
    budget: str | None,
    bits: str | None,
    technology: Path | None,
    time_limit: float | None,
    threads: int | None,
    json_: bool,
) -> None:
    """Spread a layer over several cores, whose last memories are split or shared.

    Cores that split the kernels share the input, and every output is then handed to
    all; cores that split the image share the kernels. What is shared is sent to all
    at once, over wires as long as all memories are wide.

    \b
    Example: memplan blocking parallel --layer conv1 --cores 1,2,4,8 --split xy
    """
    layer = parse_layer(layer_text)
    numbers = _numbers(cores)
    objective = options.own_memories(budget, bits, technology)
    datapath = options.datapath(unroll)
    if string is not None:
        nest = parse_nest(string, layer, datapath)
    else:
        how = Options(time_limit=time_limit, threads=threads)
        with searching(how.method) as progress:
            best = optimize(layer, datapath, objective, how, progress)
        report.note_if_interrupted(best)
        nest = best.nest
    splits = tuple(SHARED) if split is None else (split,)
    found = _priced(nest, [(n, way) for way in splits for n in numbers], objective)
    if json_:
        show.as_json(_entries(nest, objective, found))
        return
    rows = [("layer", report.layer_text(layer)), *report.loop_rows(nest)]
    rows += [*report.bits_rows(objective), *report.memory_rows(objective)]
    show.facts(f"memplan: {layer.name}", rows)
    for way in splits:
        show.line("")
        _table(layer, way, [one for one in found if one.split == way])


def _priced(
    nest: Nest, ways: list[tuple[int, str]], objective: Codesign
) -> list[CoresEnergy]:
    """Energies by number of cores and split; of the default numbers those that share
    the nest's tiles evenly."""
    found = []
    for cores, way in ways:
        try:
            found.append(cores_energy(nest, cores, way, objective))
        except UsageError:
            if cores == 1 or arguments.given("cores"):
                raise
    return found


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not part.isdecimal() or int(part) < 1:
            raise UsageError(
                f"--cores {text}: {part!r} is no number of cores from 1 up"
            )
    return list(map(int, parts))


def _table(layer: Layer, way: str, found: list[CoresEnergy]) -> None:
    tensors = layer.tensors
    columns = ["cores", "private", *(f"last {t.value}" for t in tensors)]
    columns += ["DRAM", "shuffle", "all"]
    rows = []
    for one in found:
        parts = [one.private, *(one.last[t] for t in tensors), one.main, one.shuffle]
        cells = [f"{pj / layer.macs:.4f}" for pj in (*parts, one.total)]
        rows.append([str(one.cores), *cells])
    shared = SHARED[way].value
    what = "kernels" if way == "k" else "image"
    title = f"Energy, pJ per MAC: cores split the {what} and share the {shared}"
    show.table(title, columns, rows)


def _entries(
    nest: Nest, objective: Codesign, found: list[CoresEnergy]
) -> dict[str, object]:
    layer = nest.layer
    return {
        "schema": "memplan.blocking-parallel",
        "version": 1,
        "layer": layer_entry(layer),
        "string": str(nest),
        "unroll": dict(nest.unroll),
        "bits": bits_entry(objective.precision),
        "cores": [
            {
                "cores": one.cores,
                "split": one.split,
                "private_pJ": one.private,
                "last_level_pJ": {t.value: pj for t, pj in one.last.items()},
                "dram_pJ": one.main,
                "shuffle_pJ": one.shuffle,
                "energy_pJ": one.total,
                "energy_per_mac_pJ": one.total / layer.macs,
            }
            for one in found
        ],
    }
