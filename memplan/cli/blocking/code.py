"""What `memplan blocking optimize --for-code` says beside what `optimize` says."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from memplan.blocking.cost.objective import Fixed, Objective
from memplan.blocking.machine.registers import RegisterTile, target_of
from memplan.blocking.nest.precision import FORMATS
from memplan.blocking.run.inventory import ModelLayer
from memplan.blocking.run.sources import is_model
from memplan.blocking.search.result import Result
from memplan.cli import show
from memplan.units import format_gap

BITS = "fp32"  # of the elements of emitted code


def tile_of(found: Result, target: str) -> RegisterTile:
    """The register tile that is the datapath of a result."""
    lanes, unroll = target_of(target).lanes, found.nest.unroll
    x, y, k = (unroll.get(dim, 1) for dim in ("X", "Y", "K"))
    return RegisterTile(lanes, k // lanes, x, y)


def entries(found: Sequence[Result], target: str) -> list[dict[str, object]]:
    """For each layer the tile, and the least energy that was found with it if code
    does not matter."""
    return [
        {
            "layer": one.nest.layer.name,
            "target": target_of(target).name,
            "tile": tile_of(one, target).unroll,
            "free_energy_pJ": one.free_energy,
        }
        for one in found
    ]


def rows(
    layers: Sequence[ModelLayer], found: Sequence[Result], target: str
) -> list[tuple[str, str]]:
    """The tile, of one layer, and what it costs that the nests are those for code, of
    each layer as often as it is run."""
    name = target_of(target).name
    runs = [(one.count, own) for one, own in zip(layers, found, strict=True)]
    energy = sum(count * own.energy for count, own in runs)
    free = sum(count * (own.free_energy or own.energy) for count, own in runs)
    more = (energy - free) / sum(count * own.nest.layer.macs for count, own in runs)
    price = f"{format_gap(energy / free - 1)}, {more:.3g} pJ/MAC, more than the best"
    if len(found) > 1:
        return [("for code", f"{name}, {price} found on the same tiles")]
    return [
        ("for code", f"{name}, {price} found on the same tile"),
        ("tile", str(tile_of(found[0], target))),
    ]


def say_next(
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
    parts += ["--string", str(nest), "--target", target_of(target).name]
    if memory is not None and _has_caches(objective):
        parts += ["--cache", memory]
    if objective.precision != FORMATS[BITS]:
        bits = objective.precision
        show.note(f"emit writes floats: nests for {bits} elements may not suit them")
    show.line(f"  next: {shlex.join([*parts, '-o', 'conv.cpp'])}", err=True)


def _has_caches(objective: Objective) -> bool:
    """Whether `emit` takes it as --cache."""
    if not isinstance(objective, Fixed):
        return False
    return all(level.cache for level in objective.hierarchy.levels)
