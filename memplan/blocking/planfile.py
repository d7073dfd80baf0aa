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
from typing import TypeVar

from memplan.blocking.cost.evaluation import Evaluation, Placed
from memplan.blocking.cost.latency import Latency, Port
from memplan.blocking.cost.placement import Share
from memplan.blocking.cost.timed_memories import MINIMIZED, FrontPoint
from memplan.blocking.nest.array import Array, MappingSearch
from memplan.blocking.nest.counts import Buffer
from memplan.blocking.nest.layer import DIMS, MAX_SIZE, Layer, Tensor
from memplan.blocking.nest.nest import Nest, parse_nest
from memplan.blocking.nest.precision import MAX_BITS, MULTIPLIERS, Precision
from memplan.blocking.plan import BlockingPlan, CurvePoint, PlannedLayer, Search
from memplan.errors import FormatError, InputError, UsageError
from memplan.files import atomic_write, refuse_overwrite
from memplan.formats.sniff import Input, opened
from memplan.formats.strictjson import parse, shown
from memplan.formats.table import Table, check_version
from memplan.version import __version__

_COUNTS = ("begin", "end", "elements", "reads", "writes", "fills", "drains")
BUFFER = frozenset({*_COUNTS, "level", "name", "tensor"})
BUFFER_MORE = frozenset({"slides"})  # of those that slide
SHARE = frozenset({"accesses", "level", "pJ", "tensor"})
_BITS = frozenset({"input", "kernel", "multiplier", "output", "partial"})


def buffer_entry(placed: Placed) -> dict[str, object]:
    """As `read_buffer` takes it."""
    return {
        "level": placed.level,
        "name": placed.name,
        "tensor": placed.tensor.value,
        **{key: getattr(placed.buffer, key) for key in _COUNTS},
        **({"slides": True} if placed.buffer.slides else {}),
    }


def share_entry(share: Share) -> dict[str, object]:
    """As `read_share` takes it."""
    return {
        "accesses": share.accesses,
        "level": share.level,
        "pJ": share.pj,
        "tensor": share.tensor.value,
    }


def read_bits(table: Table) -> Precision:
    """What `bits` says; 16 where it is missing, as in older plans."""
    if "bits" not in table.fields:
        return Precision()
    own = table.table("bits", _BITS)
    multiplier = own.text("multiplier")
    if multiplier not in MULTIPLIERS:
        problem = f"is {shown(multiplier)}, and none of {', '.join(MULTIPLIERS)}"
        raise own.error("multiplier", problem)
    given = {key: own.integer(key, 1, MAX_BITS) for key in _BITS - {"multiplier"}}
    return Precision(**given, multiplier=multiplier)


def read_buffer(table: Table, nest: Nest, bits: Precision) -> Placed:
    """A buffer of the nest, of elements of these bits."""
    tensor, loops = _tensor(table), len(nest.loops)
    end = table.integer("end", 1, loops) if loops else 0
    counts = {key: table.integer(key) for key in ("reads", "writes", "fills", "drains")}
    buffer = Buffer(
        table.integer("begin", 0, max(end - 1, 0)),
        end,
        table.integer("elements", 1),
        **counts,
        bits=bits.held(tensor),
        last_bits=bits.last(tensor),
        slides="slides" in table.fields and table.flag("slides"),
    )
    return Placed(table.text("name"), tensor, table.text("level"), buffer)


def read_share(table: Table) -> Share:
    """A share of the energy."""
    accesses = table.integer("accesses")
    return Share(table.text("level"), _tensor(table), accesses, table.number("pJ"))


def _tensor(table: Table) -> Tensor:
    text = table.text("tensor")
    try:
        return Tensor(text)
    except ValueError:
        names = ", ".join(tensor.value for tensor in Tensor)
        raise table.error("tensor", f"is {shown(text)}, and none of {names}") from None


_LATENCY = frozenset({"bounded", "cycles", "edges", "ports", "stalls", "steps"})
FRONT = frozenset({"cycles", "energy_pJ", "string"})
_PORT = frozenset({"bandwidth", "bytes", "level", "tensor", "way"})
_WAYS = ("both", "reads", "writes")
_MOST_STALLS = 64


def latency_entry(found: Latency) -> dict[str, object]:
    """As `read_latency` takes it."""
    return {
        "bounded": found.bounded,
        "cycles": found.cycles,
        "edges": found.edges,
        "ports": [
            {
                "bandwidth": port.bandwidth,
                "bytes": port.nbytes,
                "level": port.level,
                "tensor": None if port.tensor is None else port.tensor.value,
                "way": port.way,
            }
            for port in found.ports
        ],
        "stalls": dict(found.stalls),
        "steps": found.steps,
    }


def read_latency(file: Table) -> Latency | None:
    """What `latency` says, if it is there. Raises FormatError where it cannot be."""
    if file.fields.get("latency") is None:
        return None
    table = file.table("latency", _LATENCY)
    stalls = table.fields["stalls"]
    if not isinstance(stalls, dict) or len(stalls) > _MOST_STALLS:
        raise table.error("stalls", "must be an object of cycles by level")
    own = table.inside(stalls, table.name("stalls"), frozenset(stalls))
    name = table.name("ports")
    rows = enumerate(table.rows("ports"))
    found = Latency(
        table.integer("steps", 1, MAX_SIZE**3),
        table.number("cycles"),
        {level: own.number(level) for level in stalls},
        table.number("edges"),
        tuple(_port(table.inside(row, f"{name}[{i}]", _PORT)) for i, row in rows),
        table.flag("bounded"),
    )
    if found.cycles < found.steps:
        raise table.error("cycles", f"are less than the datapath's {found.steps}")
    return found


def _port(table: Table) -> Port:
    tensor: Tensor | None = None
    if table.fields["tensor"] is not None:
        text = table.text("tensor")
        if text not in {one.value for one in Tensor}:
            raise table.error("tensor", f"is {shown(text)}, and no tensor")
        tensor = Tensor(text)
    way, bandwidth = table.text("way"), table.number("bandwidth")
    if way not in _WAYS:
        raise table.error("way", f"is {shown(way)}, and none of {', '.join(_WAYS)}")
    if not bandwidth:
        raise table.error("bandwidth", "is 0, and must be bytes a cycle")
    return Port(table.text("level"), tensor, way, table.number("bytes"), bandwidth)


def front_entries(front: tuple[FrontPoint, ...]) -> list[dict[str, object]]:
    """As `read_front` takes each."""
    return [
        {"cycles": one.cycles, "energy_pJ": one.energy, "string": one.string}
        for one in front
    ]


def read_front(table: Table) -> FrontPoint:
    """One point."""
    return FrontPoint(
        table.number("energy_pJ"), table.number("cycles"), table.text("string")
    )


_KEYS = frozenset({"complete", "mappings", "pruned", "searched", "sides"})


def mapping_entry(found: MappingSearch | None) -> dict[str, object] | None:
    """As `read_mapping` takes it."""
    if found is None:
        return None
    return {
        "complete": found.complete,
        "mappings": found.mappings,
        "pruned": found.pruned,
        "searched": found.searched,
        "sides": list(found.array.sides),
    }


def read_mapping(file: Table) -> MappingSearch:
    """What `mapping` says. Raises FormatError where it cannot be."""
    table = file.table("mapping", _KEYS)
    given = table.rows("sides")
    sides = table.integers(given, lambda i: f"sides[{i}]", 1).tolist()
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


SCHEMA = "memplan.blocking-plan"
VERSION = 1
MAX_BYTES = 16 << 20
_SAME = 1e-9  # relative; energies that differ by more are not of the same accesses

T = TypeVar("T")

_REMEDY = "make a new plan with memplan blocking optimize"
_PLANFILE_KEYS = frozenset({"budget", "curve", "layers", "memory", "producer"})
_PLANFILE_KEYS |= {"schema", "version"}
_ENTRY = frozenset({"buffers", "compulsory_pJ", "count", "energy_pJ", "layer"})
_ENTRY |= {"mac_pJ", "search", "shares", "sram_bytes", "string", "unroll"}
_LAYER = frozenset({"kernel", "name", "stride", *DIMS})
_SEARCH = frozenset({"lower_bound_pJ", "method", "proved_optimal", "seconds"})
# Keys that older plans lack.
_SPACE = frozenset({"front", "lower_bound", "mapping", "minimized", "space"})
_NEW = frozenset({"bits", "latency"})
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


def read_plan(source: Input) -> BlockingPlan:
    """The plan in a file, by path or opened; raises InputError, or as `load_plan`."""
    with opened(source) as file:
        file.read(MAX_BYTES)
        return _plan(file.json(_REMEDY), os.fspath(file.path))


def dump_plan(plan: BlockingPlan) -> bytes:
    """The bytes of the plan's file."""
    entries = {
        "budget": plan.budget,
        "curve": [
            {
                "area_mm2": point.area_mm2,
                "budget": point.budget,
                "energy_pJ": point.energy_pj,
                "sram_bytes": point.sram_bytes,
            }
            for point in plan.curve
        ],
        "layers": [_entry(planned) for planned in plan.layers],
        "memory": plan.memory,
        "producer": f"memplan {__version__}",
        "schema": SCHEMA,
        "version": VERSION,
    }
    return (json.dumps(entries, indent=1, sort_keys=True) + "\n").encode("ascii")


def _entry(planned: PlannedLayer) -> dict[str, object]:
    found, search = planned.evaluation, planned.search
    layer = found.layer
    return {
        "bits": dict(vars(found.precision)),
        "buffers": [buffer_entry(placed) for placed in found.buffers],
        "compulsory_pJ": found.compulsory,
        "count": planned.count,
        "energy_pJ": found.total,
        "layer": {
            "kernel": layer.kernel,
            "name": layer.name,
            "stride": list(layer.stride),
            **{dim: layer.size(dim) for dim in DIMS},
        },
        "latency": None if found.latency is None else latency_entry(found.latency),
        "mac_pJ": found.mac_pj,
        "search": {
            "front": front_entries(search.front),
            "lower_bound": search.lower_bound,
            "lower_bound_pJ": search.lower_bound
            if search.minimized == "energy"
            else None,
            "mapping": mapping_entry(search.mapping),
            "method": search.method,
            "minimized": search.minimized,
            "proved_optimal": search.proved_optimal,
            "seconds": search.seconds,
            "space": search.space,
        },
        "shares": [share_entry(share) for share in found.shares],
        "sram_bytes": found.sram_bytes,
        "string": str(found.nest),
        "unroll": dict(found.nest.unroll),
    }


def load_plan(data: bytes, name: str = "plan") -> BlockingPlan:
    """The plan in `data`; `name` stands for the file in messages.

    Raises FormatError naming the place of what is unknown, missing or wrong.
    """
    return _plan(parse(data, name, _REMEDY), name)


def _plan(value: object, name: str) -> BlockingPlan:
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise FormatError(name, f"is no blocking plan, which says {SCHEMA!r}", _REMEDY)
    check_version(name, value, VERSION, "blocking plan", _REMEDY)
    table = Table.of(value, name, _PLANFILE_KEYS, remedy=_REMEDY)
    table.text("producer")
    layers = _each(table, "layers", _ENTRY, _planned, _NEW)
    if not layers:
        raise table.error("layers", "is empty")
    return BlockingPlan(
        layers,
        None if table.fields["memory"] is None else table.text("memory"),
        None if table.fields["budget"] is None else table.integer("budget"),
        _each(table, "curve", _POINT, _point),
    )


def _planned(table: Table) -> PlannedLayer:
    layer = _layer(table.table("layer", _LAYER))
    nest = _nest(table, layer)
    search = table.table("search", _SEARCH, _SPACE)
    bits = read_bits(table)
    found = Evaluation(
        layer,
        nest,
        _each(
            table,
            "buffers",
            BUFFER,
            lambda row: read_buffer(row, nest, bits),
            BUFFER_MORE,
        ),
        _each(table, "shares", SHARE, read_share),
        table.number("compulsory_pJ"),
        table.integer("sram_bytes"),
        table.number("mac_pJ"),
        bits,
        read_latency(table),
    )
    if not math.isclose(table.number("energy_pJ"), found.total, rel_tol=_SAME):
        problem = f"is not what the shares add up to, {found.total:.10g}"
        raise table.error("energy_pJ", problem)
    _check_levels(table, found)
    return PlannedLayer(
        found,
        _search(search),
        table.integer("count", 1),
    )


def _search(table: Table) -> Search:
    key = "lower_bound" if "lower_bound" in table.fields else "lower_bound_pJ"
    bound = None if table.fields[key] is None else table.number(key)
    found = Search(
        table.text("method"),
        table.number("seconds"),
        bound,
        table.flag("proved_optimal"),
    )
    if "space" in table.fields:
        found = replace(found, space=table.text("space"))
    if "minimized" in table.fields:
        minimized = table.text("minimized")
        if minimized not in MINIMIZED:
            problem = f"is {shown(minimized)}, and none of {', '.join(MINIMIZED)}"
            raise table.error("minimized", problem)
        found = replace(found, minimized=minimized)
    if "front" in table.fields:
        found = replace(found, front=_each(table, "front", FRONT, read_front))
    if table.fields.get("mapping") is not None:
        found = replace(found, mapping=read_mapping(table))
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
    sizes = {dim: table.integer(dim, 1, MAX_SIZE) for dim in DIMS}
    stride = table.rows("stride")
    steps = table.integers(stride, lambda i: f"stride[{i}]", 1, MAX_SIZE).tolist()
    if len(steps) != 2:
        raise table.error("stride", f"has {len(steps)} numbers, and must have 2")
    try:
        return Layer(
            table.text("name"),
            **sizes,
            stride=(steps[0], steps[1]),
            kernel=table.flag("kernel"),
        )
    except InputError as error:  # too many multiplications in all
        raise FormatError(table.path, f"{table.where}: {error}", _REMEDY) from None


def _nest(table: Table, layer: Layer) -> Nest:
    given = table.fields["unroll"]
    dims = [dim for dim in DIMS if isinstance(given, dict) and dim in given]
    unrolled = table.table("unroll", frozenset(dims))
    unroll = {dim: unrolled.integer(dim, 1, MAX_SIZE) for dim in dims}
    try:
        return parse_nest(table.text("string"), layer, unroll)
    except (UsageError, InputError) as error:
        raise table.error("string", f"is no nest of the layer: {error}") from None


def _point(table: Table) -> CurvePoint:
    return CurvePoint(
        table.integer("budget"),
        table.integer("sram_bytes"),
        table.number("area_mm2"),
        table.number("energy_pJ"),
    )


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
