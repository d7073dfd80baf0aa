"""What an export adds to attention, and what a model joins, is undone at first."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from memplan.chunking.canonical import PRODUCTS, rejoined, searchable  # noqa: E402
from memplan.chunking.chunk import chunk  # noqa: E402
from memplan.chunking.code import compiled, source  # noqa: E402
from memplan.chunking.options import ChunkOptions  # noqa: E402
from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.program import Op  # noqa: E402
from tests.chunking.experts import grouped  # noqa: E402

pytestmark = pytest.mark.torch
attend = nn.functional.scaled_dot_product_attention
LENGTH = 24


class Masked(nn.Module):
    """Attention of its input to itself, with what a function says beside it."""

    def __init__(self, options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Any) -> Any:
        heads = x.unflatten(-1, (4, 4)).transpose(1, 2)
        return attend(heads, heads, heads, **self.options(x))


def rows(x: Any) -> tuple[Any, Any]:
    places = torch.arange(x.shape[1])
    return places[:, None], places[None, :]


def compared(x: Any) -> Any:
    here, there = rows(x)
    return (there <= here) & torch.ones((), dtype=torch.bool)


def lowest(x: Any) -> Any:
    least = torch.finfo(x.dtype).min
    return torch.where(compared(x), 0.0, least)[None, None]


def triangle(x: Any) -> Any:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()


def all_shown(x: Any) -> Any:
    here, there = rows(x)
    return ((here >= 0) & (there >= 0)).expand(x.shape[0], 1, -1, -1)


def window(x: Any) -> Any:
    here, there = rows(x)
    return (there <= here) & (there > here - 5)


def later(x: Any) -> Any:
    return compared(x).logical_not() | torch.eye(x.shape[1], dtype=torch.bool)


def slope(x: Any) -> Any:
    here, there = rows(x)
    return torch.where(there <= here, (there - here) * 0.1, float("-inf"))


def of_input(x: Any) -> Any:
    return (x[:, None, None, :, 0] > -9).expand(-1, 1, x.shape[1], -1)


def noise(x: Any) -> Any:
    return torch.rand(x.shape[1], x.shape[1]) >= 0


def prepared(model: Any, x: Any) -> Any:
    inference = Inference()
    exported = export(model.eval(), (x,), {})
    program = searchable(lower(exported, inference), inference)
    weights = {
        name: exported.constants[place]
        if place in exported.constants
        else model.get_parameter(place)
        for name, place in program.constants.items()
        if name in {used for op in program.ops for used in op.operands()}
    }
    run = compiled(source(program, "test"), "test")
    by_place = {program.constants[name]: value for name, value in weights.items()}
    with torch.no_grad():
        found = tree_leaves(run((x,), by_place))
        torch.testing.assert_close(found, tree_leaves(model(x)))
    return program


def attention_of(program: Any) -> Op:
    (op,) = (op for op in program.ops if "scaled_dot_product" in op.key)
    assert isinstance(op, Op)
    return op


@pytest.mark.parametrize(  # small: elements computed whole
    ("mask", "small"),
    [(compared, 64), (lowest, 64), (triangle, 64), (lowest, 1 << 16)],
)
def test_a_causal_mask_is_told(mask: Any, small: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("memplan.chunking.masks.SMALL", small)
    monkeypatch.setattr("memplan.chunking.masks.AT_ONCE", 2 * small)
    model = Masked(lambda x: {"attn_mask": mask(x)})
    op = attention_of(prepared(model, torch.randn(2, LENGTH, 16)))
    assert len(op.operands()) == 3
    assert op.kwargs == {"is_causal": True}


def test_a_mask_that_hides_nothing_is_left_out() -> None:
    model = Masked(lambda x: {"attn_mask": all_shown(x), "scale": 0.5})
    program = prepared(model, torch.randn(2, LENGTH, 16))
    op = attention_of(program)
    assert len(op.operands()) == 3
    assert op.kwargs == {"scale": 0.5}
    assert not any("arange" in each.key for each in program.ops)


@pytest.mark.parametrize("mask", [window, later, slope, of_input, noise])
def test_other_masks_stay(mask: Any) -> None:
    model = Masked(lambda x: {"attn_mask": mask(x)})
    op = attention_of(prepared(model, torch.randn(2, LENGTH, 16)))
    assert len(op.operands()) == 4
    assert "is_causal" not in op.kwargs


class Grouped(nn.Module):
    """Keys and values of two heads, repeated for six of queries."""

    def __init__(self, mask: bool = False, swapped: bool = False) -> None:
        super().__init__()
        self.mask, self.swapped = mask, swapped

    def repeated(self, heads: Any) -> Any:
        batch, groups, length, width = heads.shape
        if self.swapped:  # one after the other, and again: these are no groups
            wide = heads[:, None].expand(batch, 3, groups, length, width)
        else:
            wide = heads[:, :, None].expand(batch, groups, 6 // groups, length, width)
        return wide.reshape(batch, 6, length, width)

    def forward(self, x: Any) -> Any:
        q = x.unflatten(-1, (6, 4)).transpose(1, 2)
        k = self.repeated(x[..., :8].unflatten(-1, (2, 4)).transpose(1, 2))
        mask = x.mean(-1)[:, None, None] < 1 if self.mask else None
        return attend(q, k, k * 1, attn_mask=mask)


def test_repeated_keys_are_not_repeated() -> None:
    class Plain(Grouped):
        def forward(self, x: Any) -> Any:
            q = x.unflatten(-1, (6, 4)).transpose(1, 2)
            k, v = (
                part.unflatten(-1, (2, 4)).transpose(1, 2)
                for part in (x[..., :8], x[..., 8:16])
            )
            return attend(q, self.repeated(k), self.repeated(v), is_causal=True)

    program = prepared(Plain(), torch.randn(2, LENGTH, 24))
    assert attention_of(program).kwargs == {"is_causal": True, "enable_gqa": True}
    assert not any(op.key in ("aten.expand", "aten.clone") for op in program.ops)


@pytest.mark.parametrize("options", [{"swapped": True}, {"mask": True}, {}])
def test_what_is_no_group_stays(options: Any) -> None:
    program = prepared(Grouped(**options), torch.randn(2, LENGTH, 24))
    assert "enable_gqa" not in attention_of(program).kwargs


def test_keys_and_values_in_other_groups_stay() -> None:
    class Unequal(Grouped):
        def forward(self, x: Any) -> Any:
            q = x.unflatten(-1, (6, 4)).transpose(1, 2)
            k, v = (
                self.repeated(x[..., : 4 * n].unflatten(-1, (n, 4)).transpose(1, 2))
                for n in (2, 3)
            )
            return attend(q, k, v)

    program = prepared(Unequal(), torch.randn(2, LENGTH, 24))
    assert "enable_gqa" not in attention_of(program).kwargs


class Joined(nn.Module):
    """One product, taken apart in some way."""

    def __init__(self, way: str, bias: bool = True, unequal: bool = False) -> None:
        super().__init__()
        self.way, self.layer = way, nn.Linear(32, 256, bias=bias)
        self.weight, self.bias = nn.Parameter(torch.randn(32, 256)), self.layer.bias
        self.sizes = [64, 192] if unequal else 64

    def forward(self, x: Any) -> Any:
        if self.way == "linear":
            y = self.layer(x)
        elif self.way == "addmm":
            y = torch.addmm(self.bias, x.flatten(0, 1), self.weight)
            y = y.view(*x.shape[:2], 256)
        else:
            y = (x.flatten(0, 1) @ self.weight).view(*x.shape[:2], 256)
        parts = y.split(self.sizes, -1)
        result = parts[0].sigmoid() * parts[-1][..., :64] + parts[0]
        return result + y.sum() if self.way == "whole too" else result


def products(program: Any) -> int:
    return sum(op.key in PRODUCTS for op in program.ops)


@pytest.mark.parametrize(("bias", "unequal"), [(False, True), (True, False)])
def test_products_are_parted(bias: bool, unequal: bool) -> None:
    program = prepared(Joined("linear", bias, unequal), torch.randn(2, LENGTH, 32))
    shapes = [
        program.metas[op.name].shape for op in program.ops if op.key == "aten.linear"
    ]
    assert [shape[-1] for shape in shapes] == ([64, 192] if unequal else [64, 64])


@pytest.mark.parametrize("way", ["addmm", "matmul"])
def test_products_of_flattened_rows_are_parted(way: str) -> None:
    program = prepared(Joined(way), torch.randn(2, LENGTH, 32))
    assert products(program) == 2


class Heads(nn.Module):
    """Queries, keys and values of one product, taken apart in the ways of models."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.layer = way, nn.Linear(32, 3 * 64)

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        if self.way == "permuted":
            q, k, v = y.reshape(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
        elif self.way == "selected":
            parts = y.view(*x.shape[:2], 3, 4, 16)
            q, k, v = (parts[:, :, i].transpose(1, 2) for i in range(-3, 0))
        elif self.way == "within heads":  # a head's weights do not lie together
            parts = y.view(*x.shape[:2], 4, 3, 16).transpose(1, 2)
            q, k, v = parts.unbind(3)
        else:
            parts = y.view(*x.shape[:2], 3, 4, 16).transpose(1, 3)
            q, k, v = parts.unbind(2)
        result = attend(q, k, v)
        return result + y.sum() if self.way == "whole too" else result


@pytest.mark.parametrize(
    ("way", "count"),
    [("permuted", 3), ("selected", 3), ("within heads", 1), ("whole too", 1)],
)
def test_products_of_heads_are_parted(way: str, count: int) -> None:
    torch.manual_seed(0)
    model, x = Heads(way).eval(), torch.randn(2, LENGTH, 32)
    assert products(prepared(model, x)) == count
    options = ChunkOptions(max_slowdown=None)
    small = chunk(model, (torch.randn(1, 512, 32),), "92%", options=options)
    assert small.memplan.status == "chunked"
    with torch.no_grad():
        x = torch.randn(1, 512, 32)
        assert torch.allclose(small(x), model(x), atol=1e-5)


class Experts(nn.Module):
    """Rows times the matrix of their expert, gate and values in one product."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Parameter(torch.randn(3, 256, 32) / 6)
        self.down = nn.Parameter(torch.randn(3, 32, 128) / 11)

    def forward(self, x: Any, ends: Any) -> Any:
        product = grouped()
        one, other = product(x, self.both.transpose(1, 2), ends).chunk(2, -1)
        return product(one.sigmoid() * other, self.down.transpose(1, 2), ends)


def test_products_of_groups_are_parted_and_run_in_chunks() -> None:
    torch.manual_seed(0)
    model = Experts().eval()
    inputs = torch.randn(500, 32), torch.tensor([120, 120, 500])
    inference = Inference()
    program = searchable(lower(export(model, inputs, {}), inference), inference)
    assert products(program) == 3
    options = ChunkOptions(max_slowdown=None)
    before = chunk(model, inputs, "100%").memplan.measured_bytes_after
    module = chunk(model, inputs, before // 2, options=options)
    assert module.memplan.status == "chunked"
    others = torch.randn(500, 32), torch.tensor([0, 499, 500])
    for given in (inputs, others):
        with torch.no_grad():
            torch.testing.assert_close(module(*given), model(*given))


def test_a_product_that_is_needed_whole_stays() -> None:
    program = prepared(Joined("whole too"), torch.randn(2, LENGTH, 32))
    assert products(program) == 1


def test_narrow_parts_stay_together() -> None:
    class Narrow(Joined):
        def forward(self, x: Any) -> Any:
            one, other = self.layer(x).split([16, 240], -1)
            return other + one.sum(-1, keepdim=True)

    program = prepared(Narrow("linear"), torch.randn(2, LENGTH, 32))
    assert products(program) == 1


@pytest.mark.parametrize(("narrow", "count"), [([16], 3), ([16, 17], 1)])
def test_narrow_parts_of_a_wide_product(narrow: list[int], count: int) -> None:
    """Of next to no features, they do not keep the others together."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 1024)

        def forward(self, x: Any) -> Any:
            sizes = [512, *narrow, 512 - sum(narrow)]
            gate, *steps, rest = self.layer(x).split(sizes, -1)
            return sum(step.sum(-1, True) for step in steps) * rest.sum(-1, True) + gate

    program = prepared(Wide(), torch.randn(2, LENGTH, 32))
    assert products(program) == count


class Split(nn.Module):
    """An input's activation taken apart, in some way, along some dimension."""

    def __init__(self, way: str, dim: int) -> None:
        super().__init__()
        self.way, self.dim = way, dim

    def forward(self, x: Any) -> Any:
        y, size = x.sin(), x.shape[self.dim]
        if self.way == "sizes":
            parts = y.split([1, size - 1], self.dim)
        elif self.way == "tensor_split":
            parts = y.tensor_split([2, -1], self.dim)
        elif self.way == "unbind":
            parts = y.unbind(self.dim)
        else:
            parts = getattr(y, self.way)(3, self.dim)
        return parts[-1].exp(), parts[0], parts[1].cos()


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
@pytest.mark.parametrize("way", ["split", "sizes", "chunk", "tensor_split", "unbind"])
def test_parts_are_views_of_the_whole(way: str, dim: int) -> None:
    model, x = Split(way, dim), torch.randn(5, 7, 6)
    program = prepared(model, x)
    assert not any(op.key == "getitem" for op in program.ops)
    inference = Inference()
    before = lower(export(model.eval(), (x,), {}), inference)
    assert profile(program).peak == profile(before).peak
    run = compiled(source(program, "test"), "test")
    with torch.no_grad():
        for one, other in zip(tree_leaves(run((x,), {})), model(x), strict=True):
            assert torch.equal(one, other) and one.stride() == other.stride()


class Halos(nn.Module):
    """Two parts of a value; one goes through a convolution more than the other."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(3, 32, 3, padding=1)
        self.near = nn.Conv2d(16, 16, 3, padding=1)
        self.join = nn.Conv2d(48, 4, 1)

    def forward(self, x: Any) -> Any:
        one, other = self.wide(x).sigmoid().chunk(2, 1)
        return self.join(torch.cat([one, other, self.near(other).sigmoid()], 1))


def test_parts_have_halos_of_their_own() -> None:
    model, x = Halos().eval(), torch.randn(1, 3, 96, 64)
    small = chunk(model, (x,), "30%", options=ChunkOptions(max_slowdown=None))
    assert not small.memplan.internal_errors
    with torch.no_grad():
        torch.testing.assert_close(small(x), model(x))


def test_a_group_norm_that_no_loop_takes_is_one_operator() -> None:
    inference = Inference()
    exported = export(nn.GroupNorm(2, 8).eval(), (torch.randn(2, 8, 16),), {})
    program = searchable(lower(exported, inference), inference)
    assert len(program.ops) == 4
    assert [op.key for op in rejoined(program).ops] == ["aten.group_norm"]


class Block(nn.Module):
    """Fused causal attention by a mask, its projections joined, before an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x: Any) -> Any:
        q, k, v = (
            part.unflatten(-1, (8, 32)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        mixed = attend(q, k, v, attn_mask=compared(x))
        return self.out(mixed.transpose(1, 2).flatten(2))


def test_heads_run_in_chunks_without_a_mask() -> None:
    """Results of attention go over the queries, or heads are projected in turns: what
    all three projections take at once is not needed."""
    model, x = Block().eval(), torch.randn(1, 512, 256)
    options = ChunkOptions(max_slowdown=None)
    joined = 4 * x.nbytes  # all three, and the result
    small = chunk(model, (x,), joined, options=options)
    assert small.memplan.measured_bytes_after <= joined
    tighter = chunk(model, (x,), 3 * x.nbytes, options=options)
    assert tighter.memplan.measured_bytes_after <= 3 * x.nbytes
    with torch.no_grad():
        torch.testing.assert_close(tighter(x), model(x))


def test_the_estimate_of_a_parted_program_is_below_the_joined_ones() -> None:
    model, x = Block().eval(), torch.randn(1, 512, 256)
    inference = Inference()
    joined = lower(export(model, (x,), {}), inference)
    assert profile(searchable(joined, inference)).peak <= profile(joined).peak
