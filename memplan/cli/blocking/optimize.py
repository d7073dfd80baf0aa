"""memplan blocking optimize"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

import click

from memplan.blocking.cost.objective import Fixed, Objective
from memplan.blocking.machine.registers import RegisterTile, target_of
from memplan.blocking.nest.precision import FORMATS
from memplan.blocking.run.inventory import ModelLayer
from memplan.blocking.run.models import is_model
from memplan.blocking.search.result import METHODS, Options, Result
from memplan.blocking.search.spatial import search_datapath
from memplan.cli import arguments, show
from memplan.cli.blocking import meanings, options, results
from memplan.cli.blocking.meanings import BITS, CACHES
from memplan.errors import UsageError
from memplan.units import format_gap


def _tile_of(found: Result, target: str) -> RegisterTile:
    """The register tile that is the datapath of a result."""
    lanes, unroll = target_of(target).lanes, found.nest.unroll
    x, y, k = (unroll.get(dim, 1) for dim in ("X", "Y", "K"))
    return RegisterTile(lanes, k // lanes, x, y)


def _code_entries(found: Sequence[Result], target: str) -> list[dict[str, object]]:
    """For each layer the tile, and the least energy that was found with it if code
    does not matter."""
    return [
        {
            "layer": one.nest.layer.name,
            "target": target,
            "tile": _tile_of(one, target).unroll,
            "free_energy_pJ": one.free_energy,
        }
        for one in found
    ]


def _code_rows(
    layers: Sequence[ModelLayer], found: Sequence[Result], target: str
) -> list[tuple[str, str]]:
    """The tile, of one layer, and what it costs that the nests are those for code, of
    each layer as often as it is run."""
    runs = [(one.count, own) for one, own in zip(layers, found, strict=True)]
    energy = sum(count * own.energy for count, own in runs)
    free = sum(count * (own.free_energy or own.energy) for count, own in runs)
    more = (energy - free) / sum(count * own.nest.layer.macs for count, own in runs)
    price = f"{format_gap(energy / free - 1)}, {more:.3g} pJ/MAC, more than the best"
    if len(found) > 1:
        return [("for code", f"{target}, {price} found on the same tiles")]
    return [
        ("for code", f"{target}, {price} found on the same tile"),
        ("tile", str(_tile_of(found[0], target))),
    ]


def _say_next(
    found: Sequence[Result],
    texts: Sequence[str],
    memory: str | None,
    objective: Objective,
    target: str,
) -> None:
    """The command that writes the code of a single layer, not one of a model; with the
    memory that was searched for, if that is caches, and with a word where that was for
    other elements than the code has."""
    if len(found) > 1 or is_model(texts[0]):
        return
    nest = found[0].nest
    datapath = ",".join(f"{dim}{n}" for dim, n in nest.unroll.items()) or "none"
    parts = ["memplan", "blocking", "emit", "--layer", texts[0], "--unroll", datapath]
    parts += ["--string", str(nest), "--target", target]
    if isinstance(objective, Fixed) and all(
        level.cache for level in objective.hierarchy.levels
    ):
        parts += ["--cache", memory or CACHES]
    if objective.precision != FORMATS[BITS]:
        bits = objective.precision
        show.note(f"emit writes floats: nests for {bits} elements may not suit them")
    show.line(f"  next: {shlex.join([*parts, '-o', 'conv.cpp'])}", err=True)


@click.command("optimize")
@options.layers
@options.machine(options.OWN)
@options.unroll_or_auto
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default=METHODS[0],
    help="Nests to search. whole: all nests, with a bound; divisors: nests whose "
    "extents divide each other, with a proof.",
)
@options.minimize()
@click.option(
    "--front",
    is_flag=True,
    help="Also list the best trade-offs found between energy and cycles; needs a "
    "hierarchy with bandwidths.",
)
@options.target(
    "--for-code",
    said="Search only nests that run well as C++ for these vectors (memplan blocking "
    "emit). The datapath is then a tile of the output in vector registers, in place of "
    f"--unroll. Changes the default of --memory to {CACHES} and of --bits to {BITS}.",
)
@options.search
@options.ray
@options.output
def command(
    layer_texts: tuple[str, ...],
    memory: str | None,
    objective: Objective,
    unroll: str,
    how: Options,
    ray: str | None,
    output: results.Output,
) -> None:
    """Find the loop nest of least energy for a layer, or for several.

    Without --memory, every buffer has a memory of its own size; --budget limits
    their sum. memplan prints the gap: how much less energy any nest could take at
    most. If there is no gap, the nest is proved optimal. --method divisors searches
    only nests whose extents divide each other and which do not split the window,
    and proves the best of these.

    A layer takes at most ten seconds on two cores, unless you set --time-limit. On
    Ctrl-C, memplan keeps the best nest so far and its gap. With --method divisors
    or several layers, Ctrl-C ends the search without a result.

    --minimize cycles and edp need bandwidths in the hierarchy's file. They run
    several searches of four seconds each and have their own bound.

    --unroll auto runs a search for each spatial mapping, for at most half a minute
    or --time-limit. It prints how many mappings it searched, ruled out by bounds,
    or did not reach. Idle multipliers cost no energy here, so look at the share of
    the array that is used, or minimize cycles.

    --for-code runs up to three searches: around a register tile with few channels,
    around one with more, and among all nests on the same tile. It prints how much
    more energy the nest takes than the best of all nests found; the gap is relative
    to all nests.

    \b
    Example: memplan blocking optimize --layer conv4 --memory diannao
    \b
    Example: memplan blocking optimize --layer conv5 --unroll auto:8x32
    """
    target = how.target
    if target is not None:
        arguments.refuse(
            {"unroll": "--unroll"}, "not for --for-code, whose datapath is a tile"
        )
        target = target_of(target).name  # this machine's, wherever searches run
        how = replace(how, target=target)
    given = meanings.all_layers(layer_texts)
    tasks = meanings.tasks(given, objective, unroll, how)
    if len(tasks) > 1:
        found = meanings.swept("optimize", tasks, how.threads, ray)
    elif ray is not None:
        raise UsageError("--ray is for several layers; leave it out")
    else:
        task = tasks[0]
        with meanings.searching(how.method) as progress:
            best = search_datapath(task.layer, task.datapath, objective, how, progress)
            found = [best]
    plan = results.planned(given, found, objective)
    if target is None:
        results.hand_over(plan, objective, output)
        return
    more = {"for_code": _code_entries(found, target)}
    rows = _code_rows(given, found, target)
    results.hand_over(plan, objective, output, more, rows)
    if not output.json_:
        _say_next(found, layer_texts, memory, objective, target)
