"""A small model, what it is fused to, and how the two are compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from memplan.fusing.fuse import fuse
from memplan.fusing.options import FuseOptions
from memplan.fusing.prepared import Prepared

FORCED = FuseOptions(measure=False, kernels=("direct", "onednn"))


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
    torch.manual_seed(0)
    return Small().eval()


def noise(*shape: int) -> Any:
    shape = shape or (2, 3, 8, 8)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def agree(model: Any, ready: Any, x: Any = None) -> None:
    x = noise() if x is None else x
    with torch.no_grad():
        torch.testing.assert_close(ready(x), model(x), rtol=1e-5, atol=1e-5)


def program(ready: Any) -> Any:
    return ready.programs()[-1]


def prepared(model: Any) -> Any:
    ready = fuse(model, FORCED)
    agree(model, ready)
    assert isinstance(program(ready), Prepared)
    return ready
