"""Models, what they are fused to, and results compared to the last stride."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memplan.compiling.fuse import fuse
from memplan.compiling.module import Compiled
from memplan.fusing.layers import DepthwiseStack
from memplan.fusing.options import FuseOptions
from memplan.graph.nest import leaves_of

FORCED = FuseOptions(measure=False, kernels=("direct", "onednn"))
OWN = FuseOptions(measure=False, kernels=("direct", "depthwise"))


def block(c: int = 4) -> Any:
    return nn.Sequential(nn.Conv2d(3, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU())


class Made(nn.Module):
    """A model whose forward is a function of itself and its inputs."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.work = forward

    def forward(self, x: Any) -> Any:
        return self.work(self, x)


def made(forward: Callable[..., Any], **parts: Any) -> Any:
    torch.manual_seed(0)
    model = Made(forward, body=block(), **parts).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 1.5)
    return model


def noise(*shape: int) -> Any:
    shape = shape or (2, 3, 8, 8)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def same(expected: Any, found: Any, tolerance: float = 1e-5) -> None:
    assert type(expected) is type(found)
    left, right = leaves_of(expected), leaves_of(found)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        if isinstance(a, torch.Tensor):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            sizes = zip(a.shape, a.stride(), b.stride(), strict=True)
            assert all(x == y for size, x, y in sizes if size > 1)
            torch.testing.assert_close(
                b, a, rtol=tolerance, atol=tolerance, equal_nan=True
            )
        else:
            assert a == b


def alike(model: Any, *inputs: Any, fused: bool | None = True) -> Any:
    """Run a model and what it is fused to; `fused` says whether it is to be."""
    ready = fuse(model, FORCED)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore" if fused is not True else "error")
        for turn in range(2):
            mine = [each.clone() if turn else each for each in inputs]
            expected = model(*[each.clone() for each in mine])
            given = [each.clone() for each in mine]
            same(expected, ready(*given))
            for a, b in zip(mine, given, strict=True):
                assert torch.equal(a, b) or fused is not True
    (program, *_) = ready.programs()
    if fused is not None:
        assert is_whole(program) == fused, getattr(program, "reason", "")
    return ready


def fused(model: Any, *inputs: Any, options: FuseOptions = OWN) -> Any:
    """The model's nodes, whose results are the model's."""
    ready = fuse(model, options)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        same(model(*inputs), ready(*inputs))
    (program, *_) = ready.programs()
    assert is_whole(program), getattr(program, "reason", "")
    return program.runner.schedule.joined


def kinds(joined: Any) -> list[list[str]]:
    """Of every depthwise convolution's stack, what its operations are."""
    return [
        [each.kind for each in node.operations]
        for node in joined.nodes
        if isinstance(node, DepthwiseStack)
    ]


def apart(c: int, size: Any = 3, stride: int = 1, **more: Any) -> Any:
    """A depthwise convolution."""
    return nn.Conv2d(c, c, size, stride, groups=c, **more)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.tail = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Sigmoid())
        self.scale = 2.0

    def forward(self, x: Any) -> Any:
        return self.tail(self.bn(self.conv(x))) * self.scale


def small() -> Any:
    """A model of a convolution and a stack."""
    torch.manual_seed(0)
    return Small().eval()


def agree(model: Any, ready: Any, x: Any = None) -> None:
    x = noise() if x is None else x
    with torch.no_grad():
        torch.testing.assert_close(ready(x), model(x), rtol=1e-5, atol=1e-5)


def is_whole(program: Any) -> bool:
    """Whether all of a model runs fused."""
    return isinstance(program, Compiled) and program.runner is not None


def program(ready: Any) -> Any:
    return ready.programs()[-1]


def prepared(model: Any) -> Any:
    """What a model is fused to, whose results are the model's."""
    ready = fuse(model, FORCED)
    agree(model, ready)
    assert is_whole(program(ready))
    return ready
