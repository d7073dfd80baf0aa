"""Sums of rows that were sorted and put back; rows gathered from a norm's result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

import memplan  # noqa: E402
from memplan.chunking.gathers import gathered_first  # noqa: E402
from memplan.chunking.permuted import with_additions  # noqa: E402
from memplan.graph.check import relative_error  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from memplan.graph.program import Program  # noqa: E402
from tests.chunking.experts import grouped  # noqa: E402
from tests.chunking.random_programs import evaluated  # noqa: E402
from tests.chunking.test_windows import lowered  # noqa: E402

pytestmark = pytest.mark.torch
TOKENS, WIDTH, EXPERTS = 24, 8, 4
ANY = memplan.ChunkOptions(max_slowdown=None)  # no test depends on time


def experts(count: int) -> Any:
    """Those of all tokens, as many for each as `count` says."""
    return torch.arange(TOKENS * count) * 7 % 5 % EXPERTS


def order(count: int) -> Any:
    """Rows by their expert."""
    return experts(count).sort()[1]


def by_inverse(rows: Any, order: Any) -> Any:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order))
    return rows[inverse]


def by_sorting_again(rows: Any, order: Any) -> Any:
    return rows[order.argsort()]


def by_writing(rows: Any, order: Any) -> Any:
    return torch.empty_like(rows).index_put((order,), rows)


def keys(program: Program) -> list[str]:
    return [op.key for op in program.ops]


def same(function: Callable[..., Any], x: Any, made: Program) -> None:
    (given,) = made.inputs
    values = evaluated(made, {given: x})
    (result,) = made.outputs
    expected = function(x)
    assert values[result.name].dtype == expected.dtype
    assert values[result.name].stride() == expected.stride()
    bound = 1e-6 if x.dtype != torch.bfloat16 else 8e-3
    assert relative_error(expected, values[result.name]) <= bound


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("put_back", [by_inverse, by_sorting_again, by_writing])
def test_rows_are_added_where_they_belong(
    put_back: Callable[..., Any], count: int, dtype: str
) -> None:
    def function(x: Any) -> Any:
        rows = x * 2
        return put_back(rows, order(count)).view(TOKENS, count, WIDTH).sum(1)

    x = torch.randn(TOKENS * count, WIDTH, dtype=getattr(torch, dtype))
    program, inference = lowered(function, x)
    made = with_additions(program, inference)
    assert "aten.index_add" in keys(made) and "aten.sum" not in keys(made)
    same(function, x, made)


def test_tokens_of_several_sequences() -> None:
    def function(x: Any) -> Any:
        rows = by_inverse(x.sin(), order(2))
        return rows.view(3, TOKENS // 3, 2, WIDTH).sum(-2)

    x = torch.randn(2 * TOKENS, WIDTH)
    made = with_additions(*lowered(function, x))
    assert "aten.index_add" in keys(made)
    same(function, x, made)


def test_names_that_others_have_stay_theirs() -> None:
    def function(sum_1_zeros: Any) -> Any:
        rows = by_inverse(sum_1_zeros.sin(), order(2))
        return rows.view(TOKENS, 2, WIDTH).sum(1) + sum_1_zeros[:TOKENS]

    class Model(nn.Module):
        def forward(self, sum_1_zeros: Any) -> Any:
            return function(sum_1_zeros)

    x = torch.randn(2 * TOKENS, WIDTH)
    small = memplan.chunk(Model().eval(), x, "90%", options=ANY)
    assert relative_error(function(x), small(x)) <= 1e-6


def given_order(x: Any) -> Any:
    return by_inverse(x.sin(), experts(2)).view(TOKENS, 2, WIDTH).sum(1)


def of_other_rows(x: Any) -> Any:
    inverse = torch.empty_like(order(2))
    inverse[order(2)] = torch.arange(1, 2 * TOKENS + 1)
    return x.sin()[inverse - 1].view(TOKENS, 2, WIDTH).sum(1)


def used_again(x: Any) -> Any:
    rows = by_inverse(x.sin(), order(2))
    return rows.view(TOKENS, 2, WIDTH).sum(1) + rows[:TOKENS]


def of_other_neighbours(x: Any) -> Any:
    return by_inverse(x.sin(), order(2)).view(2, TOKENS, WIDTH).sum(0)[None].sum((0, 1))


def widths(x: Any) -> Any:
    return by_inverse(x.sin(), order(2)).view(2 * TOKENS, 2, WIDTH // 2).sum(1)


def kept_dimension(x: Any) -> Any:
    return by_inverse(x.sin(), order(2)).view(TOKENS, 2, WIDTH).sum(1, keepdim=True)


def half_of_the_rows(x: Any) -> Any:
    return x.sin()[order(1).argsort()].view(TOKENS // 2, 2, WIDTH).sum(1)


def by_falling_order(x: Any) -> Any:
    rows = x.sin()[order(2).argsort(descending=True)]
    return rows.view(TOKENS, 2, WIDTH).sum(1)


def by_one_number(x: Any) -> Any:
    inverse = torch.empty_like(order(2))
    inverse[order(2)] = torch.arange(1)
    return x.sin()[inverse].view(TOKENS, 2, WIDTH).sum(1)


def of_no_rows(x: Any) -> Any:
    rows = by_sorting_again(x[:0].sin(), order(2)[:0].sort()[1])
    return rows.view(TOKENS, 0, WIDTH).sum(1)


@pytest.mark.parametrize(
    "function",
    [
        *(given_order, of_other_rows, used_again, widths, kept_dimension),
        *(half_of_the_rows, by_falling_order, by_one_number, of_no_rows),
    ],
)
def test_other_sums_stay(function: Callable[..., Any]) -> None:
    program, inference = lowered(function, torch.randn(2 * TOKENS, WIDTH))
    assert "aten.index_add" not in keys(with_additions(program, inference))


def test_the_first_of_several_dimensions() -> None:
    """Rows whose neighbours are not each other's."""
    x = torch.randn(2 * TOKENS, WIDTH)
    program, inference = lowered(of_other_neighbours, x)
    made = with_additions(program, inference)
    same(of_other_neighbours, x, made)


NORMS = {
    "layer norm": lambda x: F.layer_norm(x, (WIDTH,)),
    "rms norm": lambda x: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * 3,
    "softmax": lambda x: x.softmax(-1) + torch.ones(WIDTH).sin(),
}
ROWS = {
    "index": lambda y, index: y[index],
    "index_select": lambda y, index: y.index_select(0, index),
}


@pytest.mark.parametrize("gather", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("batch", [1, 3])
def test_rows_are_gathered_first(norm: Any, batch: int, gather: Any) -> None:
    def function(x: Any) -> Any:
        x = x * 2
        y = norm(x).view(-1, WIDTH)
        chosen = gather(y, y.sum(-1).topk(TOKENS)[1]).exp()
        return chosen.sum(0) + x.sum((0, 1))

    x = torch.randn(batch, 96 // batch, WIDTH)
    program, _ = lowered(function, x)
    made, names = gathered_first(program)
    assert len(names) == 1
    assert profile(made).peak < profile(program).peak
    same(function, x, made)
    again, done = gathered_first(program, names)
    assert done == names and again.metas == made.metas


def of_what_is_kept(x: Any) -> Any:
    y = F.layer_norm(x, (WIDTH,))
    return y[order(1)].exp().sum(0) + x.sum(0) + y.sum(0)


def of_what_goes(x: Any) -> Any:
    y = F.layer_norm(x * 2, (WIDTH,))
    return y[order(1)].exp().sum(0) + y.sum(0)[0]


def by_truth(x: Any) -> Any:
    y = F.layer_norm(x * 2, (WIDTH,))
    return y[torch.ones(TOKENS, dtype=torch.bool).nonzero()[:, 0][:3]].sum(0)


def along_another(x: Any) -> Any:
    x = x * 2
    y = F.layer_norm(x, (WIDTH,))
    return y.index_select(1, torch.arange(3)).sum(1) + x.sum(1)


def over_rows(x: Any) -> Any:
    x = x * 2
    y = x.softmax(0)
    return y[order(1)].exp().sum(0) + x.sum(0)


def one_row(x: Any) -> Any:
    x = x[:1] * 2
    return F.layer_norm(x, (WIDTH,))[torch.zeros(9, dtype=torch.int64)].sum(0) + x[0]


def of_a_mean(x: Any) -> Any:
    x = x.view(TOKENS // 2, 2, WIDTH) * 2
    y = x.mean(1, keepdim=True).view(-1, WIDTH)
    return y[torch.tensor(3).view(1)].sum(0) + x.sum((0, 1))


def of_the_mean_of_several(x: Any) -> Any:
    x = x.view(2, TOKENS // 2, WIDTH) * 2
    y = x.mean(0, keepdim=True).view(-1, WIDTH)
    return y[torch.arange(3)].sum(0) + x.sum((0, 1))


def over_a_dimension_of_one(x: Any) -> Any:
    x = x.view(TOKENS, 1, WIDTH) * 2
    y = (x.softmax(1) * x).view(-1, WIDTH)
    return y[torch.arange(3)].sum(0) + x.sum((0, 1))


def of_a_norm_of_rows_of_one(x: Any) -> Any:
    x = x.view(TOKENS, 1, WIDTH) * 2
    y = F.layer_norm(x, (1, WIDTH)).view(-1, WIDTH)
    return y[torch.arange(3)].sum(0) + x.sum((0, 1))


@pytest.mark.parametrize(
    "function",
    [
        *(of_what_is_kept, of_what_goes, along_another, over_rows, one_row),
        *(of_a_mean, of_the_mean_of_several, over_a_dimension_of_one),
        of_a_norm_of_rows_of_one,
    ],
)
def test_other_gathers_stay(function: Callable[..., Any]) -> None:
    program, _ = lowered(function, torch.randn(TOKENS, WIDTH))
    assert gathered_first(program) == (program, ())


class Experts(nn.Module):
    """Layers of experts, as models of transformers write them: two for each token."""

    def __init__(self, width: int, experts: int, layers: int) -> None:
        super().__init__()
        scale = width**-0.5
        size = (layers, experts, width, width)
        self.up = nn.Parameter(torch.randn(size) * scale)
        self.down = nn.Parameter(torch.randn(size) * scale)
        self.gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(layers))
        self.experts, self.width = experts, width

    def forward(self, x: Any) -> Any:
        for gate, up, down in zip(self.gates, self.up, self.down, strict=True):
            y = F.layer_norm(x, (self.width,)).view(-1, self.width)
            share, chosen = gate(y).softmax(-1).topk(2)
            chosen, order = chosen.view(-1).sort()
            ends = chosen.float().histc(self.experts, 0, self.experts - 1).cumsum(0)
            ends = ends.to(torch.int32)
            rows = grouped()(grouped()(y[order // 2], up, ends).relu(), down, ends)
            rows = rows * share.view(-1)[order].unsqueeze(-1)
            rows = by_inverse(rows, order)
            x = x + rows.view(-1, 2, self.width).sum(1).view(x.shape)
        return x


def test_experts_need_the_tokens_twice(tmp_path: Path) -> None:
    """Where each layer's result is added, and what it is added to."""
    torch.manual_seed(0)
    model = Experts(32, 4, 2).eval().requires_grad_(False)
    x = torch.randn(1, 512, 32)
    state = x.nbytes
    small = memplan.chunk(model, x, "min", options=ANY)
    assert small.memplan.measured_bytes_after <= 2.35 * state
    assert relative_error(model(x), small(x)) <= 1e-5
    other = torch.randn(1, 512, 32)
    assert relative_error(model(other), small(other)) <= 1e-5
    memplan.write_chunk_plan(small.memplan, tmp_path / "plan.json")
    again = memplan.chunk(model, x, plan=tmp_path / "plan.json", options=ANY)
    assert again.memplan.measured_bytes_after == small.memplan.measured_bytes_after
    assert torch.equal(again(x), small(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_buffers_of_experts_products_count(dtype: Any) -> None:
    """Products in low precision make them only of rows that an expert has."""
    torch.manual_seed(0)
    model = Experts(128, 4, 1).eval().requires_grad_(False).to(dtype)
    x = torch.randn(1, 512, 128, dtype=dtype)
    plan = memplan.chunk(model, x, "40%", options=ANY).memplan
    assert plan.peak_bytes_after == pytest.approx(plan.measured_bytes_after, rel=0.02)


def test_ends_of_groups_that_are_parameters_stay() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 16, 64), requires_grad=False)
            ends = torch.tensor([10, 20, 30, 64], dtype=torch.int32)
            self.ends = nn.Parameter(ends, requires_grad=False)

        def forward(self, x: Any) -> Any:
            return grouped()(x.exp(), self.weight, self.ends).exp().sum(1)

    model, x = Fixed().eval(), torch.randn(64, 16)
    before = model(x)
    small = memplan.chunk(model, x, "60%", options=ANY)
    assert model.ends.tolist() == [10, 20, 30, 64]
    assert relative_error(before, small(x)) <= 1e-5
