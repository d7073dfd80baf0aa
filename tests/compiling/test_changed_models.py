"""What is changed in a model after it was compiled is seen by the next call."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.compiling.modules import compiled  # noqa: E402

pytestmark = pytest.mark.torch


class Changing(nn.Module):
    """Everything that it has is used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(16, 16, bias=False)
        self.layers = nn.ModuleDict({"a": nn.Tanh(), "b": nn.Sigmoid()})
        self.register_buffer("mask", None)
        self.register_buffer("table", torch.randn(16, 16))
        self.loose = torch.randn(16, 16)
        self.times: Any = 1
        self._private = [2.0]
        self._settings = types.SimpleNamespace(scale=1.5)

    def forward(self, x: Any) -> Any:
        y = self.linear(x) @ self.table + x @ self.loose
        if self.mask is not None:
            y = y * self.mask
        for layer in self.layers.values():
            y = layer(y)
        if self.times is True:
            y = y + 1
        if hasattr(self, "late"):
            y = y + self.late
        return y * self.times * self._private[0] * self._settings.scale


def reinserted(model: Any) -> None:
    model.layers["a"] = model.layers.pop("a")


def transposed(tensor: Any) -> None:
    tensor.data = tensor.data.t()


def late(model: Any) -> None:
    model.register_buffer("late", torch.ones(16))


def bias(model: Any) -> None:
    model.linear.bias = nn.Parameter(torch.ones(16))


CHANGES: dict[str, Callable[[Any], object]] = {
    "a bias that was None": bias,
    "a buffer that was None": lambda m: setattr(m, "mask", torch.rand(16)),
    "a new buffer": late,
    "a transposed weight": lambda m: transposed(m.linear.weight),
    "a transposed buffer": lambda m: transposed(m.table),
    "a transposed attribute": lambda m: transposed(m.loose),
    "other memory of an attribute": lambda m: setattr(
        m.loose, "data", torch.ones(16, 16)
    ),
    "a list with an underscore": lambda m: m._private.append(m._private.pop() + 1),
    "an object with an underscore": lambda m: setattr(m._settings, "scale", 7.0),
    "modules in another order": reinserted,
    "a number of another type": lambda m: setattr(m, "times", True),
    "all buffers": lambda m: vars(m).update(
        _buffers={"mask": None, "table": m.table * 2}
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_next_call_is_right(change: str) -> None:
    model, x = Changing().eval(), torch.randn(4, 16)
    module = compiled(model, x)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = model(x).clone()
        torch.testing.assert_close(module(x), before)
        CHANGES[change](model)
        assert not torch.allclose(model(x), before)
        torch.testing.assert_close(module(x), model(x))
