"""Layers that are not what they seem, padding, and models that are fused in parts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from fuse_alike import (  # noqa: E402
    FORCED,
    OWN,
    agree,
    alike,
    apart,
    fused,
    made,
    noise,
    prepared,
    program,
    same,
)
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from memplan.compiling.fuse import fuse  # noqa: E402
from memplan.compiling.module import Compiled  # noqa: E402
from memplan.compiling.parts import CompiledParts  # noqa: E402
from memplan.compiling.summary import summary  # noqa: E402
from memplan.fusing.layers import DepthwiseStack, EagerOp  # noqa: E402
from memplan.fusing.options import FuseOptions, Joining  # noqa: E402
from memplan.toolchain.compiler import find_compiler  # noqa: E402


def test_lazy_layers() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.LazyBatchNorm2d()).eval()
    ready = fuse(model, FORCED)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ready(noise())
    agree(model, ready)
    assert isinstance(program(ready), Compiled)


class Odd(nn.Conv2d):
    def forward(self, x: Any) -> Any:
        return super().forward(x) + 1


def _wrapped() -> Any:
    conv = nn.Conv2d(3, 4, 3)
    conv.forward = lambda x, plain=conv.forward: plain(x) * 2
    return conv


LAYERS: dict[str, Callable[[], Any]] = {
    "a subclass": lambda: Odd(3, 4, 3),
    "another forward": _wrapped,
    "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)),
    "spectral": lambda: nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)),
    "old spectral": lambda: nn.utils.spectral_norm(nn.Conv2d(3, 4, 3)),
    "fused by torch": lambda: nn.utils.fuse_conv_bn_eval(
        nn.Conv2d(3, 4, 3).eval(), nn.BatchNorm2d(4).eval()
    ),
    "reflected": lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
    "batch statistics": lambda: nn.BatchNorm2d(3, track_running_stats=False),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_that_are_not_what_they_seem(kind: str) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        layer = LAYERS[kind]()
    channels = 3 if kind == "batch statistics" else 4
    model = nn.Sequential(layer, nn.ReLU(), nn.Conv2d(channels, 4, 1)).eval()
    if kind == "old spectral":  # by a hook
        ready = fuse(model, FORCED)
        with pytest.warns(
            UserWarning, match="its modules have hooks: .*SpectralNorm at 0"
        ):
            agree(model, ready)
    else:
        ready = prepared(model)
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(1.5)
    agree(model, ready)


class Loops(nn.Module):
    """Not exportable as a whole, and its parts are taken apart in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
        self.blocks = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.SiLU())
        self.last = nn.ModuleList([nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())])

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for layer in self.blocks:
            x = layer(x)
        if float(x.sum()) > 1e9:  # follows from data
            x = self.blocks[0](x)
        return self.last[-1](x) + len(self.blocks)


def test_parts_of_a_model_that_cannot_be_taken_whole() -> None:
    model = Loops().eval()
    ready = fuse(model, FORCED)
    with pytest.warns(UserWarning, match="parts of the model run unchanged: torch.exp"):
        agree(model, ready)
    made = program(ready)
    assert isinstance(made, CompiledParts)
    assert list(made.parts) == ["first", "last.0"]  # what is called as a whole
    agree(model, ready)
    with torch.no_grad():
        model.first[0].weight.mul_(2)
    agree(model, ready)
    seen: list[Any] = []
    model.first.register_forward_hook(lambda module, *_: seen.append(module))
    with pytest.warns(UserWarning, match="what else its code reaches"), torch.no_grad():
        for _ in range(3):
            ready(noise())
    assert list(program(ready).parts) == ["last.0"]
    assert seen == [model.first] * 3  # once a call


def test_a_model_left_alone_is_looked_at_again() -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 8), nn.Conv2d(3, 4, 1), nn.ReLU())
            self.whole = False

        def forward(self, x: Any) -> Any:
            return self.body(x) if self.whole else self.body[0](x)

    model = Chooses().eval()
    ready = fuse(model, FORCED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn in range(200):
            model.whole = turn >= 40
            agree(model, ready)
    assert isinstance(program(ready), Compiled)


@pytest.mark.parametrize("shape", [(2, 20, 4, 4), (2, 5, 3, 40)])
@pytest.mark.parametrize(
    "pool",
    [
        nn.AvgPool2d(1280, ceil_mode=True),
        nn.AvgPool2d(50, ceil_mode=True, padding=3),
        nn.AvgPool2d(50, ceil_mode=True, padding=3, count_include_pad=False),
        nn.AvgPool2d((90, 2), ceil_mode=True, divisor_override=7),
        nn.MaxPool2d(50, ceil_mode=True, padding=5),
        nn.MaxPool2d(9, stride=70, dilation=6, ceil_mode=True),
    ],
    ids=repr,
)
def test_a_window_beyond_the_plane_is_no_larger_than_that(
    pool: Any, shape: tuple[int, ...]
) -> None:
    model, x = nn.Sequential(nn.ReLU(), pool, nn.Sigmoid()).eval(), torch.randn(shape)
    ready = fuse(model, FORCED)
    with torch.no_grad():
        torch.testing.assert_close(ready(x), model(x))
    (made,) = ready.programs()
    found = made.runner.schedule.joined.nodes[0].operations[1].pool
    for axis in (0, 1):
        assert found.reach(axis) <= shape[2 + axis] + 2 * found.padding[axis]


def test_windows_that_may_miss_the_plane_are_torchs() -> None:
    pool = nn.MaxPool2d(9, padding=4, dilation=6, ceil_mode=True, stride=60)
    model = nn.Sequential(nn.ReLU(), pool, nn.Sigmoid()).eval()
    ready, x = fuse(model, FORCED), noise(1, 3, 3, 3)
    with torch.no_grad():
        torch.testing.assert_close(ready(x), model(x))
    (part,) = summary(ready).parts
    became = {each.place: (each.became, each.reason) for each in part.layers}
    assert became["1"] == ("torch", "it has unsupported arguments")


needs_compiler = pytest.mark.skipif(
    find_compiler() is None, reason="needs a C++ compiler"
)


@needs_compiler
@pytest.mark.parametrize(
    ("given", "behind"),
    [((1, 1, 1, 1), (0, 0)), ((0, 1, 0, 1), (1, 1)), ((2, 0, 1, 4), (3, -2))],
)
def test_zeros_in_front_are_its_padding(given: Any, behind: Any) -> None:
    model = made(
        lambda m, x: m.apart(f.pad(m.head(x), given)),
        head=nn.Conv2d(3, 18, 1), apart=apart(18, stride=2, padding=(0, 1)),
    )  # fmt: skip
    engine = fused(model, noise(2, 3, 14, 14))
    (node,) = [each for each in engine.nodes if isinstance(each, DepthwiseStack)]
    assert node.convolution.convolution.behind == behind
    assert len(engine.nodes) == 2
    by_onednn = FuseOptions(measure=False, kernels=("onednn",))
    fused(model, noise(2, 3, 14, 14), options=by_onednn)


@needs_compiler
def test_zeros_around_planes_are_any_convolutions_padding() -> None:
    model = nn.Sequential(
        nn.ZeroPad2d(2), nn.Conv2d(3, 8, 3), nn.ZeroPad2d((0, 1, 0, 1)),
        nn.Conv2d(8, 8, 3, 2), nn.ConstantPad2d(1, 0.5), apart(8),
        nn.ZeroPad2d(0), nn.ConstantPad2d((1, 1, 2, 2), 0.0), nn.Conv2d(8, 4, 1),
    ).eval()  # fmt: skip
    ready = fuse(model, OWN)
    x = noise(2, 3, 14, 15)
    with torch.no_grad():
        same(model(x), ready(x))
    (part,) = summary(ready).parts
    became = {each.place: (each.became, each.reason) for each in part.layers}
    assert became["0"] == ("joined", "")
    assert became["2"] == ("joined", "")
    assert became["4"] == ("torch", "it does not pad with zeros")
    assert became["6"] == ("nothing", "")
    assert became["7"] == ("joined", "")


@needs_compiler
def test_padding_that_more_than_one_takes_stays() -> None:
    def work(m: Any, x: Any) -> Any:
        y = f.pad(x, (1, 1, 1, 1))
        return m.one(y) + m.other(y)

    model = made(work, one=nn.Conv2d(6, 6, 3), other=apart(6))
    first, *_ = fused(model, noise(1, 6, 9, 9)).nodes
    assert isinstance(first, EagerOp)
    without = FuseOptions(measure=False, joining=Joining(prologues=False))
    single = made(lambda m, x: m.one(f.pad(x, (1, 1))), one=nn.Conv2d(6, 6, 3))
    assert len(fused(single, noise(1, 6, 9, 9), options=without).nodes) == 2


def test_paddings_that_are_none_of_a_convolution() -> None:
    conv = nn.Conv2d(4, 4, 3)
    for pad in (
        lambda x: f.pad(x, (1, 1, 1, 1), mode="reflect"),
        lambda x: f.pad(x, (1, 1, 1, 1), value=2.0),
        lambda x: f.pad(x, (-1, 1, 1, 1)),
        lambda x: f.pad(x, (1, 1, 1, 1, 0, 0)),
    ):
        alike(made(lambda m, x, pad=pad: m.conv(pad(x)), conv=conv), noise(1, 4, 9, 9))
