"""Matrix products, attention and normalisations."""

from __future__ import annotations

from fractions import Fraction

from memplan.chunking.rules.elementwise import broadcast
from memplan.chunking.rules.flow import (
    Call,
    Flow,
    Slice,
    changed,
    given,
    integers,
    needing,
    places,
    rule,
    shape,
    whole,
)
from memplan.chunking.rules.lowered import causal_attention, grouped_rows
from memplan.graph.program import Argument, Bound, extent


@rule("linear")
def linear(call: Call, out: Slice) -> Flow | None:
    """Rows slice the input; the output features slice weight and bias."""
    weight = shape(call, "weight")
    if weight is None or len(weight) != 2:
        return None
    if out.dim < len(call.shape) - 1:
        return Flow(needing(call, {"input": out}))
    features = out._replace(dim=0)
    return Flow(needing(call, {"weight": features, "bias": features}))


@rule("matmul mm bmm mv")
def matmul(call: Call, out: Slice) -> Flow | None:
    """torch.matmul's cases: a vector operand has no row, or no column, dimension."""
    if len(call.operands) != 2:
        return None
    left, right = (tuple(meta.shape) for meta in call.operands)
    return Flow(_products(left, right, out, len(call.shape)))


@rule("addmm addmv baddbmm")
def added(call: Call, out: Slice) -> Flow | None:
    """A product and a matrix that is broadcast to it: addmm, baddbmm, addmv."""
    if len(call.operands) != 3:
        return None
    bias, left, right = (tuple(meta.shape) for meta in call.operands)
    rank = len(call.shape)
    return Flow((broadcast(out, rank, bias), *_products(left, right, out, rank)))


def _products(
    left: tuple[int, ...], right: tuple[int, ...], out: Slice, rank: int
) -> tuple[Slice | None, Slice | None]:
    rows, columns = len(left) > 1, len(right) > 1
    if columns and out.dim == rank - 1:
        return None, out._replace(dim=len(right) - 1)
    if rows and out.dim == rank - 1 - columns:
        return out._replace(dim=len(left) - 2), None
    batches = rank - rows - columns
    return broadcast(out, batches, left[:-2]), broadcast(out, batches, right[:-2])


@rule("_grouped_mm", own="transformers.grouped_mm_fallback")
def grouped(call: Call, out: Slice) -> Flow | None:
    """Rows times the matrix of their group. A slice of rows has fewer groups, which
    end where the groups do."""
    arguments = list(given(call).values())
    sizes = [tuple(meta.shape) for meta in call.operands]
    plain = [len(each) for each in sizes] == [2, 3, 1]
    if not plain or any(each is not None for each in arguments[3:]):
        return None
    if out.dim == 1:
        if call.op.key == "aten._grouped_mm":  # rows of a slice must lie 16 bytes apart
            return None
        return Flow((None, out._replace(dim=2), None))
    window = call.window(out)
    start, stop = Bound(window, low=1, high=0), Bound(window, low=0, high=1)
    args = (*arguments[:3], start, stop, str(call.op.target))
    return Flow((out, None, None), grouped_rows, args, {})


@rule("outer")
def outer(call: Call, out: Slice) -> Flow | None:
    """A vector gives the rows, another the columns."""
    return Flow((out, None) if out.dim == 0 else (None, out._replace(dim=0)))


@rule("cdist")
def cdist(call: Call, out: Slice) -> Flow | None:
    """Distances of the rows of x1 from those of x2; batches are broadcast."""
    left, right = (tuple(meta.shape) for meta in call.operands)
    rank = len(call.shape)
    if out.dim >= rank - 2:
        return Flow(
            (out._replace(dim=len(left) - 2), None)
            if out.dim == rank - 2
            else (None, out._replace(dim=len(right) - 2))
        )
    batches = (broadcast(out, rank - 2, sizes[:-2]) for sizes in (left, right))
    return Flow(tuple(batches))


@rule("einsum")
def einsum(call: Call, out: Slice) -> Flow | None:
    """The letter of the sliced dimension says which dimensions of the operands are."""
    equation = str(given(call)["equation"]).replace(" ", "")
    if "." in equation:
        return None
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    tensors = places(call)["tensors"]
    if not arrow:
        letters = left.replace(",", "")
        right = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    if len(terms) != len(tensors) or len(right) != len(call.shape):
        return None
    letter = right[out.dim]
    needs = whole(call)
    for term, position in zip(terms, tensors, strict=True):
        sizes = call.operands[position].shape
        if term.count(letter) > 1 or len(term) != len(sizes):
            return None
        if letter in term and sizes[term.index(letter)] != 1:
            needs[position] = out._replace(dim=term.index(letter))
    return Flow(tuple(needs))


@rule("scaled_dot_product_attention")
def attention(call: Call, out: Slice) -> Flow | None:
    """Query [..., L, E], key [..., S, E], value [..., S, V]; result [..., L, V].

    Not along V, which would repeat all scores; not with dropout.
    """
    arguments = given(call)
    rank = len(call.shape)
    if arguments["dropout_p"] != 0 or rank < 3 or out.dim == rank - 1:
        return None
    if out.dim == rank - 2:
        return _queries(call, out, arguments)
    slices: dict[str, Slice | None] = {}
    for name in ("query", "key", "value"):
        sizes = shape(call, name)
        if sizes is None or len(sizes) != rank:
            return None
        slices[name] = out if sizes[out.dim] != 1 else None
        shared = Fraction(sizes[out.dim], call.shape[out.dim])
        if shared == 1 or sizes[out.dim] == 1:
            continue
        # Grouped queries: several of their heads share one of keys and values.
        if out.dim != rank - 3 or not arguments["enable_gqa"]:
            return None
        slices[name] = out.along(out.dim, shared)
        if shared.numerator != 1 or slices[name] is None:
            return None
    return Flow(needing(call, {**slices, "attn_mask": _mask(call, out)}))


def _mask(call: Call, out: Slice) -> Slice | None:
    return broadcast(out, len(call.shape), shape(call, "attn_mask") or ())


def _queries(call: Call, out: Slice, arguments: dict[str, Argument]) -> Flow | None:
    """Keys and values whole; of a causal mask, the rows of the window."""
    needs = needing(call, {"query": out, "attn_mask": _mask(call, out)})
    if not arguments["is_causal"]:
        return Flow(needs)
    keys = shape(call, "key")
    if keys is None or arguments["attn_mask"] is not None:
        return None
    window = call.window(out)
    args = (
        *(arguments[name] for name in ("query", "key", "value")),
        Bound(window, low=1, high=0),
        Bound(window, low=0, high=1, most=keys[-2]),
        {name: arguments[name] for name in ("scale", "enable_gqa")},
    )
    return Flow(needs, causal_attention, args, {})


AFFINE = ("weight", "bias", "running_mean", "running_var")  # one for each channel


@rule("layer_norm native_layer_norm rms_norm _fused_rms_norm")
def layer_norm(call: Call, out: Slice) -> Flow | None:
    """Dimensions before the normalised ones; weight and bias are taken whole."""
    normalised = len(integers(given(call)["normalized_shape"], 1))
    if out.dim >= len(call.shape) - normalised:
        return None
    return Flow(needing(call, {"input": out}))


@rule("batch_norm native_batch_norm _native_batch_norm_legit_no_training")
def batch_norm(call: Call, out: Slice) -> Flow | None:
    """With given statistics, any dimension; they are sliced with the channels."""
    if given(call).get("training"):
        return None
    return Flow(needing(call, {"input": out, **_channels(out)}))


@rule("instance_norm")
def instance_norm(call: Call, out: Slice) -> Flow | None:
    """Batch and channel; statistics that would be updated must not be there."""
    arguments = given(call)
    if out.dim > 1 or not arguments["use_input_stats"]:
        return None
    if arguments["running_mean"] is not None or arguments["running_var"] is not None:
        return None
    return Flow(needing(call, {"input": out, **_channels(out)}))


def _channels(out: Slice) -> dict[str, Slice | None]:
    return dict.fromkeys(AFFINE, out._replace(dim=0) if out.dim == 1 else None)


@rule("group_norm")
def group_norm(call: Call, out: Slice) -> Flow | None:
    """The batch alone; in other dimensions it takes two passes (`group_norm_apply`)."""
    return Flow(needing(call, {"input": out})) if out.dim == 0 else None


@rule("native_group_norm")
def native_group_norm(call: Call, out: Slice) -> Flow | None:
    """The batch alone, whose size is also an argument."""
    if out.dim != 0:
        return None
    return changed(call, needing(call, {"input": out}), {"N": extent(call.window(out))})


@rule(own="group_norm_statistics")
def group_norm_statistics(call: Call, out: Slice) -> Flow | None:
    """The batch, or the groups: a group is that of one sample."""
    x, _, eps = call.op.args
    if out.dim == 0:
        return Flow((out,))
    width = call.operands[0].shape[1] // call.shape[1]
    args = (x, extent(call.window(out)), eps)
    return Flow((out.along(1, width),), call.op.target, args, {})


@rule(own="group_norm_apply")
def group_norm_apply(call: Call, out: Slice) -> Flow | None:
    """Any dimension, whole groups of channels: each sample and group has a mean."""
    channels = out._replace(dim=0) if out.dim == 1 else None
    statistics = out if out.dim == 0 else None
    mean = shape(call, "mean")
    if mean is None:
        return None
    if out.dim == 1 and mean[1] > 1:
        statistics = out.along(1, Fraction(mean[1], call.shape[1]))
        if statistics is None:
            return None
    slices = {"x": out, "mean": statistics, "rstd": statistics}
    return Flow(needing(call, {**slices, "weight": channels, "bias": channels}))
