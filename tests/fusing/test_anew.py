"""What is said to be memory of its own is, whatever operators are called with."""

from __future__ import annotations

import operator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memplan.fusing.engine.arena import allocates_result  # noqa: E402
from memplan.graph.program import Op, Ref  # noqa: E402

pytestmark = pytest.mark.torch

aten = torch.ops.aten
ONES = torch.ones(1, 1, 1, 1).expand(4, 1, 1, 1)
# Operators with memory of their own, with arguments by which least is changed.
FRESH: dict[Any, tuple[Any, ...]] = {
    aten.pixel_shuffle.default: (1,),
    aten.pixel_unshuffle.default: (1,),
    aten.upsample_nearest2d.default: ([4, 4],),
    aten.upsample_nearest2d.vec: (None, [1.0, 1.0]),
    aten.upsample_bilinear2d.vec: ([4, 4], False, None),
    **dict.fromkeys(
        (aten.gelu.default, aten.mish.default, aten.silu.default, aten.tanh.default), ()
    ),
    **dict.fromkeys((aten.pow.Tensor_Scalar, aten.mul.Tensor, aten.div.Tensor), (1,)),
    **dict.fromkeys((aten.add.Tensor, aten.sub.Tensor), (0,)),
    aten.constant_pad_nd.default: ([0, 0],),
    aten.softmax.int: (1,),
    aten.log_softmax.int: (1,),
    aten.mean.dim: ([],),
    aten.sum.dim_IntList: ([0],),
    aten.layer_norm.default: ([4],),
    aten.group_norm.default: (2,),
    aten.conv2d.default: (ONES, None, [1, 1], [0, 0], [1, 1], 4),
    aten.conv_transpose2d.input: (ONES, None, [1, 1], [0, 0], [0, 0], 4),
    aten.linear.default: (torch.eye(4),),
    aten.matmul.default: (torch.eye(4),),
    aten.clone.default: (),
    aten.roll.default: ([0],),
    aten.repeat.default: ([1, 1, 1, 1],),
}
VIEWS: dict[Any, tuple[Any, ...]] = {
    aten.reshape.default: ([-1],),
    aten.flatten.using_ints: (1,),
    aten.contiguous.default: (),
    aten._unsafe_view.default: ([-1],),
    aten.chunk.default: (2,),
    aten.dropout.default: (0.5, False),
    aten.expand.default: ([1, 4, 4, 4],),
    aten.slice.Tensor: (1,),
    aten.to.dtype: (torch.float32,),
    operator.getitem: (0,),
}


def op(target: Any, rest: tuple[Any, ...]) -> Op:
    return Op("made", target, (Ref("x"), *rest))


def test_operators_with_memory_of_their_own() -> None:
    for call, rest in FRESH.items():
        assert allocates_result(op(call, rest)), call
        for form in (torch.contiguous_format, torch.channels_last):
            for images in (1, 2):
                x = torch.rand(images, 4, 4, 4).to(memory_format=form)
                found = call(x, *rest)
                own = found.untyped_storage().data_ptr()
                assert own != x.untyped_storage().data_ptr(), call


def test_views_are_none() -> None:
    for call, rest in VIEWS.items():
        assert not allocates_result(op(call, rest)), call
