"""Operators with several results in a loop, whose results others take as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import memplan  # noqa: E402
from memplan.chunking.options import ChunkOptions  # noqa: E402
from memplan.graph.check import relative_error  # noqa: E402
from memplan.graph.measure import activation_peak  # noqa: E402

pytestmark = pytest.mark.torch

ANY = ChunkOptions(max_slowdown=None)  # no test depends on time


class Wide(nn.Module):
    """A wide layer, and what a function makes of it."""

    def __init__(self, then: Callable[[Wide, Tensor], Any]) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(16, 256), nn.Linear(128, 16)
        self.quarter, self.then = nn.Linear(64, 16), then

    def forward(self, x: Tensor) -> Any:
        return self.then(self, self.wide(x))


def a_part_is_a_result(model: Wide, y: Tensor) -> Any:
    left, right = y.exp().split(128, -1)
    return model.narrow(left.sin() * 2), right.mean(-1), right


def a_part_is_taken_later(model: Wide, y: Tensor) -> Any:
    first, second, third, last = y.exp().split(64, -1)
    made = model.quarter(first.sin() * second)
    return made + model.quarter((made.sum() + third).tanh()) + last.amax(-1, True)


def indices_beside_values(model: Wide, y: Tensor) -> Any:
    y = y.tanh()
    values, indices = y.topk(8, -1)
    return values * 2, indices, y.gather(-1, indices).sum(-1)


def two_that_end_it(model: Wide, y: Tensor) -> Any:
    y = y.exp()
    return *y.max(-1), *(y * -1).min(1)


def parts_of_parts(model: Wide, y: Tensor) -> Any:
    left, right = y.exp().split(128, -1)
    (a, b), (c, d) = left.chunk(2, -1), right.sin().chunk(2, -1)
    return model.quarter(b * d), *(a * c).max(-1), a.sum(-1)


@pytest.mark.parametrize(
    ("then", "share"),
    [
        (a_part_is_a_result, 50),
        (a_part_is_taken_later, 50),
        (indices_beside_values, 25),
        (two_that_end_it, 30),
        (parts_of_parts, 25),
    ],
)
def test_all_results_are_made_in_the_loop(then: Any, share: int) -> None:
    model, x = Wide(then).eval(), torch.randn(4, 256, 16)
    small = memplan.chunk(model, x, f"{share}%", options=ANY)
    assert small.memplan.status == "chunked"
    assert activation_peak(lambda: small(x)) <= small.memplan.budget_bytes
    for each in (x, torch.randn_like(x)):
        with torch.no_grad():
            assert relative_error(model(each), small(each)) <= 1e-5
