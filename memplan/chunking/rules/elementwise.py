"""Element by element, with broadcasting: any dimension may be sliced."""

from __future__ import annotations

from memplan.chunking.rules.flow import Call, Flow, Meta, Rule, Slice, whole

NAMES = """
abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_not
bitwise_or bitwise_xor ceil celu clamp clamp_max clamp_min clone contiguous copysign cos
cosh deg2rad div elu eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod
frac ge gelu gt hardsigmoid hardswish hardtanh heaviside hypot isfinite isinf isnan le
leaky_relu lerp lgamma log log10 log1p log2 logaddexp logical_and logical_not logical_or
logical_xor logit lt masked_fill maximum minimum mish mul nan_to_num ne neg pow
prelu_kernel rad2deg reciprocal relu relu6 remainder round rsqrt rsub selu sigmoid sign
silu sin sinc sinh softplus softshrink hardshrink threshold log_sigmoid sqrt square sub
tan tanh to _to_copy trunc where xlogy special_expit alias detach type_as
""".split()


def elementwise(call: Call, out: Slice) -> Flow | None:
    """Operands are aligned from the right; those of size 1 are taken whole."""
    needs = whole(call)
    rank = len(call.shape)
    for position, meta in enumerate(call.operands):
        if not isinstance(meta, Meta):
            return None
        dim = out.dim - (rank - len(meta.shape))
        if dim >= 0 and meta.shape[dim] != 1:
            needs[position] = out.along(dim)
    return Flow(tuple(needs))


RULES: dict[str, Rule] = {f"aten.{name}": elementwise for name in NAMES}
