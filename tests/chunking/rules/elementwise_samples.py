"""Calls of element-wise operators, and of makers of constant tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from memplan.chunking.rules import elementwise
from tests.chunking.rules.rule_check import Sample

aten = torch.ops.aten
ALL = (0, 1, 2)

POSITIVE = "acosh log log10 log1p log2 rsqrt sqrt lgamma special_log1p"
FRACTIONS = "acos asin atanh erfinv"
COMPLEX = {"imag", "_conj", "conj", "resolve_conj"}
INTEGERS = """
__and__ __or__ __xor__ bitwise_and bitwise_or bitwise_xor bitwise_left_shift
bitwise_right_shift
"""
ALIKE = {"_prelu_kernel", "expand_as"}
BINARY = """
add atan2 copysign div eq expand_as floor_divide fmax fmin fmod float_power ge gt
heaviside hypot le logaddexp logaddexp2 logical_and logical_or logical_xor lt maximum
minimum mul ne pow remainder rsub sub true_divide xlogy _prelu_kernel copy
"""
EXTRA = {
    "leaky_relu": (0.1,),
    "clamp_max": (0.3,),
    "clamp_min": (0.3,),
    "clamp": (-0.3, 0.3),
    "threshold": (0.1, 0.0),
    "fill": (2.0,),
    "full_like": (2.0,),
    "logit": (1e-3,),
    "celu": (1.0,),
}
# Those with a call of their own below.
APART = "addcdiv addcmul lerp masked_fill complex polar bitwise_not logical_not"


def elementwise_samples() -> Iterator[Sample]:
    """Every name in the table, with broadcasting where there are two operands."""
    for name in elementwise.NAMES.split():
        if name in BINARY.split():
            x, y = torch.rand(3, 4, 7) + 1.5, torch.rand(4, 7) + 0.5
            y = y.expand(3, 4, 7) if name in ALIKE else y
            yield Sample(_operator(name, "Tensor"), (x, y), {}, ALL, True)
        elif name in INTEGERS.split():
            x, y = torch.randint(0, 9, (3, 4, 7)), torch.randint(0, 9, (4, 1))
            yield Sample(_operator(name, "Tensor"), (x, y), {}, ALL)
        elif name not in APART.split():
            for dtype in (torch.float32, torch.bfloat16):
                yield _unary(name, dtype)
    yield from _others()


def _operator(name: str, wanted: str) -> Any:
    """An operator's overload of a name, or its first."""
    packet = getattr(aten, name)
    names = packet.overloads()
    return getattr(packet, wanted if wanted in names else names[0])


def _unary(name: str, dtype: torch.dtype) -> Sample:
    x = torch.randn(3, 4, 7)
    if name in POSITIVE.split():
        x = x.abs() + 1.01
    elif name in FRACTIONS.split():
        x = x.clamp(-0.9, 0.9)
    x = torch.complex(x, x) if name in COMPLEX else x.to(dtype)
    # The ends of vectors are computed by scalar code, which may round differently.
    return Sample(
        _operator(name, "default"), (x, *EXTRA.get(name, ())), {}, ALL, close=True
    )


def _others() -> Iterator[Sample]:
    x, row = torch.randn(3, 4, 7), torch.randn(7)
    column, mask = torch.rand(3, 1, 1), torch.rand(4, 1) > 0.5
    yield Sample(aten.addcmul.default, (x, row, column), {"value": 0.5}, ALL, True)
    yield Sample(aten.addcdiv.default, (x, row, column + 1), {}, ALL, True)
    yield Sample(aten.lerp.Scalar, (x, row, 0.3), {}, ALL, True)
    yield Sample(aten.lerp.Tensor, (x, row, column), {}, ALL, True)
    yield Sample(aten.masked_fill.Scalar, (x, mask, -1e9), {}, ALL)
    yield Sample(aten.masked_fill.Tensor, (x, mask, torch.tensor(2.0)), {}, ALL)
    yield Sample(aten.bitwise_not.default, (x > 0,), {}, ALL)
    yield Sample(aten.logical_not.default, (x,), {}, ALL)
    yield Sample(aten.complex.default, (x, row), {}, ALL)
    yield Sample(aten.polar.default, (x.abs(), row), {}, ALL, True)
    yield Sample(aten.add.Scalar, (x, 2), {}, ALL)
    yield Sample(aten.add.Tensor, (torch.randn(3, 1, 7), torch.randn(4, 1)), {}, ALL)
    yield Sample(aten.clamp.Tensor, (x, row - 1, row + 1), {}, ALL)
    yield Sample(aten.where.self, (mask, x, row), {}, ALL)
    yield Sample(aten.where.ScalarOther, (x > 0, x, 0.0), {}, ALL)
    yield Sample(aten.where.Scalar, (mask, 1.0, 0.0), {}, (0,))
    yield Sample(aten.where.default, (torch.tensor([1, 0, 1]),), {}, ())
    yield Sample(aten.to.dtype, (x, torch.bfloat16), {}, ALL)
    yield Sample(aten._to_copy.default, (x,), {"dtype": torch.float64}, ALL)
    yield Sample(aten.to.other, (x, row.double()), {}, ALL)
    yield Sample(aten.type_as.default, (x, torch.ones(4, 4, 4).half()), {}, ALL)
    edges = torch.tensor([-1.0, 0.0, 1.0])
    yield Sample(aten.bucketize.Tensor, (x, edges), {}, ALL)
    yield Sample(aten.bucketize.Scalar, (0.5, edges), {}, ())
    yield Sample(aten.isin.Tensor_Tensor, (x.int(), torch.tensor([0, 1])), {}, ALL)
    yield Sample(aten.dropout.default, (x, 0.5, False), {}, ALL)
    yield Sample(aten.dropout.default, (x, 0.5, True), {}, ())
    yield Sample(aten.feature_dropout.default, (x, 0.5, False), {}, ALL)
    yield Sample(aten.alpha_dropout.default, (x, 0.5, False), {}, ALL)
    yield Sample(aten.native_dropout.default, (x, 0.5, False), {}, ALL)
    yield Sample(aten.native_dropout.default, (x, 0.5, None), {}, ())
    yield Sample(aten.prelu.default, (x, torch.rand(4)), {}, ALL)
    yield Sample(aten.prelu.default, (x, torch.rand(1)), {}, ALL)
    both = [torch.randn(3, 1, 7), torch.randn(4, 1)]
    yield Sample(aten.broadcast_tensors.default, (both,), {}, ALL)
    yield Sample(aten.relu.default, (torch.tensor(1.0),), {}, ())
    yield Sample(aten.relu.default, (torch.ones(0, 1),), {}, ())
    yield Sample(aten.relu.default, (torch.ones(1, 5),), {}, (1,))
    yield Sample(aten.exp.default, (torch.randn(5, 6).t(),), {}, (0, 1), True)


def factory_samples() -> Iterator[Sample]:
    """Constant tensors; random ones are not to be sliced."""
    x = torch.ones(3)
    yield Sample(aten.full.default, ([4, 7], 2.5), {"dtype": torch.bfloat16}, (0, 1))
    yield Sample(aten.zeros.default, ([4, 1, 7],), {}, (0, 2))
    yield Sample(aten.ones.default, ([5],), {"dtype": torch.int64}, (0,))
    yield Sample(aten.empty.memory_format, ([4, 7],), {}, (0, 1), data=False)
    yield Sample(aten.new_empty.default, (x, [4, 7]), {}, (0, 1), data=False)
    yield Sample(aten.new_full.default, (x, [4, 3], 1.5), {}, (0, 1))
    yield Sample(aten.new_zeros.default, (x, [4, 3]), {}, (0, 1))
    yield Sample(aten.new_ones.default, (x, [4, 3]), {"dtype": torch.bool}, (0, 1))
    yield Sample(aten.arange.default, (7,), {}, (0,))
    yield Sample(aten.arange.start, (3, 11), {"dtype": torch.float32}, (0,))
    yield Sample(aten.arange.start_step, (3, 20, 4), {}, (0,))
    yield Sample(aten.arange.start_step, (20, 3, -3), {}, (0,))
    yield Sample(aten.arange.default, (7.5,), {}, ())
    yield Sample(aten.rand.default, ([4, 4],), {}, ())
    yield Sample(aten.rand_like.default, (x,), {}, ())
    yield Sample(aten.scalar_tensor.default, (2.0,), {}, ())
