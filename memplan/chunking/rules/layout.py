"""Views, moved and repeated dimensions, and tensors taken apart or put together."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from memplan.chunking.rules.elementwise import elementwise
from memplan.chunking.rules.flow import (
    Call,
    Flow,
    Slice,
    changed,
    given,
    integers,
    needing,
    places,
    positive,
    rule,
    whole,
)
from memplan.graph.program import Argument, Bound, Meta, Ref, extent


@rule("view")
def view(call: Call, out: Slice) -> Flow | None:
    """As `reshape`; with a type in place of sizes, the elements are read as that."""
    if "dtype" in given(call):
        source, result = call.operands[0], call.result
        same = source.dtype.itemsize == result.dtype.itemsize
        return elementwise(call, out) if same else None
    return reshape(call, out)


@rule("reshape _unsafe_view view_copy _reshape_copy flatten unflatten squeeze")
def reshape(call: Call, out: Slice) -> Flow | None:
    """The dimension must be the first of more than one element in its group.

    Groups are the shortest runs of dimensions with equal products in both shapes. It
    runs as a reshape: a slice of a view need not be viewable, and a squeeze would also
    drop the dimension of a slice of one element.
    """
    if len(call.operands) != 1 or not isinstance(call.op.args[0], Ref):
        return None
    source = _leading(call.operands[0].shape, call.shape, out.dim)
    if source is None:
        return None
    old, new = call.operands[0].shape[source], call.shape[out.dim]
    piece = out.along(source, Fraction(old, new))
    if piece is None:
        return None
    sizes = call.sizes(out)
    return Flow((piece,), _reshape(), (call.op.args[0], sizes), {})


def _leading(old: tuple[int, ...], new: tuple[int, ...], dim: int) -> int | None:
    """The dimension of `old` that leads the group which `dim` leads in `new`."""
    olds = [(i, size) for i, size in enumerate(old) if size != 1]
    news = [(i, size) for i, size in enumerate(new) if size != 1]
    while olds and news:
        source, left = olds.pop(0)
        target, right = news.pop(0)
        if target == dim:
            return source
        while left != right:
            if left < right and olds:
                left *= olds.pop(0)[1]
            elif right < left and news:
                right *= news.pop(0)[1]
            else:
                return None
    return None


def _reshape() -> Callable[..., object]:
    import torch

    target: Callable[..., object] = torch.ops.aten.reshape.default
    return target


@rule("unsqueeze")
def unsqueeze(call: Call, out: Slice) -> Flow | None:
    """A dimension of size 1 more: the others stay, renumbered."""
    source = _leading(call.operands[0].shape, call.shape, out.dim)
    return None if source is None else Flow((out._replace(dim=source),))


@rule("view_as_real")
def view_as_real(call: Call, out: Slice) -> Flow | None:
    """The last dimension, real and imaginary part, is not sliced."""
    return Flow((out,)) if out.dim < len(call.shape) - 1 else None


@rule("view_as_complex")
def view_as_complex(call: Call, out: Slice) -> Flow | None:
    """The operand has one dimension more, its last."""
    return Flow((out,))


@rule("permute")
def permute(call: Call, out: Slice) -> Flow | None:
    """Dimension i of the result is dimension dims[i] of the operand."""
    dims = given(call)["dims"]
    return Flow((out._replace(dim=positive(dims[out.dim], len(call.shape))),))


@rule("transpose swapaxes swapdims t mT")
def transpose(call: Call, out: Slice) -> Flow | None:
    """Two dimensions change places: those given, else the last two."""
    arguments = given(call)
    rank = len(call.shape)
    if rank < 2:
        return Flow((out,))
    first: Argument = arguments.get("dim0", arguments.get("axis0", -2))
    second: Argument = arguments.get("dim1", arguments.get("axis1", -1))
    pair = [positive(first, rank), positive(second, rank)]
    dim = sum(pair) - out.dim if out.dim in pair else out.dim
    return Flow((out._replace(dim=dim),))


@rule("movedim moveaxis")
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


@rule("expand broadcast_to")
def expand(call: Call, out: Slice) -> Flow | None:
    """An expanded or new dimension needs the whole operand; the size follows."""
    name = "shape" if "shape" in given(call) else "size"
    source = call.operands[0].shape
    dim = out.dim - (len(call.shape) - len(source))
    kept = dim >= 0 and source[dim] == call.shape[out.dim]
    sizes = call.sizes(out)
    needs = (out._replace(dim=dim) if kept else None,)
    return changed(call, needs, {name: sizes})


@rule("tile repeat")
def repeat(call: Call, out: Slice) -> Flow | None:
    """Dimensions repeated once; and those of size 1, or new, as often as wanted."""
    source = call.operands[0].shape
    name = "dims" if "dims" in given(call) else "repeats"
    repeats: list[Argument] = list(given(call)[name])
    repeats[:0] = [1] * (len(call.shape) - len(repeats))
    dim = out.dim - (len(call.shape) - len(source))
    if dim >= 0 and repeats[out.dim] == 1:
        return Flow((out._replace(dim=dim),))
    if dim >= 0 and source[dim] != 1:
        return None
    repeats[out.dim] = extent(call.window(out))
    return changed(call, (None,), {name: repeats})


@rule("repeat_interleave")
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


@rule("flip roll")
def unmoved(call: Call, out: Slice) -> Flow | None:
    """Dimensions that are not flipped or rolled."""
    dims = given(call)["dims"]
    dims = [positive(dim, len(call.shape)) for dim in integers(dims, 1)]
    return Flow((out,)) if dims and out.dim not in dims else None


@rule("select")
def select(call: Call, out: Slice) -> Flow | None:
    """The operand has the dimension `dim` more than the result."""
    dim = positive(given(call)["dim"], len(call.shape) + 1)
    return Flow((out._replace(dim=out.dim + (out.dim >= dim)),))


@rule("slice narrow")
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


@rule("stack")
def stack(call: Call, out: Slice) -> Flow | None:
    """The result has the dimension `dim` more than the tensors."""
    dim = positive(given(call)["dim"], len(call.shape))
    if out.dim == dim:
        return None
    return Flow((out._replace(dim=out.dim - (out.dim > dim)),) * len(call.operands))


@rule("cat")
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


@rule(own="getitem")
def getitem(call: Call, out: Slice) -> Flow | None:
    """A member of a tuple, whose members are all sliced alike."""
    source, index = call.operands[0], call.op.args[1]
    if isinstance(source, Meta) or not isinstance(index, int):
        return None
    first = source[0].shape
    same = out.dim < len(first) and first[out.dim] == call.shape[out.dim]
    return Flow((out,)) if same else None


@rule("pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d")
@rule("replication_pad1d replication_pad2d replication_pad3d")
def pad(call: Call, out: Slice) -> Flow | None:
    """All that is not padded, and what is padded with one value where no slice is of
    that alone; pads are listed from the last dimension."""
    arguments = given(call)
    pads = list(arguments["pad"] if "pad" in arguments else arguments["padding"])
    place = 2 * (len(call.shape) - 1 - out.dim)
    if not any(around := pads[place : place + 2]):
        return Flow((out,))
    before, after = around
    first, last = out.ratio + out.after - before, out.ratio + out.before - after
    constant = "value" in arguments and arguments.get("mode", "constant") == "constant"
    if not constant or min(around) < 0 or min(first, last) < 1:
        return None
    window, size = call.window(out), call.operands[0].shape[out.dim]
    pads[place : place + 2] = (
        Bound(window, low=-1, high=0, constant=before, least=0),
        Bound(window, low=0, high=1, constant=-before - size, least=0),
    )
    needs = out._replace(before=out.before + before, after=out.after - before)
    return changed(call, (needs,), {"pad": pads})


@rule("unfold")
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


@rule("slice_scatter select_scatter")
def scatter_slice(call: Call, out: Slice) -> Flow | None:
    """slice_scatter and select_scatter: a part is replaced along one dimension."""
    arguments = given(call)
    dim = positive(arguments["dim"], len(call.shape))
    if out.dim == dim:
        return None
    source = out._replace(dim=out.dim - ("index" in arguments and out.dim > dim))
    return Flow(needing(call, {"self": out, "src": source}))


@rule("diagonal")
def diagonal(call: Call, out: Slice) -> Flow | None:
    """Dimensions besides the two whose diagonal is the result's last."""
    arguments = given(call)
    rank = len(call.shape) + 1
    pair = {positive(arguments[name], rank) for name in ("dim1", "dim2")}
    kept = [dim for dim in range(rank) if dim not in pair]
    return Flow((out._replace(dim=kept[out.dim]),)) if out.dim < len(kept) else None


@rule("tril triu")
def triangle(call: Call, out: Slice) -> Flow | None:
    """tril, triu: in a slice of rows or columns the diagonal lies elsewhere."""
    rank = len(call.shape)
    if out.dim < rank - 2:
        return Flow((out,))
    first = given(call)["diagonal"]
    if type(first) is not int:  # it follows a loop along the other side already
        return None
    sign = 1 if out.dim == rank - 2 else -1
    start = extent(call.window(out))._replace(low=sign, high=0, constant=first)
    return changed(
        call, needing(call, dict.fromkeys(places(call), out)), {"diagonal": start}
    )
