"""memplan as a backend of torch.compile."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from memplan.compiling.backend import backend  # noqa: E402
from tests.chunking import models  # noqa: E402

pytestmark = pytest.mark.torch


def small() -> nn.Module:
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 8, 3, padding=1)
    return nn.Sequential(convolution, nn.BatchNorm2d(8), nn.ReLU()).eval()


def test_a_network_answers_as_itself() -> None:
    seen: list[Any] = []

    def noted(module: Any, inputs: list[Any]) -> Any:
        seen.append(backend(module, inputs))
        return seen[-1]

    model = small()
    torch._dynamo.reset()
    ready = torch.compile(model, backend=noted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.no_grad():
            for batch in (2, 2, 3, 4):
                x = torch.randn(batch, 3, 8, 8)
                torch.testing.assert_close(ready(x), model(x), rtol=1e-5, atol=1e-5)
            model[0].weight.mul_(2)
            torch.testing.assert_close(ready(x), model(x), rtol=1e-5, atol=1e-5)
            model[0].weight = nn.Parameter(model[0].weight * 2)
            torch.testing.assert_close(ready(x), model(x), rtol=1e-5, atol=1e-5)
        assert seen
        model.train()
        model.zero_grad()
        ready(x).sum().backward()
        assert model[0].weight.grad is not None
    torch._dynamo.reset()


def test_a_graph_runs_in_an_arena(faster: None) -> None:
    from memplan.graph.measure import activation_peak

    model, x = models.attention(tokens=256)
    torch._dynamo.reset()
    ready = torch.compile(model, backend=backend)
    with torch.no_grad():
        assert torch.allclose(ready(x), model(x), atol=1e-6)
        before = activation_peak(lambda: model(x))
        assert activation_peak(lambda: ready(x)) < before / 4  # the arena is beside it
    torch._dynamo.reset()
