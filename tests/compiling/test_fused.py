"""Layers as memplan's own kernels in an arena: the model's results."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.compiling import bench, schedule  # noqa: E402
from memplan.core.verify import verify  # noqa: E402
from memplan.fusing import decide  # noqa: E402
from memplan.graph.check import relative_error  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("faster")]
PACKED = memplan.CompileOptions(max_slowdown=1e6, pack=True)


def compiled(model: nn.Module, *inputs: Any, budget: str | None = None) -> Any:
    module = memplan.compile(model.eval(), inputs, budget, PACKED)
    assert module.memplan.status == "compiled", module.memplan.reason
    assert not verify(module.memplan.plan)
    return module


def check(model: nn.Module, *inputs: Any) -> Any:
    """Compile a model; on other values, too, its results are the model's."""
    module = compiled(model, *inputs)
    with torch.no_grad():
        for given_ in (inputs, [torch.randn_like(each) for each in inputs]):
            copies = [each.clone() for each in given_]
            expected, found = model(*given_), module(*given_)
            assert relative_error(expected, found) < 1e-5
            assert list(map(torch.equal, given_, copies)) == [True] * len(inputs)
            for one, other in zip(leaves(expected), leaves(found), strict=True):
                assert one.stride() == other.stride()
    return module


def leaves(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple) else [results]


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Convolutions run as the first kernel that can, which is not oneDNN's."""
    monkeypatch.setenv("MEMPLAN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(decide, "fastest", min)


def block(channels: int, *more: nn.Module) -> nn.Sequential:
    inner = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    return nn.Sequential(inner, nn.BatchNorm2d(channels), *more)


class Residual(nn.Module):
    """Two branches that are added, an output that is kept, a head of a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.first, self.second = block(16, nn.ReLU()), block(16)
        self.gate, self.head = nn.Conv2d(16, 16, 1), nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = nn.functional.hardswish(self.stem(x))
        y = nn.functional.relu(self.second(self.first(x)) + x)
        y = y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        pooled = nn.functional.max_pool2d(torch.cat([y, x], 1), 3, 2, 1)
        return self.head(y.mean((2, 3))), pooled, x


def randomised(model: nn.Module) -> nn.Module:
    """Normalisations that do something."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
    return model


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("images", [1, 3])
def test_a_network_runs_in_few_kernels(images: int) -> None:
    module = check(randomised(Residual()), torch.randn(images, 3, 33, 31))
    plan = module.memplan
    assert 0 < plan.kernels < plan.fused
    assert plan.packed > 0
    assert not plan.asking


@pytest.mark.usefixtures("steady")
def test_several_sequences_of_a_stack_take_memory_of_the_arena() -> None:
    pools = [nn.MaxPool2d(3, 1, 1), nn.ReLU(), nn.AvgPool2d(5, 1, 2)] * 4
    layers = [nn.Conv2d(3, 64, 1), *pools]
    module = check(nn.Sequential(*layers), torch.randn(1, 3, 64, 64))
    assert module.memplan.fused == len(layers)


def test_images_may_lie_channels_last() -> None:
    x = torch.randn(2, 3, 33, 31).contiguous(memory_format=torch.channels_last)
    check(randomised(Residual()), x)


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: x[:, 2:5],
        lambda x: x[::2, :3],
        lambda x: x[:, :3, 1:8],
        lambda x: x[:, :3, :, ::2],
        lambda x: x[:1, :3].expand(3, 3, 16, 16),
        lambda x: x[:, :1].expand(4, 3, 16, 16),
    ],
)
def test_inputs_may_lie_in_larger_ones(cut: Any) -> None:
    x = torch.randn(4, 6, 16, 16).contiguous(memory_format=torch.channels_last)
    model, x = Residual().eval(), cut(x)
    module = compiled(model, x)
    with torch.no_grad():
        assert relative_error(model(x), module(x)) < 1e-5


class OnBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = block(8, nn.ReLU()), block(8)
        self.register_buffer("kept", torch.randn(1, 8, 16, 16))

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x)) + self.second(self.first(self.kept))


@pytest.mark.usefixtures("steady")
def test_what_depends_on_weights_alone_is_computed_once() -> None:
    plan = check(OnBuffer(), torch.randn(2, 8, 16, 16)).memplan
    assert plan.folded


class Standardised(nn.Conv2d):
    def forward(self, x: Any) -> Any:
        flat = self.weight.reshape(1, len(self.weight), -1)
        flat = nn.functional.batch_norm(flat, None, None, training=True)
        return self._conv_forward(x, flat.reshape(self.weight.shape), self.bias)


@pytest.mark.usefixtures("steady")
def test_weights_that_are_computed_are_packed() -> None:
    layers = [Standardised(3, 64, 3, padding=1), nn.ReLU(), Standardised(64, 8, 1)]
    plan = check(nn.Sequential(*layers), torch.randn(2, 3, 16, 16)).memplan
    assert plan.kernels == 2
    assert plan.fused == 3
    assert not plan.folded  # but for what is packed


class Unpooled(nn.Module):
    """Its kernel lays the result out otherwise than torch says."""

    def __init__(self) -> None:
        super().__init__()
        wide = nn.Conv2d(3, 64, 3, padding=1)
        self.layer = nn.Sequential(wide, nn.Conv2d(64, 8, 3, padding=1))

    def forward(self, x: Any) -> Any:
        found = nn.functional.max_pool2d(self.layer(x), 2, return_indices=True)
        return nn.functional.max_unpool2d(*found, 2)


def test_results_lie_as_the_models_where_torch_says_otherwise() -> None:
    check(Unpooled(), torch.randn(2, 3, 16, 16))


def test_weights_of_inference_mode_are_refused() -> None:
    with torch.inference_mode():
        model = Residual().eval()
    plan = memplan.compile(model, torch.randn(1, 3, 33, 31), options=PACKED).memplan
    assert "created in inference mode" in plan.reason


def test_what_only_some_kernels_can_do() -> None:
    layers = [
        nn.Conv2d(8, 2048, 1),  # so that the copies for others are not the peak
        nn.Conv2d(2048, 8, 1),
        nn.Conv2d(8, 8, 3, groups=4, padding=1),  # by oneDNN
        nn.ReLU(),
        nn.ConvTranspose2d(8, 8, 2, 2),  # by torch
        nn.GroupNorm(2, 8),
        nn.Conv2d(8, 8, 3, groups=8, padding=1),
        nn.Hardswish(),
        nn.PixelShuffle(2),
        nn.Conv2d(2, 4, 1, 2),
    ]
    check(nn.Sequential(*layers), torch.randn(2, 8, 9, 7))


@pytest.mark.usefixtures("steady")
def test_a_budget_cuts_what_kernels_compute() -> None:
    torch.manual_seed(0)
    wide = [nn.Conv2d(4, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 4, 3, padding=1)]
    model = nn.Sequential(*wide, nn.Sigmoid()).eval()
    x = torch.randn(1, 4, 128, 128)
    module = compiled(model, x, budget="30%")
    assert module.memplan.loops
    assert module.memplan.kernels > module.memplan.loops
    with torch.no_grad():
        assert relative_error(model(x), module(x)) < 1e-5


def test_weights_that_change_are_packed_again() -> None:
    model, x = randomised(Residual()), torch.randn(1, 3, 33, 31)
    module = compiled(model, x)
    with torch.no_grad():
        model.stem.weight.mul_(2)
        model.second[1].running_mean.add_(1)
        assert relative_error(model(x), module(x)) < 1e-5


def test_calls_at_the_same_time_have_kernels_of_their_own() -> None:
    model = randomised(Residual())
    inputs = [torch.randn(1, 3, 33, 31) for _ in range(4)]
    module = compiled(model, inputs[0])
    with torch.no_grad():
        expected = [module(each) for each in inputs]
    wrong = []

    def run(i: int) -> None:
        with torch.no_grad():
            for _ in range(25):
                found = module(inputs[i])
                wrong.extend(
                    i
                    for one, other in zip(found, expected[i], strict=True)
                    if not torch.equal(one, other)
                )

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_without_kernels_torch_runs_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "has_kernels", lambda: False)
    module = check(randomised(Residual()), torch.randn(1, 3, 33, 31))
    assert not module.memplan.kernels


def test_a_defect_of_kernels_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(schedule, "with_kernels", broken)
    options = memplan.CompileOptions(max_slowdown=1e6)
    model = nn.Sequential(nn.Conv2d(3, 64, 1), nn.ReLU(), nn.Conv2d(64, 3, 1)).eval()
    plan = memplan.compile(model, torch.randn(1, 3, 33, 31), options=options).memplan
    assert plan.status == "compiled", plan.reason
    assert plan.internal_errors == {"internal error: RuntimeError: broken": 4}


class Marked(torch.Tensor):
    pass


def test_tensors_of_other_classes_are_refused() -> None:
    x = torch.randn(1, 3, 33, 31).as_subclass(Marked)
    plan = memplan.compile(Residual().eval(), x, options=PACKED).memplan
    assert plan.reason == "it can be compiled only for plain tensors"


CHANNELS = 8
LAYERS: dict[str, Any] = {
    "conv": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    "bias": lambda: nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False),
    "wide": lambda: nn.Conv2d(CHANNELS, CHANNELS, 5, padding=4, dilation=2),
    "depthwise": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS),
    "norm": lambda: nn.BatchNorm2d(CHANNELS),
    "relu": nn.ReLU,
    "clamp": nn.ReLU6,
    "swish": nn.SiLU,
    "pool": lambda: nn.MaxPool2d(3, 1, 1),
    "mean": lambda: nn.AvgPool2d(3, 1, 1),
    "layer": lambda: nn.GroupNorm(2, CHANNELS),
    "turned": lambda: nn.Sequential(nn.Flatten(2), nn.Unflatten(2, (7, 6))),
}
HOW = ("after", "added", "gated", "joined", "kept")


class Made(nn.Module):
    """Layers one after another, each joined with an earlier value in one way."""

    def __init__(self, steps: list[tuple[str, str, int]]) -> None:
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList(LAYERS[name]() for name, _, _ in steps)
        self.narrow = nn.Conv2d(2 * CHANNELS, CHANNELS, 1)

    def forward(self, x: Any) -> Any:
        values, kept = [x], []
        for layer, (_, how, at) in zip(self.layers, self.steps, strict=True):
            y, other = layer(values[-1]), values[at % len(values)]
            if how == "added":
                y = y + other
            elif how == "gated":
                y = y * other.mean((2, 3), keepdim=True).sigmoid()
            elif how == "joined":
                y = self.narrow(torch.cat([y, other], 1))
            elif how == "kept":
                kept.append(y)
            values.append(y)
        return (*kept, values[-1])


STEP = st.tuples(
    st.sampled_from(sorted(LAYERS)), st.sampled_from(HOW), st.integers(0, 20)
)


def check_made(steps: list[tuple[str, str, int]], images: int) -> None:
    torch.manual_seed(len(steps))
    model, x = randomised(Made(steps)).eval(), torch.randn(images, CHANNELS, 7, 6)
    module = memplan.compile(model, x, options=PACKED)
    assert "internal error" not in module.memplan.reason
    with torch.no_grad():
        for values in (x, torch.randn_like(x)):
            assert relative_error(model(values), module(values)) < 1e-4


@given(st.lists(STEP, min_size=1, max_size=6), st.sampled_from([1, 2]))
@settings(max_examples=8, derandomize=True, deadline=None)
def test_random_networks(steps: list[tuple[str, str, int]], images: int) -> None:
    check_made(steps, images)


@pytest.mark.soak
@given(st.lists(STEP, min_size=1, max_size=14), st.sampled_from([1, 2, 3]))
@settings(max_examples=300, deadline=None)
def test_many_random_networks(steps: list[tuple[str, str, int]], images: int) -> None:
    check_made(steps, images)


def test_a_plan_that_saves_memory_goes_before_a_faster_one_that_saves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels are tried in turns, each a little faster here, the last without any."""
    times = itertools.count(2.0, -0.01)
    monkeypatch.setattr(bench, "seconds", lambda runs, **_: [1.0, next(times)])
    layers = block(16, nn.ReLU()).eval()
    options = memplan.CompileOptions(max_slowdown=10)
    # No part of it would take less scratch: it has few rows and channels.
    found = memplan.compile(layers, torch.randn(1, 16, 7, 20), options=options)
    plan = found.memplan
    assert plan.packed
    assert plan.bytes_after < plan.bytes_before


class Patches(nn.Module):
    """Attention between patches of an image, by heads."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)

    def forward(self, x: Any) -> Any:
        heads = self.patches(x).flatten(2).reshape(1, 4, 4, -1).mT
        scores = (heads @ heads.mT) * 0.5
        return scores.softmax(-1) @ heads


def test_scores_of_attention_are_no_images() -> None:
    """They stay as products lay them out, and are overwritten."""
    torch.manual_seed(0)
    model, x = Patches().eval(), torch.randn(1, 3, 64, 64)
    plain, packed = (
        memplan.compile(model, x, options=memplan.CompileOptions(1e6, pack)).memplan
        for pack in (False, True)
    )
    assert packed.kernels == 1
    assert packed.arena <= plain.arena
