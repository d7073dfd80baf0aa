"""Random networks fused, joined and placed; arenas, their pool, parts' results."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from fuse_nodes import check_nodes  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from memplan.compiling.fuse import fuse  # noqa: E402
from memplan.compiling.module import Compiled  # noqa: E402
from memplan.fusing.join import join  # noqa: E402
from memplan.fusing.layers import (  # noqa: E402
    FusedConv,
    Node,
    StackNode,
)
from memplan.fusing.options import FuseOptions, Joining  # noqa: E402
from memplan.fusing.recognise import recognise  # noqa: E402
from memplan.graph.call import Inputs  # noqa: E402
from memplan.graph.capture import capture  # noqa: E402

STEPS = (
    *("conv", "conv1", "depthwise", "bn", "relu", "clamp", "max", "average", "add"),
    *("cat", "gate", "double", "called", "overwritten", "chunk", "number", "view"),
)
Recipe = list[tuple[str, int, int]]


class Random(nn.Module):
    """A network of any topology: each step takes one or two of the values before."""

    def __init__(self, recipe: Recipe, outputs: list[int]) -> None:
        super().__init__()
        self.recipe, self.outputs = list(recipe), outputs
        self.parts = nn.ModuleDict()
        channels = [3]
        for index, (kind, a, b) in enumerate(recipe):
            c, d = (channels[each % len(channels)] for each in (a, b))
            if kind == "cat" and c + d > 64:
                self.recipe[index] = "relu", a, b
            part, out = _part(self.recipe[index][0], c, d)
            if part is not None:
                self.parts[str(index)] = part
            channels.append(out)

    def forward(self, x: Any) -> Any:
        values = [x]
        for index, (kind, a, b) in enumerate(self.recipe):
            y, z = (values[each % len(values)] for each in (a, b))
            part = getattr(self.parts, str(index), None)
            values.append(_step(kind, part, y, z))
        return [values[each % len(values)] for each in self.outputs], values[-1]


def _part(kind: str, c: int, d: int) -> tuple[Any, int]:
    if kind == "conv":
        return nn.Conv2d(c, 4, 3, padding=1), 4
    if kind == "conv1":
        return nn.Conv2d(c, 6, 1, bias=False), 6
    if kind == "depthwise":
        return nn.Conv2d(c, c, 3, padding=1, groups=c), c
    if kind == "bn":
        bn = nn.BatchNorm2d(c)
        bn.running_mean.uniform_(-0.5, 0.5)
        bn.running_var.uniform_(0.5, 1.5)
        return bn, c
    if kind in ("add", "gate"):
        return (nn.Conv2d(d, c, 1) if c != d else None), c
    return None, c + d if kind == "cat" else c


def _step(kind: str, part: Any, y: Any, z: Any) -> Any:  # noqa: PLR0911
    if kind in ("conv", "conv1", "depthwise", "bn"):
        return part(y)
    if kind in ("add", "gate"):
        z = z if part is None else part(z)
        if kind == "add":
            return y + z
        return y * torch.sigmoid(f.adaptive_avg_pool2d(z, 1))
    if kind == "cat":
        return torch.cat([y, z], 1)
    if kind == "overwritten":
        return f.relu_(y + 0.1).mul_(2)
    if kind == "chunk":
        return torch.cat([y[:, 1:], y[:, :1]], 1)
    simple: dict[str, Callable[[Any], Any]] = {
        "relu": f.relu,
        "clamp": f.relu6,
        "max": lambda v: f.max_pool2d(v, 3, 1, 1),
        "average": lambda v: f.avg_pool2d(v, 3, 1, 1),
        "double": lambda v: v + v,
        "called": torch.cos,
        "number": lambda v: v * 0.5 - 1,
        "view": lambda v: v.view(v.shape[0], -1).view(v.shape) * 2,
    }
    return simple[kind](y)


recipes = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 30), st.integers(0, 30)),
    min_size=1,
    max_size=12,
).map(lambda steps: [(kind, -1 - a % 4, b) for kind, a, b in steps])


def network_of(model: Any, x: Any) -> Any:
    return recognise(capture(model, Inputs((x,), {}), quick=True).program, model)


def quiet_fuse(model: Any, x: Any, options: FuseOptions) -> Any:
    ready = fuse(model, options)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ready(x)
    return ready


@settings(max_examples=12, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    recipes,
    st.lists(st.integers(0, 12), max_size=3),
    st.integers(1, 3),
    st.sampled_from([("direct", "onednn"), ("onednn",), ("winograd2", "direct")]),
    st.integers(0, 99),
)
def test_random_networks_give_what_they_give(
    recipe: Recipe,
    outputs: list[int],
    batch: int,
    kernels: tuple[str, ...],
    seed: int,
) -> None:
    torch.manual_seed(seed)
    model, x = Random(recipe, outputs).eval(), torch.randn(batch, 3, 6, 5)
    options = FuseOptions(measure=False, kernels=kernels, tolerance=1e-4)
    ready = quiet_fuse(model, x, options)
    (program,) = ready.programs()
    if not isinstance(program, Compiled):
        known = "no supported layers", "none of its layers", "differ by inf"
        assert any(each in program.reason for each in known), program.reason
    with torch.no_grad():
        for value in (x, torch.randn(batch, 3, 6, 5)):
            kept = value.clone()
            for left, right in zip(
                leaves(model(value)), leaves(ready(value)), strict=True
            ):
                torch.testing.assert_close(right, left, rtol=1e-4, atol=1e-4)
            assert torch.equal(value, kept)
    check_nodes(network_of(model, x))


def leaves(value: Any) -> list[Any]:
    return [*value[0], value[1]]


def nodes_of(forward: Callable[..., Any], joining: Joining, **parts: Any) -> list[Node]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

        def forward(self, x: Any) -> Any:
            return forward(self, x)

    with torch.no_grad():
        network = network_of(Model().eval(), torch.randn(1, 4, 8, 8))
    check_nodes(network)
    return join(network, joining)


def test_what_is_joined_into_a_convolution() -> None:
    def forward(self: Any, x: Any) -> Any:
        return f.relu(self.bn(self.conv(x)) + x)

    parts = {"conv": nn.Conv2d(4, 4, 1), "bn": nn.BatchNorm2d(4)}
    (node,) = nodes_of(forward, Joining(), **parts)
    assert isinstance(node, FusedConv)
    assert (node.added, node.activation) == ("x", (0.0, float("inf")))
    assert len(node.norms) == 1
    split = nodes_of(forward, Joining(norms=False, epilogues=False), **parts)
    assert [type(each) for each in split] == [FusedConv, StackNode]


def test_a_network_left_to_torch_takes_no_more_memory() -> None:
    from memplan.graph.measure import activation_peak

    layers = [nn.Conv2d(8, 8, 3, padding=1, groups=8) for _ in range(12)]
    model, x = nn.Sequential(*layers).eval(), torch.randn(2, 8, 64, 64)
    ready = quiet_fuse(model, x, FuseOptions(measure=False, kernels=("onednn",)))
    fused = activation_peak(lambda: ready(x)) + ready._arenas.bytes
    plane = x.numel() * 4
    assert fused <= activation_peak(lambda: model(x)) + plane  # it in another layout


def with_statistics(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
        norm.running_mean.normal_()  # type: ignore[union-attr]
        norm.weight.uniform_(-2, -0.5)
    return norm


@pytest.mark.parametrize("kernel", ["winograd2", "winograd4"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_winograd_holds_weights_once_and_goes_back_to_the_models_own(
    kernel: str, layout: Any
) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(32, 48, 3, padding=1, bias=False), with_statistics(48)]
    model = nn.Sequential(*layers).eval().to(memory_format=layout)
    other = copy.deepcopy(model)
    x = torch.randn(1, 32, 12, 12)
    options = FuseOptions(measure=False, kernels=(kernel,), tolerance=1e-4)
    fused = [quiet_fuse(each, x, options) for each in (model, other)]  # they share
    points = {"winograd2": 16, "winograd4": 36}[kernel]
    points += 9 * (layout == torch.channels_last)  # a copy of the model's own
    for each in fused:
        (program,) = each.prepared()
        assert program.memplan.packed == 4 * (32 * 48 * points + 2 * 48)
    with torch.no_grad():
        other[0].weight.neg_()
        x[0, 3, 4, 5], x[0, 5, 11, 11] = float("inf"), -float("inf")
        for one, each in zip((model, other), fused, strict=True):
            expected, found = one(x), each(x)
            near = expected.isfinite()
            torch.testing.assert_close(
                found, expected, rtol=1e-4, atol=1e-3, equal_nan=True
            )
            assert 0 < int(near.sum()) < near.numel()


def test_programs_for_other_shapes_share_a_copy_of_weights_in_another_layout() -> None:
    conv = nn.Conv2d(16, 32, 3, padding=1).to(memory_format=torch.channels_last)
    options = FuseOptions(measure=False, kernels=("winograd4",), tolerance=1e-4)
    fused = quiet_fuse(nn.Sequential(conv).eval(), torch.randn(1, 16, 12, 12), options)
    with torch.no_grad():
        fused(torch.randn(1, 16, 14, 14))
    packs = [
        each.runner.schedule.joined.packs.convolutions for each in fused.prepared()
    ]
    (one,), (other,) = (each.values() for each in packs)
    assert one.plain is other.plain and one.weights is other.weights
