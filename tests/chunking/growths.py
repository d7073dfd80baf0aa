"""What models do with a value: each makes one more operator, or a few, or declines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from memplan.chunking.rules.lowered import group_norm_apply, group_norm_statistics
from memplan.graph.program import Ref
from tests.chunking.experts import grouped as grouped_product

if TYPE_CHECKING:
    from tests.chunking.random_programs import Writer

aten = torch.ops.aten
SMOOTH = ("tanh", "sigmoid", "silu", "sin", "hardswish", "square", "erf", "mish")
UNARY = ("relu", "neg", "abs", *SMOOTH, "gelu")
BINARY = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.maximum.default)

Growth = Callable[["Writer", Ref], "Ref | None"]
GROWTHS: list[Growth] = []


def growth(function: Growth) -> Growth:
    GROWTHS.append(function)
    return function


def dim_of(w: Writer, x: Ref, least: int = 1) -> int | None:
    """A dimension of at least so many elements."""
    found = [i for i, size in enumerate(w.shape(x)) if size >= least]
    return w.random.choice(found) if found else None


@growth
@growth
@growth
def unary(w: Writer, x: Ref) -> Ref:
    # torch's gelu of infinity depends on where it stands among its neighbours.
    names = UNARY[:-1] if w.special else UNARY
    return w.put(getattr(aten, w.random.choice(names)).default, x)


@growth
@growth
@growth
def residual(w: Writer, x: Ref) -> Ref | None:
    other = w.alike(w.shape(x))
    return None if other is None else w.put(w.random.choice(BINARY), x, other)


@growth
def broadcast(w: Writer, x: Ref) -> Ref:
    sizes = [w.random.choice((1, size)) for size in w.shape(x)]
    other = w.weight(*sizes[w.random.randrange(len(sizes) + 1) :])
    pair = (x, other) if w.random.random() < 0.7 else (other, x)
    return w.put(w.random.choice(BINARY), *pair)


@growth
def outer_sum(w: Writer, x: Ref) -> Ref | None:
    if len(w.shape(x)) != 2:
        return None
    one, other = (w.put(aten.unsqueeze.default, x, dim) for dim in (0, 1))
    return w.put(aten.add.Tensor, one, other)


@growth
def masked(w: Writer, x: Ref) -> Ref:
    mask = w.put(aten.gt.Scalar, x, 0.25)
    if w.random.random() < 0.5:
        return w.put(aten.masked_fill.Scalar, x, mask, -0.0)
    return w.put(aten.where.self, mask, x, w.some_like(x))


@growth
def along(w: Writer, x: Ref) -> Ref | None:
    dim = dim_of(w, x)
    if dim is None:
        return None
    way = w.random.choice(("softmax", "log_softmax", "cumsum", "sort", "cummax"))
    if way in ("softmax", "log_softmax"):
        return w.put(getattr(aten, way).int, x, dim)
    return w.put(getattr(aten, way).default, x, dim)


@growth
def centred(w: Writer, x: Ref) -> Ref | None:
    dim = dim_of(w, x)
    if dim is None:
        return None
    mean = w.put(aten.mean.dim, x, [dim], True)
    return w.put(aten.sub.Tensor, x, mean)


@growth
def reduced(w: Writer, x: Ref) -> Ref | None:
    dim = dim_of(w, x)
    if dim is None:
        return None
    keep = w.random.random() < 0.5
    way = w.random.randrange(4)
    if way == 0:
        return w.put(aten.sum.dim_IntList, x, [dim], keep)
    if way == 1:
        return w.put(aten.amax.default, x, [dim], keep)
    if way == 2:
        return w.put(aten.max.dim, x, dim, keep)
    if not w.values[x.name].numel():
        return None
    return w.put(aten.var_mean.correction, x, [dim], correction=0, keepdim=keep)


@growth
def scaled_by_all(w: Writer, x: Ref) -> Ref | None:
    other = w.alike(w.shape(x))
    if other is None:
        return None
    return w.put(aten.mul.Tensor, x, w.put(aten.mean.default, other))


@growth
def normed(w: Writer, x: Ref) -> Ref | None:
    shape = w.shape(x)
    if not shape or not shape[-1]:
        return None
    if w.random.random() < 0.5:
        return w.put(aten.layer_norm.default, x, [shape[-1]], w.weight(shape[-1]))
    return w.put(aten.rms_norm.default, x, [shape[-1]])


@growth
@growth
def moved(w: Writer, x: Ref) -> Ref | None:
    rank = len(w.shape(x))
    if rank < 2:
        return None
    if w.random.random() < 0.5:
        return w.put(aten.transpose.int, x, *w.random.sample(range(rank), 2))
    dims = w.random.sample(range(rank), rank)
    made = w.put(aten.permute.default, x, dims)
    kept = w.random.random() < 0.5
    return made if kept else w.put(aten.clone.default, made)


@growth
@growth
def reshaped(w: Writer, x: Ref) -> Ref | None:
    shape = list(w.shape(x))
    if not shape:
        return None
    at = w.random.randrange(len(shape))
    if w.random.random() < 0.5 and at + 1 < len(shape):
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    else:
        parts = [n for n in (2, 3, 4) if shape[at] % n == 0 and shape[at] > n]
        n = w.random.choice(parts) if parts else 1
        shape[at : at + 1] = [n, shape[at] // n]
        if w.random.random() < 0.3:
            shape[at : at + 2] = shape[at : at + 2][::-1]
    return w.put(aten.reshape.default, x, shape)


@growth
def squeezed(w: Writer, x: Ref) -> Ref:
    shape = w.shape(x)
    if 1 in shape:
        return w.put(aten.squeeze.dim, x, shape.index(1))
    return w.put(aten.unsqueeze.default, x, w.random.randrange(len(shape) + 1))


@growth
def expanded(w: Writer, x: Ref) -> Ref | None:
    shape = list(w.shape(x))
    if 1 not in shape:
        return None
    shape[shape.index(1)] = w.random.choice((2, 3, 5))
    op = w.random.choice((aten.expand.default, aten.broadcast_to.default))
    return w.put(op, x, shape)


@growth
@growth
def cut(w: Writer, x: Ref) -> Ref | None:
    dim = dim_of(w, x, 2)
    if dim is None:
        return None
    size = w.shape(x)[dim]
    start = w.random.randrange(size)
    stop = w.random.randrange(start + 1, size + 1)
    way = w.random.random()
    if way < 0.2:
        return w.put(aten.select.int, x, dim, start)
    if way < 0.4:
        return w.put(aten.slice.Tensor, x, dim, 0, size, 2)
    if way < 0.5:
        return w.put(aten.narrow.default, x, dim, start, stop - start)
    if way < 0.6:
        return w.put(aten.slice.Tensor, x, dim, start - size)
    return w.put(aten.slice.Tensor, x, dim, start, stop)


@growth
def halved(w: Writer, x: Ref) -> Ref | None:
    dim = dim_of(w, x, 2)
    if dim is None:
        return None
    size = w.shape(x)[dim]
    if w.random.random() < 0.5:
        return w.put(aten.split.Tensor, x, -(-size // 2), dim)
    return w.put(aten.unbind.int, x, dim)


@growth
@growth
def joined(w: Writer, x: Ref) -> Ref | None:
    dim = dim_of(w, x)
    other = w.alike(w.shape(x))
    if dim is None or other is None:
        return None
    op = w.random.choice((aten.cat.default, aten.stack.default))
    return w.put(op, [x, other], dim)


@growth
def placed(w: Writer, x: Ref) -> Ref | None:
    dim = dim_of(w, x, 2)
    other = w.alike(w.shape(x))
    if dim is None or other is None:
        return None
    if w.random.random() < 0.5:
        part = w.put(aten.slice.Tensor, other, dim, 0, 1)
        return w.put(aten.slice_scatter.default, x, part, dim, 1, 2)
    part = w.put(aten.select.int, other, dim, 0)
    return w.put(aten.select_scatter.default, x, part, dim, 1)


@growth
def turned(w: Writer, x: Ref) -> Ref | None:
    dim = dim_of(w, x, 2)
    if dim is None:
        return None
    if w.random.random() < 0.5:
        return w.put(aten.flip.default, x, [dim])
    return w.put(aten.roll.default, x, [1], [dim])


@growth
def repeated(w: Writer, x: Ref) -> Ref | None:
    dim = dim_of(w, x)
    if dim is None or w.values[x.name].numel() > 500:
        return None
    if w.random.random() < 0.5:
        return w.put(aten.repeat_interleave.self_int, x, 2, dim)
    times = [1] * len(w.shape(x))
    times[dim] = 2
    return w.put(aten.repeat.default, x, times)


@growth
def padded(w: Writer, x: Ref) -> Ref | None:
    if not w.shape(x):
        return None
    return w.put(aten.constant_pad_nd.default, x, [1, 2], 0.5)


@growth
def unfolded(w: Writer, x: Ref) -> Ref | None:
    dim = dim_of(w, x, 4)
    if dim is None:
        return None
    step = w.random.choice((1, 2, 3))
    return w.put(aten.unfold.default, x, dim, w.random.choice((1, 2, 3)), step)


@growth
def triangle(w: Writer, x: Ref) -> Ref | None:
    if len(w.shape(x)) < 2:
        return None
    op = w.random.choice((aten.tril.default, aten.triu.default))
    return w.put(op, x, w.random.choice((-1, 0, 1)))


@growth
def copied(w: Writer, x: Ref) -> Ref:
    way = w.random.randrange(3)
    if way == 0:
        return w.put(aten.clone.default, x, memory_format=torch.contiguous_format)
    if way == 1:
        return w.cast(w.put(aten.to.dtype, x, torch.float64), w.dtype)
    whole = w.put(aten.to.dtype, w.put(aten.tanh.default, x), torch.int64)
    return w.put(aten.to.dtype, whole, w.dtype)


# Products


@growth
@growth
def linear(w: Writer, x: Ref) -> Ref | None:
    shape = w.shape(x)
    if not shape or not shape[-1]:
        return None
    width = w.random.choice((1, 4, 6))
    bias = [w.weight(width)] if w.random.random() < 0.5 else []
    return w.put(aten.linear.default, x, w.weight(width, shape[-1]), *bias)


@growth
@growth
def product(w: Writer, x: Ref) -> Ref | None:
    shape = w.shape(x)
    if len(shape) < 2:
        return None
    turned = w.put(aten.transpose.int, w.some_like(x), -1, -2)
    made = w.put(aten.matmul.default, x, turned)
    return w.put(aten.mul.Scalar, made, 0.25)


@growth
def attended(w: Writer, x: Ref) -> Ref | None:
    shape = w.shape(x)
    if len(shape) not in (3, 4) or 0 in shape or w.special:
        return None  # which hidden keys a kernel multiplies by 0 is up to its blocks
    key = w.some_like(x)
    op = aten.scaled_dot_product_attention.default
    if w.random.random() < 0.3:
        return w.put(op, x, key, key, None, 0.0, True)
    mask = w.take(w.numbers(shape[-2], shape[-2]))
    return w.put(op, x, key, x, *([mask] if w.random.random() < 0.5 else []))


@growth
def written_out(w: Writer, x: Ref) -> Ref | None:
    if len(w.shape(x)) < 2 or 0 in w.shape(x):
        return None
    turned = w.put(aten.transpose.int, w.some_like(x), -1, -2)
    scores = w.put(aten.matmul.default, x, turned)
    return w.put(aten.matmul.default, w.put(aten.softmax.int, scores, -1), x)


@growth
def summed_up(w: Writer, x: Ref) -> Ref | None:
    if len(w.shape(x)) != 3:
        return None
    equation = w.random.choice(("bij,bkj->bik", "bij,bkj->ikb", "bij,bkj->bki"))
    made = w.put(aten.einsum.default, equation, [x, w.some_like(x)])
    return w.put(aten.mul.Scalar, made, 0.25)


@growth
def experts(w: Writer, x: Ref) -> Ref | None:
    shape = w.shape(x)
    if len(shape) != 2 or w.dtype != torch.float32 or not all(shape):
        return None
    ends = torch.tensor([shape[0] // 3, shape[0] // 2, shape[0]], dtype=torch.int32)
    return w.put(grouped_product(), x, w.weight(3, shape[1], 4), w.take(ends))


# Pictures


@growth
@growth
@growth
def convolved(w: Writer, x: Ref) -> Ref | None:
    shape = w.shape(x)
    rank = len(shape) - 2
    if not 0 < rank < 4 or 0 in shape or min(shape[2:]) < 3 or w.special:
        return None  # what a kernel makes of numbers that are none is up to its tiles
    groups = w.random.choice([n for n in (1, 2, shape[1]) if shape[1] % n == 0])
    filters = groups * w.random.choice((1, 2))
    kernel = [w.random.choice((1, 2, 3)) for _ in range(rank)]
    weight = w.weight(filters, shape[1] // groups, *kernel)
    bias = w.random.choice((None, w.weight(filters)))
    stride = [w.random.choice((1, 2, 3)) for _ in kernel]
    padding = [w.random.choice((0, 1, 2)) for _ in kernel]
    dilation = [w.random.choice((1, 2)) if k < 3 else 1 for k in kernel]
    op = getattr(aten, f"conv{rank}d").default
    return w.put(op, x, weight, bias, stride, padding, dilation, groups)


@growth
@growth
def transposed(w: Writer, x: Ref) -> Ref | None:
    shape = w.shape(x)
    rank = len(shape) - 2
    small = w.values[x.name].numel() <= 500
    if not 0 < rank < 4 or 0 in shape or not small or w.special:
        return None
    groups = w.random.choice([n for n in (1, 2) if shape[1] % n == 0])
    kernel = [w.random.choice((1, 2, 3)) for _ in range(rank)]
    weight = w.weight(shape[1], 2, *kernel)
    stride = [w.random.choice((1, 2)) for _ in kernel]
    padding = [min(w.random.choice((0, 1)), (k - 1) // 2) for k in kernel]
    beyond = [w.random.randrange(s) for s in stride]
    packet = getattr(aten, f"conv_transpose{rank}d")
    op = getattr(packet, packet.overloads()[0])
    return w.put(op, x, weight, None, stride, padding, beyond, groups)


@growth
def pooled(w: Writer, x: Ref) -> Ref | None:
    shape = w.shape(x)
    if len(shape) != 4 or 0 in shape or min(shape[2:]) < 3:
        return None
    kernel, stride = w.random.choice((2, 3)), w.random.choice((1, 2, 3))
    padding = w.random.choice((0, 1))
    op = w.random.choice((aten.max_pool2d.default, aten.avg_pool2d.default))
    return w.put(op, x, [kernel] * 2, [stride] * 2, [padding] * 2)


@growth
def resized(w: Writer, x: Ref) -> Ref | None:
    shape = w.shape(x)
    if len(shape) != 4 or 0 in shape or w.values[x.name].numel() > 500:
        return None
    if w.random.random() < 0.5:
        sizes = [size * w.random.choice((1, 2, 4)) for size in shape[2:]]
        return w.put(aten.upsample_nearest2d.default, x, sizes)
    if w.special:  # torch adds neighbours times 0, or does not, by the axes that stay
        return None
    sizes = [size + w.random.choice((0, 1, size)) for size in shape[2:]]
    corners = w.random.random() < 0.5
    return w.put(aten.upsample_bilinear2d.vec, x, sizes, corners, None)


@growth
def shuffled(w: Writer, x: Ref) -> Ref | None:
    shape = w.shape(x)
    if len(shape) < 3 or shape[-3] % 4 or 0 in shape:
        return None
    return w.put(aten.pixel_shuffle.default, x, 2)


@growth
def channels_normed(w: Writer, x: Ref) -> Ref | None:
    shape = w.shape(x)
    if len(shape) < 2 or 0 in shape:
        return None
    scale, shift, mean = (w.weight(shape[1]) for _ in range(3))
    variance = w.take(w.numbers(shape[1]).abs() + 1, constant=True)
    rest = (False, 0.1, 1e-5, False)
    return w.put(aten.batch_norm.default, x, scale, shift, mean, variance, *rest)


@growth
def two_passes(w: Writer, x: Ref) -> Ref | None:
    shape = w.shape(x)
    if len(shape) < 3 or 0 in shape or w.dtype == torch.bfloat16:
        return None
    groups = w.random.choice([n for n in (1, 2, shape[1]) if shape[1] % n == 0])
    both = f"v{len(w.program.ops)}"
    w.put(group_norm_statistics, x, groups, 1e-5)
    statistics = [op.name for op in w.program.ops if op.operands() == [both]]
    affine = w.weight(shape[1]), w.weight(shape[1])
    return w.put(group_norm_apply, x, *map(Ref, statistics), *affine)


# Look-ups


@growth
def gathered(w: Writer, x: Ref) -> Ref | None:
    dim = dim_of(w, x, 2)
    if dim is None:
        return None
    order = w.put(aten.argsort.default, w.some_like(x), dim)
    return w.put(aten.gather.default, x, dim, order)


@growth
def looked_up(w: Writer, x: Ref) -> Ref | None:
    shape = w.shape(x)
    if not shape or not shape[-1]:
        return None
    best: Any = w.put(aten.argmax.default, x, -1)
    return w.put(aten.embedding.default, w.weight(shape[-1], 4), best)


@growth
def indexed(w: Writer, x: Ref) -> Ref | None:
    dim = dim_of(w, x, 2)
    if dim is None:
        return None
    size = w.shape(x)[dim]
    at = torch.randint(0, size, (5,), generator=w.noise)
    if w.random.random() < 0.5:
        return w.put(aten.index_select.default, x, dim, w.take(at))
    return w.put(aten.index.Tensor, x, [*[None] * dim, w.take(at)])
