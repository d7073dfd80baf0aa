"""Dimensions moved, and dimensions repeated."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from memplan.chunking.rules.arguments import changed, given, integers, positive
from memplan.chunking.rules.flow import Call, Flow, Rule, Slice, each
from memplan.graph.program import extent


def permute(call: Call, out: Slice) -> Flow | None:
    """Dimension i of the result is dimension dims[i] of the operand."""
    dims = given(call)["dims"]
    return Flow((out._replace(dim=positive(dims[out.dim], len(call.shape))),))


def transpose(call: Call, out: Slice) -> Flow | None:
    """Two dimensions change places: those given, else the last two."""
    arguments = given(call)
    rank = len(call.shape)
    if rank < 2:
        return Flow((out,))
    first = arguments.get("dim0", arguments.get("axis0", -2))
    second = arguments.get("dim1", arguments.get("axis1", -1))
    pair = [positive(first, rank), positive(second, rank)]
    dim = sum(pair) - out.dim if out.dim in pair else out.dim
    return Flow((out._replace(dim=dim),))


def movedim(call: Call, out: Slice) -> Flow | None:
    """Some dimensions move to given places; the others keep their order."""
    arguments = given(call)
    rank = len(call.shape)
    source = [positive(dim, rank) for dim in integers(arguments["source"], 1)]
    target = [positive(dim, rank) for dim in integers(arguments["destination"], 1)]
    order = dict(zip(target, source, strict=True))
    rest = iter(dim for dim in range(rank) if dim not in source)
    dims = [order[dim] if dim in order else next(rest) for dim in range(rank)]
    return Flow((out._replace(dim=dims[out.dim]),))


def expand(call: Call, out: Slice) -> Flow | None:
    """An expanded or new dimension needs the whole operand; the size follows."""
    name = "shape" if "shape" in given(call) else "size"
    source = call.operands[0].shape
    dim = out.dim - (len(call.shape) - len(source))
    kept = dim >= 0 and source[dim] == call.shape[out.dim]
    sizes = call.sizes(out)
    needs = (out._replace(dim=dim) if kept else None,)
    return changed(call, needs, {name: sizes})


def repeat(call: Call, out: Slice) -> Flow | None:
    """Dimensions repeated once; and those of size 1, or new, as often as wanted."""
    source = call.operands[0].shape
    name = "dims" if "dims" in given(call) else "repeats"
    repeats: list[Any] = list(given(call)[name])
    repeats = [1] * (len(call.shape) - len(repeats)) + repeats
    dim = out.dim - (len(call.shape) - len(source))
    if dim >= 0 and repeats[out.dim] == 1:
        return Flow((out._replace(dim=dim),))
    if dim >= 0 and source[dim] != 1:
        return None
    repeats[out.dim] = extent(call.window(out))
    return changed(call, (None,), {name: repeats})


def repeat_interleave(call: Call, out: Slice) -> Flow | None:
    """Each element of a dimension a number of times: slices of whole elements."""
    arguments = given(call)
    times, dim = arguments.get("repeats"), arguments.get("dim")
    if not isinstance(times, int) or dim is None or len(call.operands) != 1:
        return None
    if positive(dim, len(call.shape)) != out.dim:
        return Flow((out,))
    piece = out.along(out.dim, Fraction(1, times))
    if piece is None:
        return None
    size = {} if arguments["output_size"] is None else {"output_size": None}
    return changed(call, (piece,), size)


def unmoved(call: Call, out: Slice) -> Flow | None:
    """Dimensions that are not flipped or rolled."""
    dims = given(call)["dims"]
    dims = [positive(dim, len(call.shape)) for dim in integers(dims, 1)]
    return Flow((out,)) if dims and out.dim not in dims else None


TRANSPOSES = "transpose swapaxes swapdims t mT"

RULES: dict[str, Rule] = {
    "aten.permute": permute,
    **each(TRANSPOSES, transpose),
    "aten.movedim": movedim,
    "aten.moveaxis": movedim,
    "aten.expand": expand,
    "aten.broadcast_to": expand,
    "aten.tile": repeat,
    "aten.repeat": repeat,
    "aten.repeat_interleave": repeat_interleave,
    "aten.flip": unmoved,
    "aten.roll": unmoved,
}
