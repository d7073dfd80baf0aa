"""Element-wise operators, factories, reductions and look-ups."""

from __future__ import annotations

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
    shape,
    whole,
)
from memplan.graph.program import Argument, Bound, Meta, Ref

NAMES = """
__and__ __or__ __xor__
abs acos acosh add addcdiv addcmul alias angle asin asinh atan atan2 atanh bitwise_and
bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu
clamp clamp_max clamp_min clone complex conj _conj contiguous copy copysign cos cosh
deg2rad detach div elu eq erf erfc erfinv exp exp2 expand_as expm1 fill float_power
floor floor_divide fmax fmin fmod frac full_like ge gelu gt hardshrink hardsigmoid
hardswish hardtanh heaviside hypot imag isfinite isinf isnan isneginf isposinf _to_copy
leaky_relu le lerp lift_fresh_copy lgamma log log10 log1p log2 log_sigmoid logaddexp
logaddexp2 logical_and logical_not logical_or logical_xor logit lt masked_fill maximum
minimum mish mul nan_to_num ne neg ones_like polar positive pow _prelu_kernel rad2deg
real reciprocal relu relu6 remainder resolve_conj resolve_neg round rsqrt rsub selu sgn
sigmoid sign signbit silu sin sinc sinh softplus softshrink special_erf special_expit
special_log1p sqrt square sub tan tanh threshold true_divide trunc xlogy zeros_like
"""


@rule(NAMES)
@rule("broadcast_tensors")
def elementwise(call: Call, out: Slice) -> Flow | None:
    """Operands are aligned from the right; those of size 1 are taken whole."""
    needs = whole(call)
    for position, meta in enumerate(call.operands):
        if not isinstance(meta, Meta):
            return None
        aligned = broadcast(out, len(call.shape), meta.shape)
        if aligned is not None and meta.shape[aligned.dim] != call.shape[out.dim]:
            return None
        needs[position] = aligned
    return Flow(tuple(needs))


def broadcast(out: Slice, rank: int, shape: tuple[int, ...]) -> Slice | None:
    """The slice of an operand aligned from the right to a result of `rank`.

    None, all of it, where it has no such dimension or one of size 1.
    """
    dim = out.dim - (rank - len(shape))
    return out._replace(dim=dim) if dim >= 0 and shape[dim] != 1 else None


@rule("where")
def where(call: Call, out: Slice) -> Flow | None:
    """With a condition alone, the shape of the result depends on the data."""
    return elementwise(call, out) if len(call.op.args) == 3 else None


@rule("to type_as bucketize isin")
def first(call: Call, out: Slice) -> Flow | None:
    """Each element of the first operand, with the others whole.

    The second one lends its type, or is searched: its shape is not aligned.
    """
    if not call.operands or tuple(call.operands[0].shape) != call.shape:
        return None
    return Flow((out, *whole(call)[1:]))


@rule("dropout feature_dropout alpha_dropout native_dropout")
def dropout(call: Call, out: Slice) -> Flow | None:
    """When it drops, the numbers drawn would depend on the chunks."""
    arguments = given(call)
    drops = arguments["train"] is not False and arguments["p"] != 0
    return None if drops else elementwise(call, out)


@rule("prelu")
def prelu(call: Call, out: Slice) -> Flow | None:
    """Its weight has one element, or one for each channel (dimension 1)."""
    weight = shape(call, "weight")
    channel = out.dim == 1 and weight is not None and weight not in ((), (1,))
    slices = {"self": out, "weight": out._replace(dim=0) if channel else None}
    return Flow(needing(call, slices))


@rule("full zeros ones empty new_full new_zeros new_ones new_empty")
def sized(call: Call, out: Slice) -> Flow | None:
    """All elements are the same."""
    sizes = call.sizes(out)
    return changed(call, whole(call), {"size": sizes})


@rule("arange")
def arange(call: Call, out: Slice) -> Flow | None:
    """Integers from `start` in steps: the window's are start + [lo, hi) * step."""
    import torch

    arguments = given(call)
    start = arguments.get("start", 0)
    step = arguments.get("step", 1)
    ends = (start, arguments["end"], step)
    if any(type(value) is not int for value in ends):
        return None
    window = call.window(out)
    low = Bound(window, low=step, high=0, constant=start)
    high = Bound(window, low=0, high=step, constant=start)
    target = torch.ops.aten.arange.start_step
    return Flow((), target, (low, high, step), dict(_options(arguments)))


def _options(arguments: dict[str, Argument]) -> dict[str, Argument]:
    names = ("dtype", "layout", "device", "pin_memory")
    return {n: arguments[n] for n in names if arguments.get(n) is not None}


REDUCTIONS = """
all amax amin aminmax any argmax argmin count_nonzero kthvalue linalg_vector_norm
logsumexp max mean median min mode nanmean nanmedian nansum norm prod std std_mean sum
var var_mean
"""

ALONG = """
argsort cumprod cumsum cummax cummin diff
_log_softmax log_softmax logcumsumexp _safe_softmax
_softmax softmax sort topk glu fft_fft fft_ifft fft_rfft fft_irfft
"""


@rule(REDUCTIONS)
def reduction(call: Call, out: Slice) -> Flow | None:
    """Dimensions that are kept, renumbered where the reduced ones are dropped."""
    if len(call.operands) == 2:  # max and min of two tensors
        return elementwise(call, out)
    arguments = given(call)
    dims = arguments.get("dim")
    if dims is None or dims == []:
        return None
    rank = len(call.operands[0].shape)
    reduced = {positive(dim, rank) for dim in integers(dims, 1)}
    if len(call.shape) == rank:
        return Flow((out,)) if out.dim not in reduced else None
    kept = [dim for dim in range(rank) if dim not in reduced]
    return Flow((out._replace(dim=kept[out.dim]),)) if len(kept) > out.dim else None


@rule(ALONG)
def along(call: Call, out: Slice) -> Flow | None:
    """Whatever runs along one dimension leaves the others apart."""
    dim = given(call).get("dim")
    if not isinstance(dim, int) or len(call.operands) != 1:
        return None
    return Flow((out,)) if positive(dim, len(call.shape)) != out.dim else None


@rule("embedding")
def embedding(call: Call, out: Slice) -> Flow | None:
    """Features slice the table, all other dimensions the indices."""
    if out.dim == len(call.shape) - 1:
        return Flow(needing(call, {"weight": out._replace(dim=1)}))
    return Flow(needing(call, {"indices": out}))


@rule("one_hot")
def one_hot(call: Call, out: Slice) -> Flow | None:
    """Not along the classes, whose number must not depend on the data."""
    classes = given(call)["num_classes"]
    last = out.dim == len(call.shape) - 1
    return None if last or classes < 0 else Flow((out,))


@rule("index_select")
def index_select(call: Call, out: Slice) -> Flow | None:
    """The selected dimension slices the indices, another the tensor."""
    if positive(given(call)["dim"], len(call.shape)) == out.dim:
        return Flow(needing(call, {"index": out._replace(dim=0)}))
    return Flow(needing(call, {"self": out}))


@rule("gather")
def gather(call: Call, out: Slice) -> Flow | None:
    """The indices, and the tensor too where it is not gathered along that dimension."""
    if positive(given(call)["dim"], len(call.shape)) == out.dim:
        return Flow(needing(call, {"index": out}))
    source = shape(call, "self")
    if source is None or source[out.dim] != call.shape[out.dim]:
        return None
    return Flow(needing(call, {"self": out, "index": out}))


@rule("scatter scatter_add")
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


@rule("index")
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
