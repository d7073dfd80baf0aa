"""How a reduction adds the slices of its operands to a total, one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from memplan.chunking.rules.flow import (
    Call,
    Flow,
    Slice,
    given,
    integers,
    needing,
    positive,
    whole,
)
from memplan.graph.program import Argument, Meta, Ref, mapped

if TYPE_CHECKING:
    import torch

TOTAL = Ref("total")  # in a step, the total so far; in an end, the total of all


class Added(NamedTuple):
    """A call: its arguments are TOTAL, and what `operand` and `earlier` return.

    target: an operator, or the name of one of ATen. along: the dimension of its result
    that the loop slices; None if the result is of the shape of the reduction's.
    """

    target: Callable[..., object] | str
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument] = {}  # noqa: RUF012  (never changed)
    along: int | None = None

    def operator(self) -> Callable[..., object]:
        """The target, which a name says of operators of ATen."""
        if not isinstance(self.target, str):
            return self.target
        import torch

        found: Callable[..., object] = attrgetter(self.target)(torch.ops.aten)
        return found


@dataclass(frozen=True, kw_only=True)
class Accumulation(Flow):
    """How an operator that reduces a dimension runs in a loop over it.

    size: of that dimension. start: the total before the first slice: a number, or an
    operand that is broadcast to it. steps: the operators that add a slice; the last one
    makes the next total. ends: those that make the result of the total, after the loop;
    none where the total is the result. shape, dtype: of the total. direct: whether no
    step makes another value of its size.
    """

    size: int
    start: Argument
    steps: tuple[Added, ...]
    ends: tuple[Added, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    direct: bool = False


def place_of(at: Ref) -> int:
    """The position in what `operand` and `earlier` return."""
    return int(at.name.split()[1])


def operand(position: int) -> Ref:
    """In a step, the slice of an operand, by its position in `op.operands()`."""
    return Ref(f"operand {position}")


def earlier(position: int) -> Ref:
    """In a step, the result of an earlier one; the same in an end."""
    return Ref(f"earlier {position}")


Rule = Callable[[Call, Slice], Accumulation | None]
"""Given a call and which of its dimensions is sliced, how it adds to a total.

For most operators, `dim` is a dimension of the operand that they reduce.
"""

TOTALS: dict[str, Rule] = {}
"""The rules, by the operator's name without its overload."""


def total(names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators of ATen."""

    def register(function: Rule) -> Rule:
        TOTALS.update(
            dict.fromkeys((f"aten.{name}" for name in names.split()), function)
        )
        return function

    return register


def accumulation(call: Call, piece: Slice) -> Accumulation | None:
    """How `call` adds to a total what `piece` slices; None if it cannot."""
    rule = TOTALS.get(call.op.key)
    metas = (call.result, *call.operands)
    if rule is None or not all(isinstance(meta, Meta) for meta in metas):
        return None
    if any(meta.dtype.is_complex or not meta.elements for meta in metas):
        return None
    found = rule(call, piece)
    return found if found is not None and found.size > 1 else None


def pieces(call: Call) -> Iterator[Slice]:
    """The dimensions that a loop may reduce; whether it can is for `flow` to say."""
    if call.op.key in TOTALS:
        ranks = [len(meta.shape) for meta in call.operands if isinstance(meta, Meta)]
        yield from (Slice(dim, total=True) for dim in range(max(ranks, default=0)))


def _numbered(call: Call) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
    """The call's arguments, with operands by their position."""
    count = iter(range(len(call.operands)))
    args, kwargs = mapped(
        (call.op.args, call.op.kwargs),
        lambda at: operand(next(count)) if isinstance(at, Ref) else at,
    )
    return args, kwargs


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What sums of many numbers of a type are kept in."""
    import torch

    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def _narrowed(dtype: torch.dtype) -> tuple[Added, ...]:
    """The end that gives a total the result's type, if it has another."""
    if _wide(dtype) == dtype:
        return ()
    return (Added("_to_copy.default", (TOTAL,), {"dtype": dtype}),)


def _made(
    call: Call,
    needs: tuple[Slice | None, ...],
    size: int,
    steps: tuple[Added, ...],
    start: Argument = 0,
    **changes: Any,
) -> Accumulation:
    result: Meta = call.result
    changes = {
        "shape": result.shape,
        "dtype": _wide(result.dtype),
        "ends": _narrowed(result.dtype),
        **changes,
    }
    return Accumulation(needs, size=size, start=start, steps=steps, **changes)


def _combined(partial: Added, combine: str) -> tuple[Added, ...]:
    """Steps that make a slice's own result, and combine the total with it."""
    return partial, Added(combine, (TOTAL, earlier(0)))


def _reduced(call: Call) -> list[int]:
    """The dimensions of the operand that a reduction is over; an empty list means all
    of them, except to any and all."""
    rank = len(call.operands[0].shape)
    dims = given(call).get("dim")
    if dims is None or (dims == [] and call.op.key not in ("aten.any", "aten.all")):
        return list(range(rank))
    return [positive(dim, rank) for dim in integers(dims, 1)]


def _reduction(
    call: Call, piece: Slice, combine: str, start: float
) -> Accumulation | None:
    """The operator on each slice; then both are combined."""
    if len(call.operands) != 1 or piece.dim not in _reduced(call):
        return None
    size = call.operands[0].shape[piece.dim]
    args, kwargs = _numbered(call)
    wide = _wide(call.result.dtype)
    if wide != call.result.dtype and "dtype" in given(call):
        kwargs["dtype"] = wide
    partial = Added(call.op.target, args, kwargs)
    return _made(call, (_plain(piece),), size, _combined(partial, combine), start)


def _plain(piece: Slice, dim: int | None = None) -> Slice:
    """The slice of an operand along `dim`."""
    return piece._replace(dim=piece.dim if dim is None else dim, total=False)


@total("sum nansum count_nonzero")
def added(call: Call, piece: Slice) -> Accumulation | None:
    return _reduction(call, piece, "add.Tensor", 0)


@total("prod")
def multiplied(call: Call, piece: Slice) -> Accumulation | None:
    return _reduction(call, piece, "mul.Tensor", 1)


@total("logsumexp")
def logsumexp(call: Call, piece: Slice) -> Accumulation | None:
    """The larger of two exponents is taken out before they are added."""
    return _reduction(call, piece, "logaddexp.default", -math.inf)


@total("mean")
def mean(call: Call, piece: Slice) -> Accumulation | None:
    """The sum, which is divided after the loop."""
    sizes, dims = call.operands[0].shape, _reduced(call)
    dtype: torch.dtype = call.result.dtype
    if piece.dim not in dims:
        return None
    count = 1
    for dim in dims:
        count *= sizes[dim]
    keeps = bool(given(call).get("keepdim"))
    args = (operand(0), dims, keeps)
    partial = Added("sum.dim_IntList", args, {"dtype": _wide(dtype)})
    ends: tuple[Added, ...] = (Added("div.Tensor", (TOTAL, count)),)
    if _wide(dtype) != dtype:
        ends = (*ends, Added("_to_copy.default", (earlier(0),), {"dtype": dtype}))
    steps = _combined(partial, "add.Tensor")
    return _made(call, (_plain(piece),), sizes[piece.dim], steps, ends=ends)


@total("amax max")
def largest(call: Call, piece: Slice) -> Accumulation | None:
    """clamp_min is the maximum of two tensors, and has a form in place."""
    return _extreme(call, piece, "clamp_min.Tensor", True)


@total("amin min")
def smallest(call: Call, piece: Slice) -> Accumulation | None:
    return _extreme(call, piece, "clamp_max.Tensor", False)


def _extreme(
    call: Call, piece: Slice, combine: str, largest: bool
) -> Accumulation | None:
    import torch

    dtype: torch.dtype = call.result.dtype
    if dtype == torch.bool:
        combine = "logical_or.default" if largest else "logical_and.default"
        start: float = not largest
    elif dtype.is_floating_point:
        start = -math.inf if largest else math.inf
    else:
        start = torch.iinfo(dtype).min if largest else torch.iinfo(dtype).max
    found = _reduction(call, piece, combine, start)
    if found is None or found.dtype == dtype:
        return found
    return _made(
        call, found.needs, found.size, found.steps, start, dtype=dtype, ends=()
    )


@total("any")
def any_of(call: Call, piece: Slice) -> Accumulation | None:
    if str(call.result.dtype) != "torch.bool":
        return None
    return _reduction(call, piece, "logical_or.default", False)


@total("all")
def all_of(call: Call, piece: Slice) -> Accumulation | None:
    if str(call.result.dtype) != "torch.bool":
        return None
    return _reduction(call, piece, "logical_and.default", True)


@total("mm bmm mv dot")
def product(call: Call, piece: Slice) -> Accumulation | None:
    """The contracted dimension, the left operand's last, is sliced in both."""
    if len(call.operands) != 2:
        return None
    adds = {"aten.mm": "addmm", "aten.bmm": "baddbmm", "aten.mv": "addmv"}
    return _product(call, piece, adds.get(call.op.key), 0)


@total("addmm baddbmm addmv")
def added_product(call: Call, piece: Slice) -> Accumulation | None:
    """The total begins with the matrix that the product is added to."""
    arguments = given(call)
    if arguments["beta"] != 1 or arguments["alpha"] != 1:
        return None
    adds = call.op.key.removeprefix("aten.")
    return _product(call, piece, adds, operand(0))


def _product(
    call: Call, piece: Slice, adds: Any, start: Argument
) -> Accumulation | None:
    first = 0 if start == 0 else 1  # of the operands, the first factor
    left, right = (meta.shape for meta in call.operands[first:])
    if piece.dim != len(left) - 1:
        return None
    needs = (*[None] * first, _plain(piece), _plain(piece, max(0, len(right) - 2)))
    factors = operand(first), operand(first + 1)
    if adds is not None and _wide(call.result.dtype) == call.result.dtype:
        steps: tuple[Added, ...] = (Added(f"{adds}.default", (TOTAL, *factors)),)
        return _made(call, needs, left[-1], steps, start, direct=True)
    partial = Added("matmul.default", factors)
    steps = _combined(partial, "add.Tensor")
    return _made(call, needs, left[-1], steps, start)


@total("linear matmul")
def rows_of_products(call: Call, piece: Slice) -> Accumulation | None:
    """The rows become one matrix if the right operand is one: so the product is added
    to the total without a value beside it."""
    turned = call.op.key == "aten.linear"
    left, right = (meta.shape for meta in call.operands[:2])
    if piece.dim != len(left) - 1 or (turned and len(right) != 2):
        return None
    last = len(right) - 1 if turned else max(0, len(right) - 2)
    needs = [_plain(piece), _plain(piece, last), *whole(call)[2:]]
    start: Argument = operand(2) if len(call.operands) == 3 else 0
    result: Meta = call.result
    direct = _wide(result.dtype) == result.dtype and not call.moving
    steps: list[Added] = []
    if direct and len(right) == 2 and len(left) > 1:
        rows: Ref = operand(0)
        if len(left) > 2:
            steps.append(Added("flatten.using_ints", (rows, 0, -2), along=1))
            rows = earlier(0)
        columns: Ref = operand(1)
        if turned:
            steps.append(Added("t.default", (columns,), along=0))
            columns = earlier(len(steps) - 1)
        steps.append(Added("addmm.default", (TOTAL, rows, columns)))
        shape = result.elements // result.shape[-1], result.shape[-1]
        again = Added("reshape.default", (TOTAL, list(result.shape)))
        ends: tuple[Added, ...] = (again,) if len(left) > 2 else ()
        changes = {"shape": shape, "ends": ends, "direct": True}
        return _made(call, tuple(needs), left[-1], tuple(steps), start, **changes)
    batched = len(left) == len(right) == 3 and left[0] == right[0]
    if direct and batched and not turned:
        steps = [Added("baddbmm.default", (TOTAL, operand(0), operand(1)))]
        return _made(call, tuple(needs), left[-1], tuple(steps), direct=True)
    partial = Added(call.op.target, (operand(0), operand(1)))
    both = _combined(partial, "add.Tensor")
    return _made(call, tuple(needs), left[-1], both, start)


@total("einsum")
def einsum(call: Call, piece: Slice) -> Accumulation | None:
    """Letters that the result has not, in their order; `dim` counts them."""
    equation = str(given(call)["equation"]).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    letters = [letter for letter in dict.fromkeys(left) if letter not in f"{right},"]
    if "." in equation or not arrow or piece.dim >= len(letters):
        return None
    letter, needs = letters[piece.dim], whole(call)
    sizes = set()
    for i, (term, meta) in enumerate(zip(terms, call.operands, strict=True)):
        if term.count(letter) > 1:
            return None
        if letter in term:
            needs[i] = _plain(piece, term.index(letter))
            sizes.add(meta.shape[term.index(letter)])
    if len(sizes) > 1:
        return None
    args, kwargs = _numbered(call)
    steps = _combined(Added(call.op.target, args, kwargs), "add.Tensor")
    return _made(call, tuple(needs), sizes.pop(), steps)


def _onto(call: Call, needs: tuple[Slice | None, ...], size: int) -> Accumulation:
    """An operator that adds to its first operand, with the total in its place."""
    args, kwargs = _numbered(call)
    steps = (Added(call.op.target, (TOTAL, *args[1:]), kwargs),)
    dtype: torch.dtype = call.result.dtype
    return _made(
        call, needs, size, steps, operand(0), dtype=dtype, ends=(), direct=True
    )


@total("index_add")
def index_add(call: Call, piece: Slice) -> Accumulation | None:
    """Index and source are sliced."""
    rank = len(call.shape)
    index, source = (meta.shape for meta in call.operands[1:])
    same = len(index) == 1 and len(source) == rank
    if not same or piece.dim != positive(given(call)["dim"], rank):
        return None
    slices = {"index": _plain(piece, 0), "source": _plain(piece)}
    return _onto(call, needing(call, slices), index[0])


@total("scatter_add scatter_reduce")
def scatter_add(call: Call, piece: Slice) -> Accumulation | None:
    """Index and source are sliced along the dimension that is scattered."""
    arguments, rank = given(call), len(call.shape)
    adds = arguments.get("reduce", "sum") in {"sum", "prod", "amax", "amin"}
    if not adds or not arguments.get("include_self", True):
        return None
    index, source = (meta.shape for meta in call.operands[1:])
    if rank == 0 or piece.dim != positive(arguments["dim"], rank):
        return None
    if len(index) != rank or index[piece.dim] != source[piece.dim]:
        return None
    slices = {"index": _plain(piece), "src": _plain(piece)}
    return _onto(call, needing(call, slices), index[piece.dim])


@total("index_put")
def index_put(call: Call, piece: Slice) -> Accumulation | None:
    """Indices of the first dimensions, and the values that are added there."""
    arguments = given(call)
    slots = arguments["indices"]
    if not arguments["accumulate"] or not all(isinstance(each, Ref) for each in slots):
        return None
    *indices, values = call.operands[1:]
    shape = indices[0].shape
    rest = call.shape[len(indices) :]
    numbers = all(
        meta.shape == shape and str(meta.dtype) in ("torch.int32", "torch.int64")
        for meta in indices
    )
    if not numbers or values.shape != (*shape, *rest) or piece.dim >= len(shape):
        return None
    needs = (None, *[_plain(piece)] * (len(indices) + 1))
    return _onto(call, needs, shape[piece.dim])
