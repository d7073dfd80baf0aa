"""Tensors taken apart and put together: any dimension but the one cut or joined."""

from __future__ import annotations

from memplan.chunking.rules.arguments import (
    changed,
    given,
    integers,
    needing,
    places,
    positive,
)
from memplan.chunking.rules.flow import Call, Flow, Meta, Rule, Slice, each, whole
from memplan.graph.program import extent


def split(call: Call, out: Slice) -> Flow | None:
    """The pieces keep the other dimensions."""
    dim = positive(given(call)["dim"], len(call.shape))
    return Flow(needing(call, {"self": out})) if out.dim != dim else None


def taken(call: Call, out: Slice) -> Flow | None:
    """unbind, select: the operand has the dimension `dim` more than the result."""
    dim = positive(given(call)["dim"], len(call.shape) + 1)
    return Flow((out._replace(dim=out.dim + (out.dim >= dim)),))


def sliced(call: Call, out: Slice) -> Flow | None:
    """Another dimension; or, in steps of one and without a halo, the cut one itself.

    A window of the result is then the window of the operand, `start` further on.
    """
    arguments = given(call)
    if positive(arguments["dim"], len(call.shape)) != out.dim:
        return Flow(needing(call, {"self": out}))
    start, size = arguments["start"] or 0, call.operands[0].shape[out.dim]
    narrow = "length" in arguments
    if not isinstance(start, int) or (not narrow and arguments["step"] != 1):
        return None
    if out.before or out.after:
        return None
    start = min(max(positive(start, size), 0), size)
    piece = Slice(out.dim, out.ratio, -start, start)
    stop = {"length" if narrow else "end": extent(call.window(out))}
    return changed(call, needing(call, {"self": piece}), {"start": 0, **stop})


def stack(call: Call, out: Slice) -> Flow | None:
    """The result has the dimension `dim` more than the tensors."""
    dim = positive(given(call)["dim"], len(call.shape))
    if out.dim == dim:
        return None
    return Flow((out._replace(dim=out.dim - (out.dim > dim)),) * len(call.operands))


def cat(call: Call, out: Slice) -> Flow | None:
    """The joined tensors agree in the other dimensions."""
    dim = positive(given(call)["dim"], len(call.shape))
    if out.dim == dim:
        return None
    needs = whole(call)
    for position, meta in enumerate(call.operands):
        # torch also takes an empty vector here, and ignores it.
        needs[position] = out if len(meta.shape) == len(call.shape) else None
    return Flow(tuple(needs))


def getitem(call: Call, out: Slice) -> Flow | None:
    """A member of a tuple, whose members are all sliced alike."""
    source, index = call.operands[0], call.op.args[1]
    if isinstance(source, Meta) or not isinstance(index, int):
        return None
    first = source[0].shape
    same = out.dim < len(first) and first[out.dim] == call.shape[out.dim]
    return Flow((out,)) if same else None


def pad(call: Call, out: Slice) -> Flow | None:
    """Dimensions that are not padded; pads are listed from the last dimension."""
    arguments = given(call)
    pads = list(arguments["pad"] if "pad" in arguments else arguments["padding"])
    place = 2 * (len(call.shape) - 1 - out.dim)
    return None if any(pads[place : place + 2]) else Flow((out,))


def unfold(call: Call, out: Slice) -> Flow | None:
    """Windows of a dimension, their elements last: a slice needs their union."""
    arguments = given(call)
    if out.dim == len(call.shape) - 1:
        return None
    if positive(arguments["dimension"], len(call.shape) - 1) != out.dim:
        return Flow((out,))
    size, step = arguments["size"], arguments["step"]
    after = out.after * step + size - step
    return Flow((Slice(out.dim, out.ratio * step, out.before * step, after),))


def scatter_slice(call: Call, out: Slice) -> Flow | None:
    """slice_scatter and select_scatter: a part is replaced along one dimension."""
    arguments = given(call)
    dim = positive(arguments["dim"], len(call.shape))
    if out.dim == dim:
        return None
    source = out._replace(dim=out.dim - ("index" in arguments and out.dim > dim))
    return Flow(needing(call, {"self": out, "src": source}))


def diagonal(call: Call, out: Slice) -> Flow | None:
    """Dimensions besides the two whose diagonal is the result's last."""
    arguments = given(call)
    rank = len(call.shape) + 1
    pair = {positive(arguments[name], rank) for name in ("dim1", "dim2")}
    kept = [dim for dim in range(rank) if dim not in pair]
    return Flow((out._replace(dim=kept[out.dim]),)) if out.dim < len(kept) else None


def triangle(call: Call, out: Slice) -> Flow | None:
    """tril, triu: in a slice of rows or columns the diagonal lies elsewhere."""
    rank = len(call.shape)
    if out.dim < rank - 2:
        return Flow((out,))
    sign = 1 if out.dim == rank - 2 else -1
    start = extent(call.window(out))._replace(
        low=sign, high=0, constant=integers(given(call)["diagonal"], 1)[0]
    )
    return changed(
        call, needing(call, dict.fromkeys(places(call), out)), {"diagonal": start}
    )


SPLITS = "split split_with_sizes chunk tensor_split unsafe_split unsafe_chunk"
PADS = "pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d"
PADS += " replication_pad1d replication_pad2d replication_pad3d"

RULES: dict[str, Rule] = {
    **each(SPLITS, split),
    **each(PADS, pad),
    "aten.unbind": taken,
    "aten.select": taken,
    "aten.slice": sliced,
    "aten.narrow": sliced,
    "aten.stack": stack,
    "aten.cat": cat,
    "aten.unfold": unfold,
    "aten.slice_scatter": scatter_slice,
    "aten.select_scatter": scatter_slice,
    "aten.diagonal": diagonal,
    "aten.tril": triangle,
    "aten.triu": triangle,
    "getitem": getitem,
}
