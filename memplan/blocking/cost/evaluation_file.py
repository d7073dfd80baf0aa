"""Buffers, shares of the energy, and bits as a blocking plan file holds them."""

from __future__ import annotations

from memplan.blocking.cost.evaluation import Placed
from memplan.blocking.cost.pricing import Share
from memplan.blocking.nest.counts import Buffer
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.nest.nest import Nest
from memplan.blocking.nest.precision import MAX_BITS, MULTIPLIERS, Precision
from memplan.formats.strictjson import shown
from memplan.formats.table import Table

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
    """What `bits` says; 16 where it is missing, as in plans of old."""
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
