"""Zeros padded in front of convolutions: what becomes their own padding."""

from __future__ import annotations

from typing import Any

import pytest
from fuse_alike import OWN, alike, apart, fused, made, noise, same

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from memplan.fusing.fuse import fuse  # noqa: E402
from memplan.fusing.layers import DepthwiseStack, EagerOp  # noqa: E402
from memplan.fusing.options import FuseOptions, Joining  # noqa: E402
from memplan.fusing.summary import summary  # noqa: E402
from memplan.toolchain.compiler import find_compiler  # noqa: E402

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
    assert became["2"] == ("torch", "no convolution can take over its padding")
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


@needs_compiler
def test_padding_that_keeps_planes_as_large() -> None:
    model = made(
        lambda m, x: f.conv2d(x, m.apart.weight, m.apart.bias, padding="same",
                              dilation=2, groups=7),
        apart=apart(7, (3, 5)),
    )  # fmt: skip
    engine = fused(model, noise(1, 7, 13, 12))
    (node,) = engine.nodes
    assert node.convolution.convolution.padding == (2, 4)
