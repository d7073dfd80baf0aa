"""Calls of products, reductions, look-ups, normalisations and attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from memplan.chunking.rules.lowered import group_norm_apply, group_norm_statistics
from tests.chunking.experts import grouped
from tests.chunking.rules.rule_check import Sample

aten = torch.ops.aten


def contraction_samples() -> Iterator[Sample]:
    def product(op: Any, *args: Any, dims: tuple[int, ...], **kwargs: Any) -> Sample:
        return Sample(op, args, kwargs, dims, close=True)

    x, w, b = torch.randn(2, 7, 6), torch.randn(9, 6), torch.randn(9)
    for dtype in (torch.float32, torch.bfloat16):
        args = (x.to(dtype), w.to(dtype), b.to(dtype))
        yield product(aten.linear.default, *args, dims=(0, 1, 2))
    yield product(aten.linear.default, x[0], w, dims=(0, 1))
    yield product(aten.linear.default, x[0, 0], w, b, dims=(0,))
    y = torch.randn(2, 6, 5)
    yield product(aten.mm.default, x[0], y[0], dims=(0, 1))
    yield product(aten.bmm.default, x, y, dims=(0, 1, 2))
    yield product(aten.mv.default, x[0], y[0, :, 0], dims=(0,))
    for bias in (torch.randn(5), torch.randn(7, 1), torch.randn(7, 5)):
        yield product(aten.addmm.default, bias, x[0], y[0], dims=(0, 1), alpha=0.5)
        yield product(aten.baddbmm.default, bias, x, y, dims=(0, 1, 2), beta=0.5)
    yield product(aten.addmv.default, b[:7], x[0], y[0, :, 0], dims=(0,))
    yield product(aten.matmul.default, x, y, dims=(0, 1, 2))
    yield product(aten.matmul.default, x, y[:1], dims=(0, 1, 2))
    three = torch.randn(3, 6, 8)
    for ends in ([2, 2, 7], [0, 7, 7]):
        at = torch.tensor(ends, dtype=torch.int32)
        yield product(grouped(), x[0], three, at, dims=(0, 1))
        rows = torch.randn(7, 16)[:, :8], torch.randn(3, 8, 8)
        yield product(aten._grouped_mm.default, *rows, at, dims=(0,))
    wide = torch.randn(3, 1, 7, 6)
    yield product(aten.matmul.default, wide, y, dims=(0, 1, 2, 3))
    yield product(aten.matmul.default, y[0].t(), wide.mT, dims=(0, 2, 3))
    yield product(aten.matmul.default, x[0, 0], y, dims=(0, 1))
    yield product(aten.matmul.default, x, y[0, :, 0], dims=(0, 1))
    yield product(aten.matmul.default, x[0, 0], y[0], dims=(0,))
    yield product(aten.matmul.default, x[0, 0], y[0, :, 0], dims=())
    yield product(aten.cdist.default, x, torch.randn(2, 9, 6), dims=(0, 1, 2))
    yield product(aten.cdist.default, x, torch.randn(9, 6), dims=(0, 1, 2))
    yield product(aten.outer.default, b, w[:, 0], dims=(0, 1))
    yield product(aten.einsum.default, "bij, bjk -> bki", [x, y], dims=(0, 1, 2))
    yield product(aten.einsum.default, "bij,bjk", [x, y], dims=(0, 1))
    yield product(aten.einsum.default, "bij,j->bi", [x[:1], x[0, 0]], dims=(1,))
    yield product(
        aten.einsum.default,
        "ikc,jkc->ijc",
        [torch.randn(4, 5, 3), torch.randn(6, 5, 3)],
        dims=(0, 1, 2),
    )
    yield product(aten.einsum.default, "bij,bjk->ik", [x[:1], y], dims=(0, 1))
    yield product(aten.einsum.default, "bij,bjk->bik", [x[:1], y], dims=(0, 1, 2))
    yield product(aten.einsum.default, "...ij,...jk->...ik", [x, y], dims=())
    yield product(aten.einsum.default, "ii->i", [torch.randn(4, 4)], dims=())


def reduction_samples() -> Iterator[Sample]:
    x = torch.randn(3, 5, 8)
    both = ("sum", "mean", "amax", "amin", "logsumexp", "nansum", "nanmean")
    lists = {"sum": "dim_IntList", "mean": "dim", "nansum": "default"}
    for name in both:
        op = getattr(getattr(aten, name), lists.get(name, "default"))
        yield Sample(op, (x, [1]), {}, (0, 1), True)
        yield Sample(op, (x, [-1, 0], True), {}, (1,), True)
        yield Sample(op, (x.to(torch.bfloat16), [0]), {}, (0, 1), True)
    yield Sample(aten.sum.default, (x,), {}, ())
    yield Sample(aten.amax.default, (x,), {}, ())
    yield Sample(aten.sum.dim_IntList, (x, None, True), {}, ())
    for name in ("var", "std", "var_mean", "std_mean"):
        op = getattr(aten, name).correction
        yield Sample(op, (x, [1]), {"correction": 0}, (0, 1), True)
        yield Sample(op, (x, [-1]), {"keepdim": True}, (0, 1), True)
    yield Sample(aten.var.dim, (x, [0], False, True), {}, (1, 2), True)
    for name in ("any", "all", "prod", "argmax", "argmin"):
        packet = getattr(aten, name)
        overload = {"prod": "dim_int", "any": "dim", "all": "dim"}.get(name, "default")
        yield Sample(getattr(packet, overload), (x, 1), {}, (0, 1), True)
        yield Sample(getattr(packet, overload), (x, 1, True), {}, (0, 2), True)
    yield Sample(aten.any.dims, (x > 1, [0, 1]), {}, (0,))
    yield Sample(aten.argmax.default, (x,), {}, ())
    for name in ("max", "min", "median", "nanmedian"):
        yield Sample(getattr(aten, name).dim, (x, 1), {}, (0, 1))
        yield Sample(getattr(aten, name).dim, (x, -1, True), {}, (0, 1))
    yield Sample(aten.max.other, (x, x[0]), {}, (0, 1, 2))
    yield Sample(aten.max.default, (x,), {}, ())
    yield Sample(aten.mode.default, (x.int(), 0), {}, (0, 1))
    yield Sample(aten.kthvalue.default, (x, 2, 1), {}, (0, 1))
    yield Sample(aten.count_nonzero.dim_IntList, (x.int(), [1]), {}, (0, 1))
    yield Sample(aten.aminmax.default, (x,), {"dim": 1}, (0, 1))
    yield Sample(aten.linalg_vector_norm.default, (x, 2, [1]), {}, (0, 1), True)
    yield Sample(aten.norm.ScalarOpt_dim, (x, 2, [-1], True), {}, (0, 1), True)
    for name in ("softmax", "log_softmax"):
        yield Sample(getattr(aten, name).int, (x, -1), {}, (0, 1), True)
        yield Sample(getattr(aten, name).int, (x, 1, torch.float64), {}, (0, 2), True)
        yield Sample(getattr(aten, f"_{name}").default, (x, 0, False), {}, (1, 2), True)
    yield Sample(aten._safe_softmax.default, (x, -1), {}, (0, 1), True)
    for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort"):
        yield Sample(getattr(aten, name).default, (x, 1), {}, (0, 2), True)
    for name in ("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft"):
        yield Sample(getattr(aten, name).default, (x, None, 1), {}, (0, 2), True)
    yield Sample(aten.diff.default, (x, 1, 1), {}, (0, 2))
    yield Sample(aten.argsort.default, (x,), {}, (0, 1))
    yield Sample(aten.sort.stable, (x,), {"stable": True, "dim": 0}, (1, 2))
    yield Sample(aten.topk.default, (x, 3), {}, (0, 1))
    yield Sample(aten.topk.default, (x, 2, 1), {}, (0, 2))
    yield Sample(aten.glu.default, (x,), {}, (0, 1), True)


def lookup_samples() -> Iterator[Sample]:
    x, index = torch.randn(6, 7, 4), torch.tensor([[0, 5, 2], [1, 1, 3]])
    table = torch.randn(9, 5)
    yield Sample(aten.embedding.default, (table, index), {}, (0, 1, 2))
    yield Sample(aten.one_hot.default, (index, 6), {}, (0, 1))
    yield Sample(aten.one_hot.default, (index,), {}, ())
    yield Sample(aten.index_select.default, (x, 1, index[0]), {}, (0, 1, 2))
    wide = torch.randint(0, 4, (6, 7, 3))
    yield Sample(aten.gather.default, (x, 2, wide), {}, (0, 1, 2))
    yield Sample(aten.gather.default, (x, -1, wide[:3]), {}, (1, 2))
    yield Sample(aten.scatter.src, (x, 2, wide % 4, x + 1), {}, (0, 1))
    full = torch.argsort(torch.rand(6, 7, 4), 2)
    yield Sample(aten.scatter.src, (x, 2, full, x + 1), {}, (0, 1))
    yield Sample(aten.scatter.value, (x, 2, full, 1.0), {}, (0, 1))
    yield Sample(aten.scatter_add.default, (x, 1, full % 7, x + 1), {}, (0, 2))
    yield Sample(aten.index.Tensor, (x, [index]), {}, (0, 1, 2, 3))
    yield Sample(aten.index.Tensor, (x, [None, index]), {}, (0, 1, 2, 3))
    yield Sample(aten.index.Tensor, (x, [index[:, :1], index]), {}, (0, 1, 2))
    yield Sample(aten.index.Tensor, (x, [index, None, index % 4]), {}, (0, 1, 2))
    yield Sample(aten.index.Tensor, (x, [None, index, index % 4]), {}, (0, 1, 2))
    deep = torch.randn(2, 6, 3, 6)
    apart = [None, index, None, index[:1]]
    yield Sample(aten.index.Tensor, (deep, apart), {}, (0, 1, 2, 3))
    yield Sample(aten.index.Tensor, (x, [x[:, 0, 0] > -9]), {}, ())


def normalisation_samples() -> Iterator[Sample]:
    x, row = torch.randn(3, 4, 6), torch.rand(6)
    channel = [torch.rand(4) + 0.5 for _ in range(4)]
    yield Sample(aten.layer_norm.default, (x, [6], row, row), {}, (0, 1), True)
    yield Sample(aten.layer_norm.default, (x, [4, 6]), {}, (0,), True)
    yield Sample(
        aten.native_layer_norm.default, (x, [6], row, None, 1e-5), {}, (0, 1), True
    )
    yield Sample(aten.rms_norm.default, (x, [6], row), {}, (0, 1), True)
    yield Sample(aten._fused_rms_norm.default, (x, [6], row, 1e-5), {}, (0, 1), True)
    eval_mode = (False, 0.1, 1e-5)
    args = (x, *channel)
    yield Sample(
        aten.batch_norm.default, (*args, *eval_mode, False), {}, (0, 1, 2), True
    )
    plain = (x, None, None, *channel[2:])
    yield Sample(
        aten.batch_norm.default, (*plain, *eval_mode, False), {}, (0, 1, 2), True
    )
    yield Sample(aten.batch_norm.default, (*args, True, 0.1, 1e-5, False), {}, ())
    yield Sample(
        aten.native_batch_norm.default, (*args, *eval_mode), {}, (0, 1, 2), True
    )
    yield Sample(
        aten._native_batch_norm_legit_no_training.default,
        (*args, 0.1, 1e-5),
        {},
        (0, 1, 2),
        True,
    )
    own = (x, *channel[:2], None, None, True, 0.1, 1e-5, False)
    yield Sample(aten.instance_norm.default, own, {}, (0, 1), True)
    tracked = (x, *channel, True, 0.1, 1e-5, False)
    yield Sample(aten.instance_norm.default, tracked, {}, ())
    yield Sample(aten.group_norm.default, (x, 2, *channel[:2]), {}, (0,), True)
    yield Sample(
        aten.native_group_norm.default,
        (x, *channel[:2], 3, 4, 6, 2, 1e-5),
        {},
        (0,),
        True,
    )
    for image in (torch.randn(2, 4, 3, 5), torch.randn(2, 4, 3, 5).bfloat16()):
        yield Sample(group_norm_statistics, (image, 2, 1e-5), {}, (0, 1), True)
        yield Sample(group_norm_statistics, (image, 1, 1e-5), {}, (0,), True)
        statistics = group_norm_statistics(image, 2, 1e-5)
        for affine in (channel[:2], (None, None)):
            args = (image, *statistics, *affine)
            yield Sample(group_norm_apply, args, {}, (0, 1, 2, 3), True)


def attention_samples() -> Iterator[Sample]:
    def attention(*args: Any, dims: tuple[int, ...], **kwargs: Any) -> Sample:
        op = aten.scaled_dot_product_attention.default
        return Sample(op, args, kwargs, dims, close=True)

    q, k, v = torch.randn(2, 4, 7, 8), torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9, 8)
    yield attention(q, k, v, dims=(0, 1, 2))
    yield attention(q, k, v, dims=(0, 1, 2), scale=0.3)
    yield attention(*(t.to(torch.bfloat16) for t in (q, k, v)), dims=(0, 1, 2))
    yield attention(q, k, v, torch.randn(2, 4, 7, 9), dims=(0, 1, 2))
    yield attention(q, k, v, torch.randn(7, 9), dims=(0, 1, 2))
    yield attention(q, k, v, torch.rand(2, 1, 1, 9) > 0.2, dims=(0, 1, 2))
    yield attention(q, k, v, None, 0.0, True, dims=(0, 1, 2))
    long = torch.randn(2, 4, 13, 8)
    yield attention(long, k, v, None, 0.0, True, dims=(0, 1, 2))
    yield attention(
        q, k[:, :2], v[:, :2], None, 0.0, True, dims=(0, 1, 2), enable_gqa=True
    )
    yield attention(q, k[:, :2], v[:, :2], dims=(0, 1, 2), enable_gqa=True)
    yield attention(q[0], k[0], v[0], dims=(0, 1))
    yield attention(q, k, v, None, 0.5, dims=())
