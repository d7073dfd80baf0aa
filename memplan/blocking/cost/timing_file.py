"""Cycles and fronts as a blocking plan file holds them."""

from __future__ import annotations

from memplan.blocking.cost.latency import Latency, Port
from memplan.blocking.cost.timed_memories import FrontPoint
from memplan.blocking.nest.layer import MAX_SIZE, Tensor
from memplan.formats.strictjson import shown
from memplan.formats.table import Table

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
