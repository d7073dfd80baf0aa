"""Matrix products: rows of the left operand, columns of the right, batches of both."""

from __future__ import annotations

from memplan.chunking.rules.arguments import given, needing, places, shape
from memplan.chunking.rules.elementwise import broadcast
from memplan.chunking.rules.flow import Call, Flow, Rule, Slice, whole


def linear(call: Call, out: Slice) -> Flow | None:
    """Rows slice the input; the output features slice weight and bias."""
    weight = shape(call, "weight")
    if weight is None or len(weight) != 2:
        return None
    if out.dim < len(call.shape) - 1:
        return Flow(needing(call, {"input": out}))
    features = out._replace(dim=0)
    return Flow(needing(call, {"weight": features, "bias": features}))


def matmul(call: Call, out: Slice) -> Flow | None:
    """torch.matmul's cases: a vector operand has no row, or no column, dimension."""
    if len(call.operands) != 2:
        return None
    left, right = (tuple(meta.shape) for meta in call.operands)
    return Flow(_products(left, right, out, len(call.shape)))


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


def outer(call: Call, out: Slice) -> Flow | None:
    """A vector gives the rows, another the columns."""
    return Flow((out, None) if out.dim == 0 else (None, out._replace(dim=0)))


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


RULES: dict[str, Rule] = {
    "aten.linear": linear,
    "aten.matmul": matmul,
    "aten.mm": matmul,
    "aten.bmm": matmul,
    "aten.mv": matmul,
    "aten.addmm": added,
    "aten.addmv": added,
    "aten.baddbmm": added,
    "aten.outer": outer,
    "aten.cdist": cdist,
    "aten.einsum": einsum,
}
