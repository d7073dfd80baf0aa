"""Elements found by indices: slices of the indices, or of what is not indexed."""

from __future__ import annotations

from memplan.chunking.rules.arguments import given, needing, places, positive, shape
from memplan.chunking.rules.elementwise import broadcast
from memplan.chunking.rules.flow import Call, Flow, Ref, Rule, Slice, whole


def embedding(call: Call, out: Slice) -> Flow | None:
    """Features slice the table, all other dimensions the indices."""
    if out.dim == len(call.shape) - 1:
        return Flow(needing(call, {"weight": out._replace(dim=1)}))
    return Flow(needing(call, {"indices": out}))


def one_hot(call: Call, out: Slice) -> Flow | None:
    """Not along the classes, whose number must not depend on the data."""
    classes = given(call)["num_classes"]
    last = out.dim == len(call.shape) - 1
    return None if last or classes < 0 else Flow((out,))


def index_select(call: Call, out: Slice) -> Flow | None:
    """The selected dimension slices the indices, another the tensor."""
    if positive(given(call)["dim"], len(call.shape)) == out.dim:
        return Flow(needing(call, {"index": out._replace(dim=0)}))
    return Flow(needing(call, {"self": out}))


def gather(call: Call, out: Slice) -> Flow | None:
    """The indices, and the tensor too where it is not gathered along that dimension."""
    if positive(given(call)["dim"], len(call.shape)) == out.dim:
        return Flow(needing(call, {"index": out}))
    source = shape(call, "self")
    if source is None or source[out.dim] != call.shape[out.dim]:
        return None
    return Flow(needing(call, {"self": out, "index": out}))


def scatter(call: Call, out: Slice) -> Flow | None:
    """All tensors together, along another dimension in which they are equally long."""
    rank = len(call.shape)
    if positive(given(call)["dim"], rank) == out.dim:
        return None
    needs = whole(call)
    for position, meta in enumerate(call.operands):
        if len(meta.shape) == rank:
            if meta.shape[out.dim] != call.shape[out.dim]:
                return None
            needs[position] = out
        elif meta.shape:
            return None
    return Flow(tuple(needs))


def index(call: Call, out: Slice) -> Flow | None:
    """x[i, :, j]: the indices' own dimensions, or one of x that is not indexed.

    The former stand where the first index does; in front if the indices are apart.
    """
    slots = list(given(call)["indices"])
    sizes = shape(call, "self") or ()
    slots += [None] * (len(sizes) - len(slots))
    tensors = [call.operands[place] for place in places(call)["indices"]]
    used = [i for i, slot in enumerate(slots) if isinstance(slot, Ref)]
    if not used or any(meta.dtype.itemsize < 4 for meta in tensors):
        return None  # a mask: the shape depends on the data
    width = max(len(meta.shape) for meta in tensors)
    adjacent = used[-1] - used[0] + 1 == len(used)
    front = used[0] if adjacent else 0
    if front <= out.dim < front + width:
        needs = whole(call)
        inner = out._replace(dim=out.dim - front)
        for place, meta in zip(places(call)["indices"], tensors, strict=True):
            needs[place] = broadcast(inner, width, meta.shape)
        return Flow(tuple(needs))
    kept = [i for i in range(len(sizes)) if i not in used]
    dim = kept[out.dim if out.dim < front else out.dim - width]
    return Flow(needing(call, {"self": out._replace(dim=dim)}))


RULES: dict[str, Rule] = {
    "aten.embedding": embedding,
    "aten.one_hot": one_hot,
    "aten.index_select": index_select,
    "aten.gather": gather,
    "aten.scatter": scatter,
    "aten.scatter_add": scatter,
    "aten.index": index,
}
