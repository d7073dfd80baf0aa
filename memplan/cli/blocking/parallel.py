"""memplan blocking parallel"""

from __future__ import annotations

from collections.abc import Callable

import click

from memplan.blocking.cost.objective import Codesign
from memplan.blocking.design.cores_search import CoresNest, optimize_for_cores
from memplan.blocking.design.parallel import (
    SHARED,
    CoresEnergy,
    best_cores_energy,
    cores_energy,
)
from memplan.blocking.nest.array import MappingSearch
from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.nest import Nest
from memplan.blocking.planfile import mapping_entry
from memplan.blocking.search.result import Options
from memplan.blocking.search.spatial import search_datapath
from memplan.cli import arguments, show
from memplan.cli.blocking import meanings, options, report
from memplan.cli.blocking.meanings import searching
from memplan.cli.blocking.results import nest_entries
from memplan.errors import UsageError
from memplan.formats.plain import plain
from memplan.units import format_gap


@click.command("parallel")
@options.layer
@click.option(
    "--cores",
    default="1,2,4,8",
    metavar="N,...",
    help="Numbers of cores. Without --cores, memplan skips numbers that do not divide "
    "the nest's tiles evenly.",
)
@click.option(
    "--split",
    type=click.Choice(tuple(SHARED)),
    help="What to divide among the cores: the kernels (k) or the image (xy).  "
    "[default: both in turn]",
)
@click.option(
    "--string",
    metavar="LOOPS",
    help="Loop nest to spread over the cores, innermost first, instead of searching "
    "for one.",
)
@click.option(
    "--one-nest",
    is_flag=True,
    help="Spread the best nest for one core, instead of searching for each number of "
    "cores.",
)
@options.unroll_or_auto
@options.own_memories
@options.search
@options.json_
def command(
    layer: Layer,
    cores: str,
    split: str | None,
    string: str | None,
    one_nest: bool,
    unroll: str,
    objective: Codesign,
    how: Options,
    json_: bool,
) -> None:
    """Find the best nest for each number of cores that divide a layer.

    Cores that split the kernels share the input, and memplan sends every output to
    all cores. Cores that split the image share the kernels. Shared data goes to all
    cores at once, over wires as long as all memories are wide. For each number of
    cores and each split, memplan starts from the best nest for one core and
    searches for a better one. It prints both.

    --one-nest only spreads the best nest for one core; --string spreads a nest of
    yours. With --string, memplan keeps every buffer, as in the paper's figure 9;
    otherwise it keeps the buffers that take the least energy together. --unroll
    auto chooses the spatial mapping for one core. Each search takes at most 40
    seconds, mostly far less, unless you set --time-limit.

    \b
    Example: memplan blocking parallel --layer conv1 --cores 1,2,4,8 --split xy
    """
    numbers = _numbers(cores)
    splits = tuple(SHARED) if split is None else (split,)
    ways = [(n, way) for way in splits for n in numbers]
    mapping: MappingSearch | None = None
    if string is not None:
        if one_nest:
            raise UsageError("--one-nest is for a nest that is searched for")
        nest = meanings.nest(layer, string, unroll)
    else:
        datapath = meanings.datapath_or_array(unroll)
        with searching(how.method) as progress:
            best = search_datapath(layer, datapath, objective, how, progress)
        report.note_if_interrupted(best)
        nest, mapping = best.nest, best.mapping
    priced = best_cores_energy if string is None else cores_energy
    bars = _priced(nest, ways, objective, priced)
    searched: list[CoresNest] = []
    if string is None and not one_nest and not best.interrupted:
        possible = [(one.cores, one.split) for one in bars]
        with searching("cores") as progress:
            searched = optimize_for_cores(nest, possible, objective, how, progress)
    if json_:
        entries = _entries(nest, mapping, objective, bars, searched)
        show.as_json(entries, "memplan.blocking-parallel")
        return
    rows = [("layer", report.layer_text(layer)), *report.loop_rows(nest)]
    if mapping is not None:
        rows += report.mapping_rows(nest, mapping)
    else:
        rows += [("datapath", report.unroll_text(nest) or "one MAC")]
    rows += [*report.bits_rows(objective), *report.memory_rows(objective)]
    show.facts(f"memplan: {layer.name}", rows)
    for way in splits:
        show.line("")
        if searched:
            own = [one for one in searched if one.energy.split == way]
            _table(layer, way, [one.energy for one in own])
            show.line("")
            _nests(layer, own)
        else:
            _table(layer, way, [one for one in bars if one.split == way])


def _priced(
    nest: Nest,
    ways: list[tuple[int, str]],
    objective: Codesign,
    priced: Callable[[Nest, int, str, Codesign], CoresEnergy],
) -> list[CoresEnergy]:
    """Energies by number of cores and split; of the default numbers those that share
    the nest's tiles evenly. priced: counts one of them."""
    found = []
    for cores, way in ways:
        try:
            found.append(priced(nest, cores, way, objective))
        except UsageError:
            if cores == 1 or arguments.given("cores"):
                raise
    return found


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not part.isdecimal() or int(part) < 1:
            problem = f"{part!r} is no number of cores from 1 up"
            raise UsageError(f"--cores {text}: {problem}")
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


def _nests(layer: Layer, found: list[CoresNest]) -> None:
    """The nests, and how much better than the one of one core they are."""
    rows = []
    for one in found:
        energies = one.energy.total, one.one_nest.total
        cells = [f"{pj / layer.macs:.4f}" for pj in energies]
        rows.append([str(one.energy.cores), *cells, format_gap(one.gap), str(one.nest)])
    columns = ["cores", "all", "one nest", "gap", "loops"]
    show.table("Nests for so many cores, and one core's on them", columns, rows)


def _entries(
    nest: Nest,
    mapping: MappingSearch | None,
    objective: Codesign,
    bars: list[CoresEnergy],
    searched: list[CoresNest],
) -> dict[str, object]:
    layer = nest.layer
    found = [one.energy for one in searched] or bars
    return {
        **nest_entries(nest),
        "mapping": mapping_entry(mapping),
        "bits": plain(objective.precision),
        "cores": [_bar(layer, one) for one in found],
        "one_nest": [_bar(layer, one) for one in bars],
        "nests": [
            {
                "string": str(one.nest),
                "lower_bound_pJ": one.lower_bound,
                **show.picked(one, "gap", cores="energy.cores", split="energy.split"),
            }
            for one in searched
        ],
    }


def _bar(layer: Layer, one: CoresEnergy) -> dict[str, object]:
    energies = {"private_pJ": "private", "last_level_pJ": "last", "dram_pJ": "main"}
    energies |= {"shuffle_pJ": "shuffle", "energy_pJ": "total"}
    picked = show.picked(one, "cores", "split", "sram_bytes", **energies)
    return {**picked, "energy_per_mac_pJ": one.total / layer.macs}
