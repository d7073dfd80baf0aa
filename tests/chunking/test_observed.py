"""What operators need beside their operands is seen, in any dtype."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from memplan.chunking.chunk import chunk  # noqa: E402
from memplan.chunking.options import ChunkOptions  # noqa: E402
from memplan.chunking.region import Region  # noqa: E402
from memplan.chunking.rules.flow import Slice  # noqa: E402
from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.measure import (  # noqa: E402
    Observed,
    activation_peak,
)
from tests.chunking.looped import looped  # noqa: E402

pytestmark = pytest.mark.torch

CASES = {
    "depthwise": (nn.Conv2d(96, 96, 7, padding=3, groups=96), (1, 96, 56, 56)),
    "patches": (nn.Conv2d(96, 192, 2, stride=2), (1, 96, 56, 56)),
    "grouped and long": (nn.Conv1d(96, 96, 64, padding=32, groups=16), (1, 96, 49)),
    "three by three": (nn.Conv2d(16, 24, 3, padding=1), (2, 16, 40, 40)),
    "pointwise": (nn.Conv2d(16, 24, 1), (1, 16, 40, 40)),
    "pointwise, strided": (nn.Conv2d(24, 56, 1, stride=2), (1, 24, 40, 40)),
    "volumes": (nn.Conv3d(4, 8, 3, padding=1), (1, 4, 12, 12, 12)),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_convolution_alone_is_estimated_as_it_is(name: str, last: bool) -> None:
    layer, shape = CASES[name]
    x = torch.randn(shape)
    if last:
        x = x.transpose(1, -1).contiguous().transpose(1, -1)
    program = lower(export(layer.eval(), (x,), {}), Inference())
    found = profile(program, False, Observed().temporaries).peak
    measured = activation_peak(lambda: layer(x))
    assert found == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("size", [(56, 56), (57, 56), (40, 41), (30, 30)])
@pytest.mark.parametrize("channels", [(64, 128), (24, 56), (32, 24)])
def test_a_strided_pointwise_convolution_copies_what_the_table_says(
    size: tuple[int, int], channels: tuple[int, int]
) -> None:
    layer, x = nn.Conv2d(*channels, 1, stride=2, bias=False), torch.randn(1, 64, *size)
    x = x[:, : channels[0]].contiguous()
    program = lower(export(layer.eval(), (x,), {}), Inference())
    measured = activation_peak(lambda: layer(x))
    assert profile(program, False).peak == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize("both", [False, True])
def test_a_recurrent_layer_is_estimated_as_it_is(both: bool) -> None:
    layer = nn.LSTM(48, 64, batch_first=True, bidirectional=both).eval()
    x = torch.randn(32, 50, 48)
    exported = export(layer, (x,), {})
    program = lower(exported, Inference())
    weights = {value: layer.get_parameter(n) for value, n in program.constants.items()}
    found = profile(program, False, Observed(weights).temporaries).peak
    measured = activation_peak(lambda: layer(x))
    assert found == pytest.approx(measured, rel=0.02)
    assert found > 1.2 * profile(program, False).peak  # which no table knows


class Part(nn.Module):
    """A layer of the second half of a weight, as a projection that was split has it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.layer.weight[96:], self.layer.bias[96:]
        return nn.functional.linear(x, weight, bias)


def test_a_part_of_a_weight_requires_gradients_as_it_does() -> None:
    layer, x = Part(), torch.randn(512, 3, 64)[:, 1:]
    exported = export(layer, (x,), {})
    program = lower(exported, Inference())
    weights = {value: layer.get_parameter(n) for value, n in program.constants.items()}
    found = profile(program, False, Observed(weights).temporaries).peak
    measured = activation_peak(lambda: layer(x))
    assert measured > 512 * 2 * 96 * 4  # torch copies x
    assert found == measured


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 64, 3, padding=1)
        self.second = nn.Conv2d(64, 8, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return self.second(torch.relu(self.first(x)))


def test_convolutions_in_chunks_are_estimated_as_they_are() -> None:
    """Slices are padded at the picture's edges only."""
    options = ChunkOptions(max_slowdown=None)
    small = chunk(Layers().eval(), (torch.randn(1, 8, 96, 96),), "60%", options=options)
    plan = small.memplan
    assert plan.status == "chunked"
    assert plan.peak_bytes_after == pytest.approx(plan.measured_bytes_after, rel=0.03)


class Rows(nn.Module):
    """A perceptron of each pixel, and a convolution of its results."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 256), nn.Linear(256, 16)
        self.conv = nn.Conv2d(16, 16, 7, padding=3, groups=16)

    def forward(self, x: Any) -> Any:
        rows = self.down(torch.relu(self.up(x)))
        return self.conv(rows.permute(0, 3, 1, 2))


def test_slices_at_an_edge_lie_as_they_do() -> None:
    """They are shorter there, and the next image follows sooner."""
    rows = Slice(1, before=3, after=3)
    slices = dict.fromkeys(("linear", "relu", "linear_1"), rows)
    slices |= {"permute": rows._replace(dim=2), "conv2d": Slice(2)}
    model, x = Rows().eval(), torch.randn(4, 28, 28, 16)
    made = looped(model, x, Region(slices, 28, 4))
    assert made.estimated == made.measured


class Holding(nn.Module):
    """Its Python keeps what is not needed any more."""

    def forward(self, x: Any) -> Any:
        wide = x.repeat(1, 16)
        high = wide * 2
        higher = high + 1
        return torch.relu(higher).sum(1)


def test_what_is_measured_beyond_the_operators_is_said() -> None:
    options = ChunkOptions(max_slowdown=None)
    small = chunk(Holding().eval(), (torch.randn(256, 64),), "50%", options=options)
    plan = small.memplan
    beyond = plan.measured_bytes_before - plan.peak_bytes_before
    assert beyond == plan.peak_before["beyond"] >= 256 * 64 * 16 * 4


class Causal(nn.Module):
    """Its attention needs most in the last chunk, and its products in bfloat16 depend
    on whether the weights require gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.Linear(64, 3 * 64, bias=False)
        self.up, self.down = nn.Linear(64, 512, bias=False), nn.Linear(512, 64)

    def forward(self, x: Any) -> Any:
        parts = self.heads(x).view(1, -1, 3, 4, 16).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(x.shape)
        return x + self.down(nn.functional.silu(self.up(x)))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("budget", ["45%", "min"])
def test_plans_are_estimated_as_they_are(budget: str, dtype: str, frozen: bool) -> None:
    model = Causal().to(getattr(torch, dtype)).eval().requires_grad_(not frozen)
    x = torch.randn(1, 512, 64).to(getattr(torch, dtype))
    options = ChunkOptions(max_slowdown=None, time_limit=2)
    plan = chunk(model, (x,), budget, options=options).memplan
    assert plan.status == "chunked"
    assert plan.peak_bytes_after == pytest.approx(plan.measured_bytes_after, rel=0.02)


def test_what_iterations_need_is_not_added_up() -> None:
    """The first makes a padded copy, and others take more of what lies outside: no
    iteration needs both."""
    torch.manual_seed(0)
    model = Causal().bfloat16().eval()
    x = torch.randn(1, 512, 64).bfloat16()
    options = ChunkOptions(max_slowdown=None)
    plan = chunk(model, (x,), "35%", options=options).memplan
    assert plan.status == "chunked"
    assert plan.peak_bytes_after == plan.measured_bytes_after


class Narrow(nn.Module):
    """A loop of 24 rows at a time ends with 8, of which torch multiplies otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 512, bias=False), nn.Linear(512, 64)

    def forward(self, x: Any) -> Any:
        return self.down(nn.functional.silu(self.up(x)))


def test_the_rest_of_a_loop_counts() -> None:
    torch.manual_seed(0)
    model = Narrow().bfloat16().eval().requires_grad_(False)
    x = torch.randn(1, 512, 128).bfloat16()[..., :64]
    rows = dict.fromkeys(("linear", "silu", "linear_1"), Slice(1))
    with_rest = looped(model, x, Region(rows, 512, 24))
    assert with_rest.estimated == with_rest.measured
    for step in (32, 512, 511, 1000):  # no rest, one iteration, or a first and a rest
        other = looped(model, x, Region(rows, 512, step))
        assert other.estimated == other.measured
        assert step != 32 or other.measured < with_rest.measured
