"""Blocking plan files: JSON that says how layers are blocked, and what that costs.

Energies are pJ. Nothing in a file is run, and nothing believed before it is checked:
the loops have to cover their layer, and the energies to add up.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from memplan.blocking.cost.evaluation import Evaluation, Placed
from memplan.blocking.cost.latency import Latency
from memplan.blocking.cost.placement import Share
from memplan.blocking.cost.timed_memories import MINIMIZED
from memplan.blocking.nest.array import Array, MappingSearch
from memplan.blocking.nest.counts import Buffer
from memplan.blocking.nest.layer import DIMS, MAX_SIZE, Layer, Tensor
from memplan.blocking.nest.nest import Nest, parse_nest
from memplan.blocking.nest.precision import MULTIPLIERS, Precision
from memplan.blocking.plan import BlockingPlan, CurvePoint, PlannedLayer, Search
from memplan.errors import FormatError, InputError, UsageError
from memplan.files import atomic_write, refuse_overwrite
from memplan.formats.plain import plain
from memplan.formats.sniff import Input, opened
from memplan.formats.strictjson import parse, shown
from memplan.formats.table import Table, check_version
from memplan.version import __version__

SCHEMA = "memplan.blocking-plan"
VERSION = 1
MAX_BYTES = 16 << 20
# What the fields of dataclasses are called in JSON, where it is something else.
NAMES = {
    "energy": "energy_pJ",
    "energy_pj": "energy_pJ",
    "nbytes": "bytes",
    "pj": "pJ",
}
_SAME = 1e-9  # relative; energies that differ by more are not of the same accesses
_MOST_STALLS = 64
_WAYS = ("both", "reads", "writes")

T = TypeVar("T")

_REMEDY = "make a new plan with memplan blocking optimize"
_FILE = frozenset({"budget", "curve", "layers", "memory", "producer"})
_FILE |= {"schema", "version"}
_ENTRY = frozenset({"buffers", "compulsory_pJ", "count", "energy_pJ", "layer"})
_ENTRY |= {"mac_pJ", "search", "shares", "sram_bytes", "string", "unroll"}
_LAYER = frozenset({"kernel", "name", "stride", *DIMS})
_LATENCY = frozenset({"bounded", "cycles", "edges", "ports", "stalls", "steps"})
_SEARCH = frozenset({"lower_bound_pJ", "method", "proved_optimal", "seconds"})
# Keys that older plans lack.
_SPACE = frozenset({"front", "lower_bound", "mapping", "minimized", "space"})
_NEW = frozenset({"bits", "latency"})
_COUNTS = ("begin", "end", "elements", "reads", "writes", "fills", "drains")
_BUFFER = frozenset({*_COUNTS, "level", "name", "tensor"})
_SHARE = frozenset({"accesses", "level", "pJ", "tensor"})
_BITS = frozenset({"input", "kernel", "multiplier", "output", "partial"})
_FRONT = frozenset({"cycles", "energy_pJ", "string"})
_MAPPING = frozenset({"complete", "mappings", "pruned", "searched", "sides"})
_POINT = frozenset({"area_mm2", "budget", "energy_pJ", "sram_bytes"})


def write_plan(
    plan: BlockingPlan, path: str | os.PathLike[str], *, force: bool = False
) -> None:
    """Write `plan` to `path`, whole or not at all; `force` replaces a file.

    Raises UsageError if the file exists, EnvironmentUnfitError if the disk refuses.
    """
    refuse_overwrite(Path(path), force)
    with atomic_write(path) as stream:
        stream.write(dump_plan(plan))


def dump_plan(plan: BlockingPlan) -> bytes:
    """The bytes of the plan's file."""
    entries = {
        "budget": plan.budget,
        "curve": plain(plan.curve, NAMES),
        "layers": [_entry(planned) for planned in plan.layers],
        "memory": plan.memory,
        "producer": f"memplan {__version__}",
        "schema": SCHEMA,
        "version": VERSION,
    }
    return (json.dumps(entries, indent=1, sort_keys=True) + "\n").encode("ascii")


def search_entry(search: Search) -> dict[str, Any]:
    """How a nest was found, as JSON."""
    energy = search.minimized == "energy"
    return {
        **plain(replace(search, mapping=None), NAMES),
        "lower_bound_pJ": search.lower_bound if energy else None,
        "mapping": mapping_entry(search.mapping),
    }


def mapping_entry(found: MappingSearch | None) -> dict[str, Any] | None:
    """How a datapath was chosen, as JSON."""
    if found is None:
        return None
    counts = {name: value for name, value in vars(found).items() if name != "array"}
    return {**counts, "sides": list(found.array.sides)}


def latency_entry(found: Latency | None) -> dict[str, Any] | None:
    """Cycles as JSON."""
    entry: dict[str, Any] | None = plain(found, NAMES)
    return entry


def _entry(planned: PlannedLayer) -> dict[str, Any]:
    found = planned.evaluation
    return {
        "bits": plain(found.precision),
        "buffers": [_buffer_entry(placed) for placed in found.buffers],
        "compulsory_pJ": found.compulsory,
        "count": planned.count,
        "energy_pJ": found.total,
        "layer": plain(found.layer),
        "latency": latency_entry(found.latency),
        "mac_pJ": found.mac_pj,
        "search": search_entry(planned.search),
        "shares": plain(found.shares, NAMES),
        "sram_bytes": found.sram_bytes,
        "string": str(found.nest),
        "unroll": dict(found.nest.unroll),
    }


def _buffer_entry(placed: Placed) -> dict[str, Any]:
    return {
        "level": placed.level,
        "name": placed.name,
        "tensor": placed.tensor.value,
        **{key: getattr(placed.buffer, key) for key in _COUNTS},
        **({"slides": True} if placed.buffer.slides else {}),
    }


def read_plan(source: Input) -> BlockingPlan:
    """The plan in a file, by path or opened; raises InputError, or as `load_plan`."""
    with opened(source) as file:
        file.read(MAX_BYTES)
        return _plan(file.json(_REMEDY), os.fspath(file.path))


def load_plan(data: bytes, name: str = "plan") -> BlockingPlan:
    """The plan in `data`; `name` stands for the file in messages.

    Raises FormatError naming the place of what is unknown, missing or wrong.
    """
    return _plan(parse(data, name, _REMEDY), name)


def _plan(value: object, name: str) -> BlockingPlan:
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise FormatError(name, f"is no blocking plan, which says {SCHEMA!r}", _REMEDY)
    check_version(name, value, VERSION, "blocking plan", _REMEDY)
    table = Table.of(value, name, _FILE, remedy=_REMEDY)
    table.text("producer")
    layers = _each(table, "layers", _ENTRY, _planned, _NEW)
    if not layers:
        raise table.error("layers", "is empty")
    return BlockingPlan(
        layers,
        None if table.fields["memory"] is None else table.text("memory"),
        None if table.fields["budget"] is None else table.integer("budget"),
        _each(table, "curve", _POINT, lambda row: row.build(CurvePoint, NAMES)),
    )


def _planned(table: Table) -> PlannedLayer:
    layer = _layer(table.table("layer", _LAYER))
    nest = _nest(table, layer)
    bits = _bits(table)
    more = frozenset({"slides"})  # of those that slide
    found = Evaluation(
        layer,
        nest,
        _each(table, "buffers", _BUFFER, lambda row: _buffer(row, nest, bits), more),
        _each(table, "shares", _SHARE, lambda row: row.build(Share, NAMES)),
        table.number("compulsory_pJ"),
        table.integer("sram_bytes"),
        table.number("mac_pJ"),
        bits,
        _latency(table),
    )
    if not math.isclose(table.number("energy_pJ"), found.total, rel_tol=_SAME):
        problem = f"is not what the shares add up to, {found.total:.10g}"
        raise table.error("energy_pJ", problem)
    _check_levels(table, found)
    search = _search(table.table("search", _SEARCH, _SPACE))
    return PlannedLayer(found, search, table.integer("count", 1))


def _bits(table: Table) -> Precision:
    """What `bits` says; 16 where it is missing, as in older plans."""
    if "bits" not in table.fields:
        return Precision()
    own = table.table("bits", _BITS)
    own.choice("multiplier", MULTIPLIERS)
    try:
        return own.build(Precision, least=1)
    except UsageError as error:
        raise table.error("bits", f"cannot be: {error}") from None


def _buffer(table: Table, nest: Nest, bits: Precision) -> Placed:
    """A buffer of the nest, of elements of these bits."""
    tensor = Tensor(table.choice("tensor", [one.value for one in Tensor]))
    loops = len(nest.loops)
    end = table.integer("end", 1, loops) if loops else 0
    begin = table.integer("begin", 0, max(end - 1, 0))
    table.integer("elements", 1)
    found = replace(
        table.build(Buffer),
        begin=begin,
        end=end,
        bits=bits.held(tensor),
        last_bits=bits.last(tensor),
    )
    return Placed(table.text("name"), tensor, table.text("level"), found)


def _latency(file: Table) -> Latency | None:
    """What `latency` says, if it is there. Raises FormatError where it cannot be."""
    if file.fields.get("latency") is None:
        return None
    table = file.table("latency", _LATENCY)
    table.integer("steps", 1, MAX_SIZE**3)
    found = table.build(Latency, NAMES)
    if len(found.stalls) > _MOST_STALLS:
        raise table.error("stalls", f"has more than {_MOST_STALLS} levels")
    if found.cycles < found.steps:
        raise table.error("cycles", f"are less than the datapath's {found.steps}")
    for place, port in enumerate(found.ports):
        if port.way not in _WAYS:
            problem = f"is {shown(port.way)}, and none of {', '.join(_WAYS)}"
            raise table.error(f"ports[{place}].way", problem)
        if not port.bandwidth:
            raise table.error(f"ports[{place}].bandwidth", "is 0: give bytes a cycle")
    return found


def _search(table: Table) -> Search:
    if "minimized" in table.fields:
        table.choice("minimized", MINIMIZED)
    fields = {"lower_bound": table.fields["lower_bound_pJ"], **table.fields}
    found = replace(table, fields={**fields, "mapping": None}).build(Search, NAMES)
    if table.fields.get("mapping") is None:
        return found
    return replace(found, mapping=_mapping(table.table("mapping", _MAPPING)))


def _mapping(table: Table) -> MappingSearch:
    sides = table.integers(table.rows("sides"), lambda i: f"sides[{i}]", 1).tolist()
    try:
        array = Array(tuple(sides))
    except UsageError as error:
        raise table.error("sides", f"cannot be: {error}") from None
    found = MappingSearch(
        array,
        table.integer("mappings", 1),
        table.integer("pruned"),
        table.integer("searched", 1),
        table.flag("complete"),
    )
    if found.open < 0:
        raise table.error("mappings", "are fewer than were pruned and searched")
    return found


def _check_levels(table: Table, found: Evaluation) -> None:
    """Every buffer lies in a level that has a share of the energy."""
    if not found.shares:
        raise table.error("shares", "is empty")
    levels = set(found.levels)
    for place, placed in enumerate(found.buffers):
        if placed.level not in levels:
            problem = f"is {shown(placed.level)}, and no share is of that level"
            raise table.error(f"buffers[{place}].level", problem)
    if found.compulsory > found.total * (1 + _SAME):
        raise table.error("compulsory_pJ", "is more than energy_pJ")


def _layer(table: Table) -> Layer:
    if len(stride := table.rows("stride")) != 2:
        raise table.error("stride", f"has {len(stride)} numbers, and must have 2")
    try:
        return table.build(Layer, least=1)
    except InputError as error:  # a size too large, or too many multiplications
        if isinstance(error, FormatError):
            raise
        raise FormatError(table.path, f"{table.where}: {error}", _REMEDY) from None


def _nest(table: Table, layer: Layer) -> Nest:
    given = table.fields["unroll"]
    dims = [dim for dim in DIMS if isinstance(given, dict) and dim in given]
    unrolled = table.table("unroll", frozenset(dims))
    unroll = {dim: unrolled.integer(dim, 1, MAX_SIZE) for dim in dims}
    try:
        return parse_nest(table.text("string"), layer, unroll)
    except (UsageError, InputError) as error:
        if isinstance(error, FormatError):
            raise
        raise table.error("string", f"is no nest of the layer: {error}") from None


def _each(
    table: Table,
    key: str,
    keys: frozenset[str],
    read: Callable[[Table], T],
    optional: frozenset[str] = frozenset(),
) -> tuple[T, ...]:
    """Every row of a list of objects with `keys`, and perhaps `optional` ones."""
    rows = enumerate(table.rows(key))
    name = table.name(key)
    return tuple(
        read(table.inside(row, f"{name}[{i}]", keys, optional)) for i, row in rows
    )
