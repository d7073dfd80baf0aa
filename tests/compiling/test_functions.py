"""Functions that are written out run as torch's operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tests.compiling.modules import compiled  # noqa: E402
from tests.strategies import examples  # noqa: E402

pytestmark = pytest.mark.torch
Function = Callable[[Any], Any]
ROOT = math.sqrt(2 / math.pi)

WRITTEN: dict[str, tuple[str, Function]] = {
    "gelu of GPT-2": (
        "aten.gelu",
        lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3)))),
    ),
    "fast gelu": (
        "aten.gelu",
        lambda x: 0.5 * x * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x))),
    ),
    "gelu by erf": (
        "aten.gelu",
        lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    ),
    "gelu, halved last": (
        "aten.gelu",
        lambda x: x * (torch.erf(x * 0.7071067811865475) + 1) / 2,
    ),
    "quick gelu": ("aten.silu", lambda x: x * torch.sigmoid(1.702 * x)),
    "silu": ("aten.silu", lambda x: x * torch.sigmoid(x)),
    "silu by exp": ("aten.silu", lambda x: x / (1 + torch.exp(-x))),
    "hardswish": ("aten.hardswish", lambda x: x * functional.relu6(x + 3) / 6),
    "hardsigmoid": ("aten.hardsigmoid", lambda x: torch.clamp(x + 3, 0, 6) / 6),
    "mish": ("aten.mish", lambda x: x * torch.tanh(functional.softplus(x))),
    "sigmoid": ("aten.sigmoid", lambda x: torch.reciprocal(1 + torch.exp(-x))),
}
OTHERS: dict[str, Function] = {
    "another scale": lambda x: x * torch.sigmoid(1.7 * x),
    "another root": lambda x: x * 0.5 * (1 + torch.erf(x / 1.4143)),
    "shifted": lambda x: x * torch.sigmoid(x + 1e-3),
    "overflows": lambda x: torch.log(1 + torch.exp(x)) * 1.0,
    "of another type": lambda x: (x.double() * torch.sigmoid(x.double())).float(),
    "by rows": lambda x: x * torch.sigmoid(x.mean(-1, keepdim=True)),
}


class Between(nn.Module):
    """A function between two linear layers."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.first, self.last = nn.Linear(16, 256), nn.Linear(256, 16)

    def forward(self, x: Any) -> Any:
        return self.last(self.function(self.first(x)))


def operators(model: nn.Module) -> list[str]:
    """Those of the compiled model, whose results are right."""
    torch.manual_seed(0)
    model = model.eval()
    module = compiled(model, (torch.randn(256, 16),))
    for size in (1, 10, 1000):
        x = torch.randn(256, 16) * size
        with torch.no_grad():
            expected = model(x)
            largest = float(expected.nan_to_num(0, 0, 0).abs().max())
            near = {"rtol": 1e-4, "atol": 1e-5 * max(largest, 1), "equal_nan": True}
            torch.testing.assert_close(module(x), expected, **near)
    return [op.key for op in module.runner.program.ops]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_function_that_is_written_out_runs_as_one_operator(name: str) -> None:
    operator, function = WRITTEN[name]
    scales = {"aten.mul", "aten.div"} if name == "quick gelu" else set()
    found = operators(Between(function))
    assert set(found) == {"aten.linear", operator} | scales
    assert found.count(operator) == 1


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_like_such_a_function_stays_as_it_is(name: str) -> None:
    known = {operator for operator, _ in WRITTEN.values()} - {"aten.sigmoid"}
    assert not known.intersection(operators(Between(OTHERS[name])))


class Shared(Between):
    """The tanh inside a GELU is a result, too."""

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        inner = torch.erf(x / math.sqrt(2))
        return self.last(x * 0.5 * (1 + inner)), inner.sum()


def test_a_function_of_which_a_part_is_used_elsewhere_stays_as_it_is() -> None:
    torch.manual_seed(0)
    model, x = Shared(torch.relu).eval(), torch.randn(256, 16)
    module = compiled(model, (x,))
    assert "aten.gelu" not in [op.key for op in module.runner.program.ops]
    torch.testing.assert_close(module(x), model(x))


def test_what_infinite_values_become_is_kept() -> None:
    x = torch.randn(256, 16)
    for _, function in WRITTEN.values():
        model = Between(function).eval()
        module = compiled(model, (x,))
        extreme = x.clone()
        extreme[0, 0], extreme[1, 1], extreme[2, 2] = math.inf, -math.inf, math.nan
        with torch.no_grad():
            expected, found = model(extreme), module(extreme)
        torch.testing.assert_close(found, expected, equal_nan=True)


@examples(
    4,
    soak=100,
    first=st.sampled_from([name for name in WRITTEN if name != "quick gelu"]),
    second=st.sampled_from(sorted(OTHERS)[:2] + sorted(WRITTEN)),
    between=st.sampled_from([lambda x: x + 1, lambda x: -x, lambda x: x * x]),
)
def test_functions_of_functions_are_right(
    first: str, second: str, between: Function
) -> None:
    every = {**{name: each for name, (_, each) in WRITTEN.items()}, **OTHERS}

    def function(x: Any) -> Any:
        return every[second](between(every[first](x)))

    assert WRITTEN[first][0] in operators(Between(function))
