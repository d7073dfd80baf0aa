"""Element by element, with broadcasting: any dimension may be sliced."""

from __future__ import annotations

from memplan.chunking.rules.arguments import given, needing, shape
from memplan.chunking.rules.flow import Call, Flow, Meta, Rule, Slice, each, whole

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

# The second operand lends its type, or is searched: its shape is not aligned.
FIRST = "to type_as bucketize isin"


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


def where(call: Call, out: Slice) -> Flow | None:
    """With a condition alone, the shape of the result depends on the data."""
    return elementwise(call, out) if len(call.op.args) == 3 else None


def first(call: Call, out: Slice) -> Flow | None:
    """Each element of the first operand, with the others whole."""
    if not call.operands or tuple(call.operands[0].shape) != call.shape:
        return None
    return Flow((out, *whole(call)[1:]))


def dropout(call: Call, out: Slice) -> Flow | None:
    """When it drops, the numbers drawn would depend on the chunks."""
    arguments = given(call)
    drops = arguments["train"] is not False and arguments["p"] != 0
    return None if drops else elementwise(call, out)


def prelu(call: Call, out: Slice) -> Flow | None:
    """Its weight has one element, or one for each channel (dimension 1)."""
    weight = shape(call, "weight")
    channel = out.dim == 1 and weight is not None and weight not in ((), (1,))
    slices = {"self": out, "weight": out._replace(dim=0) if channel else None}
    return Flow(needing(call, slices))


RULES: dict[str, Rule] = {
    "aten.broadcast_tensors": elementwise,
    **each(NAMES, elementwise),
    **each(FIRST, first),
    "aten.where": where,
    "aten.dropout": dropout,
    "aten.feature_dropout": dropout,
    "aten.alpha_dropout": dropout,
    "aten.native_dropout": dropout,
    "aten.prelu": prelu,
}
