"""Fused models on inputs of all kinds: layouts, types, numbers, batches."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from fuse_alike import FORCED, alike, block, made, noise, same  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from memplan.fusing.fuse import fuse  # noqa: E402
from memplan.fusing.options import FuseOptions  # noqa: E402
from memplan.fusing.prepared import Fallback, Prepared  # noqa: E402


def aliased(self: Any, x: Any) -> Any:
    y = self.body(x)
    z = y[:, :2]
    z.mul_(2)
    return y


def wrote_input(self: Any, x: Any) -> Any:
    return self.body(f.relu_(x))


@pytest.mark.parametrize("forward", [aliased, wrote_input], ids=["view", "input"])
def test_writing_through_another_name(forward: Callable[..., Any]) -> None:
    model = made(forward)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ready = fuse(model, FORCED)
        for _ in range(2):
            mine, theirs = noise(2, 3, 8, 8), noise(2, 3, 8, 8)
            same(model(mine), ready(theirs))
            assert torch.equal(mine, theirs)  # the caller's tensor changes as in eager


INPUTS: dict[str, Callable[[], Any]] = {
    "none": lambda: noise(0, 3, 8, 8),
    "one": lambda: noise(1, 3, 8, 8),
    "turned": lambda: noise(2, 8, 8, 3).permute(0, 3, 1, 2),
    "channels last": lambda: noise(2, 3, 8, 8).to(memory_format=torch.channels_last),
    "a part": lambda: noise(4, 6, 16, 16)[::2, 1::2, ::2, 3:11],
    "expanded": lambda: noise(1, 3, 1, 8).expand(2, 3, 8, 8),
    "odd": lambda: noise(3, 3, 7, 11),
    "a point": lambda: noise(2, 3, 1, 1),
    "a row": lambda: noise(2, 3, 1, 9),
    "negative": lambda: torch.complex(noise(2, 3, 8, 8), noise(2, 3, 8, 8)).conj().imag,
}


@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_as_they_lie(kind: str) -> None:
    model = made(lambda s, x: s.last(s.body(x) - 0.1), last=nn.Conv2d(4, 5, 1))
    stacks = nn.Sequential(nn.ReLU(), nn.AvgPool2d(3, 1, 1), nn.Sigmoid()).eval()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in (model, stacks):
            ready, x = fuse(each, FORCED), INPUTS[kind]()
            for _ in range(2):
                same(each(x), ready(x))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_types(dtype: str) -> None:
    kind = getattr(torch, dtype)
    model, x = made(lambda s, x: f.relu(s.body(x) - 0.1)).to(kind), noise(2, 3, 8, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ready = fuse(model, FORCED)
        found = ready(x.to(kind))
        expected = model(x.to(kind))
    exact = {"float64": 1e-14, "float16": 1e-3, "bfloat16": 2e-2}[dtype]
    same(expected.double(), found.double(), exact)
    assert found.dtype == kind


def test_whole_numbers_are_left_to_torch() -> None:
    model = made(lambda s, x: s.body(x.float() / 255) * 2)
    alike(model, (noise(2, 3, 8, 8) * 9).to(torch.uint8))


@pytest.mark.parametrize("kernels", [("direct",), ("onednn",), ("winograd2", "direct")])
def test_not_a_number_goes_through(kernels: tuple[str, ...]) -> None:
    model = made(
        lambda s, x: f.relu6(s.last(s.body(x)) + x), last=nn.Conv2d(4, 3, 3, padding=1)
    )
    x = noise(2, 3, 8, 8)
    ready = fuse(model, FuseOptions(measure=False, kernels=kernels))
    with torch.no_grad():
        ready(x)
        x[0, 0, 3, 3], x[1, 1, 2, 2] = math.nan, math.inf
        same(model(x), ready(x))
    assert isinstance(ready.programs()[0], Prepared)


def test_two_inputs_of_several_batches() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = block()

        def forward(self, x: Any, y: Any, scale: float = 2.0) -> Any:
            return self.body(x) * scale + self.body(y).mean(0, keepdim=True)

    model = Two().eval()
    ready = alike(model, noise(4, 3, 8, 8), noise(3, 3, 8, 8))
    with torch.no_grad():
        x, y = noise(4, 3, 8, 8), noise(3, 3, 8, 8)
        for scale in (1, 1.0, True, 3.0):
            same(model(x, y, scale), ready(x, y, scale))
            same(model(y=y, x=x, scale=scale), ready(y=y, x=x, scale=scale))


MIXING: dict[str, Callable[..., Any]] = {
    "mean": lambda s, x: s.body(x) - s.body(x).mean(0, keepdim=True),
    "fixed view": lambda s, x: s.body(x).view(4, -1),
    "turned": lambda s, x: s.body(x).flip(0),
    "softmax": lambda s, x: f.softmax(s.body(x).mean((2, 3)), 0),
}


@pytest.mark.parametrize("kind", MIXING)
def test_images_that_see_each_other_go_together(kind: str) -> None:
    model, x = made(MIXING[kind]), noise(4, 3, 8, 8)
    ready = fuse(model, FORCED)
    alone = fuse(model, FuseOptions(measure=False, micro_batch=1))
    with torch.no_grad():
        same(model(x), ready(x))
        assert ready.programs()[0].engine.batch == 4
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            same(model(x), alone(x))
        assert isinstance(alone.programs()[0], Fallback) and said


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_images_go_some_at_a_time(batch: int) -> None:
    model, x = made(lambda s, x: (x, {"y": s.body(x).flatten(1)})), noise(5, 3, 8, 8)
    ready = fuse(model, FuseOptions(measure=False, micro_batch=batch))
    with torch.no_grad():
        expected, found = model(x), ready(x)
        same(expected, found)
        assert found[0] is x
        x += 1
        same(model(x), ready(x))
    assert ready.programs()[0].engine.batch == batch
