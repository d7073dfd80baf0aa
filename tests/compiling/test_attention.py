"""Attention that is written out runs as torch's operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from tests.compiling.modules import SLOW, compiled  # noqa: E402
from tests.strategies import examples  # noqa: E402

pytestmark = pytest.mark.torch
TOKENS, WIDTH = 96, 16
ATTENTION = "aten.scaled_dot_product_attention"


class Attention(nn.Module):
    """Attention by `between`, of queries and keys to weights of the values."""

    def __init__(self, between: Callable[..., Any], *outer: int) -> None:
        super().__init__()
        self.between, self.outer = between, outer
        self.all = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Any) -> Any:
        shape = (*self.outer, TOKENS, 3, WIDTH)
        q, k, v = self.all(x).reshape(shape).unbind(-2)
        return self.between(q, k, v)


def inputs(*outer: int) -> Any:
    return torch.randn(*outer, TOKENS, WIDTH)


def operators(module: Any) -> list[str]:
    return [op.key for op in module.runner.program.ops]


def is_replaced(between: Callable[..., Any], *outer: int) -> bool:
    """Whether the operator is in the compiled module, whose results are right."""
    torch.manual_seed(0)
    outer = outer or (2, 4)
    model, x = Attention(between, *outer).eval(), inputs(*outer)
    module = compiled(model, x)
    for seed in range(2):
        torch.manual_seed(seed)
        x = inputs(*outer)
        with torch.no_grad():
            torch.testing.assert_close(
                module(x), model(x), rtol=1e-4, atol=1e-5, equal_nan=True
            )
    return ATTENTION in operators(module)


BIAS = torch.linspace(-2, 2, TOKENS * TOKENS).reshape(TOKENS, TOKENS)
CAUSAL = torch.full((TOKENS, TOKENS), -math.inf).triu(1)
KEYS = torch.linspace(-1, 1, TOKENS)


def shown(later: Any) -> Any:
    """A mask that hides nothing, made in the forward."""
    places = torch.arange(later)
    return torch.where(places[None] >= 0, 0.0, -math.inf)


WRITTEN: dict[str, Callable[..., Any]] = {
    "plain": lambda q, k, v: (q @ k.mT).softmax(-1) @ v,
    "scaled": lambda q, k, v: (q @ k.transpose(-2, -1) * 0.3).softmax(-1) @ v,
    "divided": lambda q, k, v: torch.softmax(q @ k.mT / 4, dim=-1) @ v,
    "twice": lambda q, k, v: (q @ k.mT / 4 * 3).softmax(3) @ v,
    "bias": lambda q, k, v: (q @ k.mT * 0.3 + BIAS).softmax(-1) @ v,
    "bias first": lambda q, k, v: (BIAS + q @ k.mT * 0.3).softmax(-1) @ v,
    "two masks": lambda q, k, v: (q @ k.mT + BIAS + KEYS).softmax(-1) @ v,
    "causal": lambda q, k, v: (q @ k.mT * 0.3 + CAUSAL).softmax(-1) @ v,
    "nothing": lambda q, k, v: (q @ k.mT + shown(TOKENS)).softmax(-1) @ v,
    "queries": lambda q, k, v: ((q * 0.3) @ k.mT).softmax(-1, torch.float32) @ v,
    "other keys": lambda q, k, v: (q @ k[:, :, :70].mT).softmax(-1) @ v[:, :, :70],
    "filled": lambda q, k, v: (
        (q @ k.mT * 0.3).masked_fill(CAUSAL < 0, -math.inf).softmax(-1) @ v
    ),
    "chosen": lambda q, k, v: (
        torch.where(KEYS < 0.5, q @ k.mT, torch.finfo(torch.float32).min).softmax(-1)
        @ v
    ),
    "filled and bias": lambda q, k, v: (
        (q @ k.mT + BIAS).masked_fill(KEYS > 0, -1e38).softmax(-1) @ v
    ),
    "chosen otherwise": lambda q, k, v: (
        torch.where(KEYS < 0.5, -math.inf, q @ k.mT).softmax(-1) @ v
    ),
    "scores as mask": lambda q, k, v: (q @ k.mT + k @ q.mT).softmax(-1) @ v,
}
NOT: dict[str, Callable[..., Any]] = {
    "weights are returned": lambda q, k, v: (
        (w := (q @ k.mT).softmax(-1), w @ v)[1] + w.mean()
    ),
    "scores are used": lambda q, k, v: (s := q @ k.mT, s.softmax(-1) @ v)[1] + s.mean(),
    "over queries": lambda q, k, v: (q @ k.mT).softmax(-2) @ v,
    "mask is scaled": lambda q, k, v: ((q @ k.mT + BIAS) * 0.3).softmax(-1) @ v,
    "number is added": lambda q, k, v: (q @ k.mT + 1.0).softmax(-1) @ v,
    "narrow values": lambda q, k, v: (q @ k.mT).softmax(-1) @ v[..., :8],
    "shared keys": lambda q, k, v: (q @ k[:, :1].mT).softmax(-1) @ v,
    "filled not low": lambda q, k, v: (
        (q @ k.mT).masked_fill(CAUSAL < 0, -1e4).softmax(-1) @ v
    ),
    "nonlinear": lambda q, k, v: (q @ k.mT).tanh().softmax(-1) @ v,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_attention_is_found(name: str) -> None:
    assert is_replaced(WRITTEN[name])


@pytest.mark.parametrize("name", NOT)
def test_what_is_not_attention_stays(name: str) -> None:
    assert not is_replaced(NOT[name])


def test_of_three_dimensions() -> None:
    assert is_replaced(WRITTEN["bias"], 6)
    assert is_replaced(lambda q, k, v: torch.bmm(torch.bmm(q, k.mT).softmax(-1), v), 6)

    def added(q: Any, k: Any, v: Any) -> Any:
        bias = torch.empty(6, TOKENS, TOKENS)
        scores = torch.baddbmm(bias, q, k.mT, beta=0, alpha=0.25)
        return torch.bmm(scores.softmax(-1), v)

    assert is_replaced(added, 6)
    assert not is_replaced(WRITTEN["plain"], 2, 2, 2)


def test_rows_without_any_key_are_as_in_the_model() -> None:
    hidden = torch.zeros(TOKENS, TOKENS)
    hidden[3] = -math.inf
    is_replaced(lambda q, k, v: (q @ k.mT + hidden).softmax(-1) @ v)
    is_replaced(
        lambda q, k, v: (q @ k.mT).masked_fill(hidden < 0, -math.inf).softmax(-1) @ v
    )
    low = torch.finfo(torch.float32).min
    is_replaced(lambda q, k, v: (q @ k.mT).masked_fill(hidden < 0, low).softmax(-1) @ v)
    hidden[3] = torch.finfo(torch.float32).min
    is_replaced(lambda q, k, v: (q @ k.mT + hidden).softmax(-1) @ v)


@pytest.mark.parametrize("fills", [False, True])
@pytest.mark.parametrize("rank", [3, 4])
def test_rows_that_are_hidden_later_are_as_in_the_model(fills: bool, rank: int) -> None:
    class Masked(nn.Module):
        def forward(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
            scores = q @ k.mT * 0.5
            hidden = scores.masked_fill(mask, -math.inf) if fills else scores + mask
            return hidden.softmax(-1) @ v

    torch.manual_seed(0)
    q, k, v = (torch.randn(*(2, 4, 96, 16)[4 - rank :]) for _ in "123")
    none = torch.zeros(96, 96)
    none[:, 50:] = -math.inf
    for low in (-math.inf, torch.finfo(torch.float32).min):
        given = none.clamp(min=low)
        module = compiled(Masked().eval(), (q, k, v, given < 0 if fills else given))
        assert ATTENTION in operators(module)
        for rows in (slice(3, 5), slice(None), slice(0, 0)):
            mask = given.clone()
            mask[rows] = -math.inf
            mask = mask < 0 if fills else mask
            with torch.no_grad():
                torch.testing.assert_close(
                    module(q, k, v, mask), Masked()(q, k, v, mask), equal_nan=True
                )


def test_the_scores_take_no_memory() -> None:
    torch.manual_seed(0)
    model, x = Attention(WRITTEN["causal"], 2, 4).eval(), inputs(2, 4)
    scores = 2 * 4 * TOKENS * TOKENS * 4
    plan = compiled(model, x).memplan
    assert plan.bytes_before > 2 * scores
    assert plan.bytes_after < scores


def test_budgets_and_other_sizes() -> None:
    class Sized(Attention):
        def forward(self, x: Any) -> Any:
            q, k, v = self.all(x).reshape(*x.shape[:-1], 3, WIDTH).unbind(-2)
            return self.between(q, k, v)

    torch.manual_seed(0)
    model, x = Sized(WRITTEN["scaled"]).eval(), torch.randn(2, 4, 256, WIDTH)
    module = memplan.compile(model, x, "8%", SLOW)
    assert module.memplan.bytes_after <= 0.08 * module.memplan.bytes_before
    for tokens in (256, 512):
        x = torch.randn(2, 4, tokens, WIDTH)
        with torch.no_grad():
            torch.testing.assert_close(module(x), model(x), rtol=1e-4, atol=1e-5)
    assert all(each.status == "compiled" for each in module.plans)


@st.composite
def attentions(draw: st.DrawFn) -> Callable[..., Any]:
    """Steps between the product of queries and keys and that with the values."""
    kinds = st.sampled_from(["mul", "div", "row", "whole", "heads", "keys", "number"])
    steps = draw(st.lists(kinds, max_size=4))
    flips = draw(st.lists(st.booleans(), min_size=4, max_size=4))

    def between(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.mT
        for step, flip in zip(steps, flips, strict=False):
            mask = {
                "row": KEYS[:, None].expand(TOKENS, TOKENS),
                "whole": BIAS,
                "heads": torch.arange(4.0).reshape(4, 1, 1),
                "keys": KEYS,
            }.get(step)
            if mask is not None:
                scores = mask + scores if flip else scores + mask
            else:
                change = {"mul": lambda s: s * 0.5, "div": lambda s: s / -3}
                scores = change.get(step, lambda s: s + 2)(scores)
        return scores.softmax(-1) @ v

    return between


@examples(5, attentions(), soak=200)
def test_attention_with_any_steps(between: Callable[..., Any]) -> None:
    is_replaced(between)


def test_a_bias_with_the_heads_last_is_brought_into_the_order_of_rows_once() -> None:
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.all = nn.Linear(WIDTH, 3 * WIDTH)
            self.bias = nn.Embedding(TOKENS, 4)

        def forward(self, x: Any, places: Any) -> Any:
            bias = self.bias(places).permute(2, 0, 1)[None]
            for _ in range(2):
                parts = self.all(x).reshape(1, 4, TOKENS, 3, WIDTH).unbind(-2)
                q, k, v = parts
                x = (q @ k.transpose(-1, -2) + bias).softmax(-1) @ v
            return x

    torch.manual_seed(0)
    model, x = Biased().eval(), inputs(1, 4)
    places = torch.randint(TOKENS, (TOKENS, TOKENS))
    module = compiled(model, (x, places))
    found = operators(module)
    assert (found.count(ATTENTION), found.count("aten.clone")) == (2, 1)
    torch.testing.assert_close(module(x, places), model(x, places))
