"""Results that are left over where larger values cancel, and real errors among them."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import memplan  # noqa: E402
from memplan.chunking.module import Chunk  # noqa: E402
from memplan.chunking.options import BudgetError  # noqa: E402
from memplan.graph.check import largest, relative_error, scales  # noqa: E402

pytestmark = pytest.mark.torch
nn: Any = torch.nn
ANY = memplan.ChunkOptions(max_slowdown=None)


class Cancels(nn.Module):
    """What is left of large values: rounding, and a signal of some size."""

    def __init__(self, signal: float) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(16, 256), nn.Linear(256, 16)
        self.signal = signal

    def forward(self, x: Any) -> Any:
        y = self.narrow(torch.tanh(self.wide(x)))
        same = 1 - 2 / (torch.exp(2 * self.wide(x)) + 1)
        rest = y - same @ self.narrow.weight.T - self.narrow.bias
        return rest + self.signal * torch.sin(x)


def cancels(signal: float = 0.0) -> tuple[Any, Any]:
    return Cancels(signal).eval(), torch.randn(2, 103, 16)


@pytest.mark.parametrize("signal", [0.0, 1e-6])
def test_what_cancels_is_chunked(signal: float) -> None:
    model, x = cancels(signal)
    small = memplan.chunk(model, x, "40%", options=ANY)
    assert small.memplan.status == "chunked"
    assert small.memplan.max_relative_error <= 1e-5
    with torch.no_grad():
        assert float((model(x) - small(x)).abs().max()) < 3e-6


@pytest.mark.parametrize(("signal", "error"), [(0.0, 3e-5), (1.0, 1e-2)])
def test_errors_are_found(
    signal: float, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values that cancel are about 1; errors are small beside them."""
    honest = Chunk.__call__

    def wrong(self: Chunk, inputs: Any) -> Any:
        return honest(self, inputs) + error

    monkeypatch.setattr(Chunk, "__call__", wrong)
    model, x = cancels(signal)
    with pytest.raises(BudgetError, match="none found needs less"):
        memplan.chunk(model, x, "40%", options=ANY)


class Decides(Cancels):
    """Rounding decides the sign of a few rows."""

    def forward(self, x: Any) -> Any:
        y = self.narrow(torch.tanh(self.wide(x)))
        some = torch.arange(y.shape[1]) % 50 == 0
        flipped = (super().forward(x).sum(-1) > 0) & some
        return torch.where(flipped[..., None], -y, y)


@pytest.mark.parametrize("error", [0.0, 0.5])
def test_a_few_values_that_rounding_decides_excuse_no_others(
    error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Chunk.__call__

    def wrong(self: Chunk, inputs: Any) -> Any:
        return honest(self, inputs) + error

    monkeypatch.setattr(Chunk, "__call__", wrong)
    model, x = Decides(0.0).eval(), torch.randn(2, 103, 16)
    if error:
        with pytest.raises(BudgetError, match="none found needs less"):
            memplan.chunk(model, x, "40%", options=ANY)
    else:
        assert memplan.chunk(model, x, "40%", options=ANY).memplan.status == "chunked"


def test_what_is_no_number_has_no_scale() -> None:
    made = [torch.arange(4), torch.empty(0), "text"]
    assert scales(lambda: [made], [made])[largest] == [[0.0] * 3]


def test_the_scale_is_what_errors_are_over() -> None:
    left, right = torch.zeros(3), torch.full((3,), 1e-7)
    assert relative_error(left, right) > 1e20
    assert relative_error(left, right, [0.1]) == pytest.approx(1e-6)
    assert relative_error(left + 10, left + 11, [0.1]) == pytest.approx(0.1)
