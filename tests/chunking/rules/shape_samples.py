"""Calls that move, repeat, cut and join dimensions."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch

from tests.chunking.rules.rule_check import Sample

aten = torch.ops.aten


def view_samples() -> Iterator[Sample]:
    x = torch.randn(2, 12, 5)
    for op in (aten.view.default, aten.reshape.default, aten._unsafe_view.default):
        yield Sample(op, (x, [24, 5]), {}, (0, 1))
        yield Sample(op, (x, [2, 3, 4, 5]), {}, (0, 1, 3))
        yield Sample(op, (x, [2, -1]), {}, (0, 1))
        yield Sample(op, (x, [6, 20]), {}, (0,))
        yield Sample(op, (x, [1, 2, 1, 12, 5, 1]), {}, (1, 3, 4))
    yield Sample(aten.view.default, (x[:1, :1, :1], [1]), {}, ())
    yield Sample(aten.view.dtype, (x, torch.int32), {}, (0, 1, 2))
    yield Sample(
        aten.view.dtype, (x.to(torch.bfloat16)[..., :4], torch.int16), {}, (0, 1, 2)
    )
    yield Sample(aten.view.dtype, (x, torch.int16), {}, ())
    yield Sample(aten.reshape.default, (x.permute(2, 1, 0), [60, 2]), {}, (0, 1))
    yield Sample(aten.reshape.default, (torch.randn(0, 3), [3, 0]), {}, ())
    yield Sample(aten.view_copy.default, (x, [24, 5]), {}, (0, 1))
    yield Sample(aten._reshape_copy.default, (x, [24, 5]), {}, (0, 1))
    yield Sample(aten.flatten.using_ints, (x, 1), {}, (0, 1))
    yield Sample(aten.flatten.using_ints, (x,), {}, (0,))
    yield Sample(aten.unflatten.int, (x, 1, [3, -1]), {}, (0, 1, 3))
    one = x[:, :1, None]
    yield Sample(aten.squeeze.default, (one,), {}, (0, 1))
    yield Sample(aten.squeeze.dim, (one, 1), {}, (0, 2))
    yield Sample(aten.squeeze.dim, (one, 0), {}, (0, 3))
    yield Sample(aten.squeeze.dims, (one, [1, 2]), {}, (0, 1))
    yield Sample(aten.unsqueeze.default, (x, 1), {}, (0, 2, 3))
    yield Sample(aten.unsqueeze.default, (x, -1), {}, (0, 1, 2))
    yield Sample(aten.unsqueeze.default, (torch.tensor(1.0), 0), {}, ())
    z = torch.randn(3, 4, 2)
    yield Sample(aten.view_as_complex.default, (z,), {}, (0, 1))
    yield Sample(aten.view_as_real.default, (torch.complex(z, z),), {}, (0, 1, 2))


def axis_samples() -> Iterator[Sample]:
    x = torch.randn(2, 3, 4, 5)
    yield Sample(aten.permute.default, (x, [2, -1, 0, 1]), {}, (0, 1, 2, 3))
    yield Sample(aten.transpose.int, (x, 1, -1), {}, (0, 1, 2, 3))
    yield Sample(aten.swapaxes.default, (x, 0, 2), {}, (0, 1, 2, 3))
    yield Sample(aten.swapdims.default, (x, 0, 2), {}, (0, 1, 2, 3))
    yield Sample(aten.t.default, (x[0, 0],), {}, (0, 1))
    yield Sample(aten.t.default, (x[0, 0, 0],), {}, (0,))
    yield Sample(aten.mT.default, (x,), {}, (0, 1, 2, 3))
    yield Sample(aten.movedim.int, (x, 0, -1), {}, (0, 1, 2, 3))
    yield Sample(aten.movedim.intlist, (x, [0, 3], [2, 0]), {}, (0, 1, 2, 3))
    yield Sample(aten.moveaxis.int, (x, 3, 1), {}, (0, 1, 2, 3))
    row = torch.randn(3, 1, 7)
    yield Sample(aten.expand.default, (row, [2, 3, 4, 7]), {}, (0, 1, 2, 3))
    yield Sample(aten.expand.default, (row, [-1, 4, -1]), {}, (0, 1, 2))
    yield Sample(aten.broadcast_to.default, (row, [3, 4, 7]), {}, (0, 1, 2))
    yield Sample(aten.repeat.default, (row, [2, 1, 4, 3]), {}, (0, 1, 2))
    yield Sample(aten.tile.default, (row, [4, 2]), {}, (0, 1))
    yield Sample(aten.tile.default, (row, [2, 1, 1, 1]), {}, (0, 1, 3))
    yield Sample(aten.repeat_interleave.self_int, (row, 4, 0), {}, (0, 2))
    yield Sample(
        aten.repeat_interleave.self_int, (row, 2, -1), {"output_size": 14}, (0, 2)
    )
    yield Sample(aten.repeat_interleave.self_int, (row, 2), {}, ())
    yield Sample(aten.repeat_interleave.Tensor, (torch.tensor([1, 2]),), {}, ())
    yield Sample(aten.flip.default, (x, [1, -1]), {}, (0, 2))
    yield Sample(aten.roll.default, (x, [1], [2]), {}, (0, 1, 3))
    yield Sample(aten.roll.default, (x, [3]), {}, ())


def piece_samples() -> Iterator[Sample]:
    x = torch.randn(3, 7, 6)
    yield Sample(aten.select.int, (x, -2, 3), {}, (0, 1))
    yield Sample(aten.slice.Tensor, (x, 1, 2, 6), {}, (0, 1, 2))
    yield Sample(aten.slice.Tensor, (x, -1, -4), {}, (0, 1, 2))
    yield Sample(aten.slice.Tensor, (x, 1, 0, 9223372036854775807), {}, (0, 1, 2))
    yield Sample(aten.slice.Tensor, (x, 1, 0, 7, 2), {}, (0, 2))
    yield Sample(aten.narrow.default, (x, 1, 2, 4), {}, (0, 1, 2))
    yield Sample(aten.stack.default, ([x, x + 1], 1), {}, (0, 2, 3))
    yield Sample(aten.stack.default, ([x, x + 1], -1), {}, (0, 1, 2))
    yield Sample(aten.cat.default, ([x, x[:, :2]], 1), {}, (0, 2))
    yield Sample(aten.cat.default, ([torch.ones(0), x, x],), {}, (1, 2))
    pieces = list(x.split(3, 1))
    yield Sample(operator.getitem, (pieces, 1), {}, (0, 1, 2))
    yield Sample(operator.getitem, (pieces, 2), {}, (0, 2))
    yield Sample(aten.constant_pad_nd.default, (x, [1, 2]), {}, (0, 1))
    yield Sample(aten.constant_pad_nd.default, (x, [0, 0, -1, 2], 1.0), {}, (0, 2))
    yield Sample(aten.pad.default, (x, [1, 2], "reflect"), {}, (0, 1))
    y = torch.randn(2, 3, 4, 5, 6)
    for name in ("reflection", "replication"):
        for count in (1, 2, 3):
            rank = 5 if count == 3 else count + 2
            op = getattr(aten, f"{name}_pad{count}d").default
            source = y[(0,) * (5 - rank)]
            yield Sample(op, (source, [1] * 2 * count), {}, tuple(range(rank - count)))
    yield Sample(aten.unfold.default, (x, 1, 3, 2), {}, (0, 1, 2))
    yield Sample(aten.unfold.default, (x, 2, 2, 1), {}, (0, 1, 2))
    yield Sample(aten.unfold.default, (x, -2, 1, 3), {}, (0, 1, 2))
    yield Sample(aten.slice_scatter.default, (x, x[:, :2] + 1, 1, 0, 2), {}, (0, 2))
    yield Sample(aten.select_scatter.default, (x, x[:, 0] + 1, 1, 4), {}, (0, 2))
    yield Sample(aten.diagonal.default, (x, 0, 1, 2), {}, (0,))
    yield Sample(aten.diagonal.default, (x, 1, 0, -2), {}, (0,))
    yield Sample(aten.tril.default, (x,), {}, (0, 1, 2))
    yield Sample(aten.triu.default, (x, 2), {}, (0, 1, 2))
    yield Sample(aten.tril.default, (x[0], -1), {}, (0, 1))
