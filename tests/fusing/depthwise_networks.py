"""Networks of depthwise convolutions, with weights that keep values within reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from scripts.models.mobilenet import MobileNetV3


def conv(c: int, k: int, size: int, stride: int, groups: int) -> Any:
    """Convolution, normalisation and ReLU."""
    own = nn.Conv2d(c, k, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(own, nn.BatchNorm2d(k), nn.ReLU(inplace=True))


class Shuffled(nn.Module):
    """A unit of ShuffleNetV2: half of the channels, or all with stride 2."""

    def __init__(self, c: int, k: int, stride: int) -> None:
        super().__init__()
        half = k // 2
        entry = c if stride == 2 else half
        self.right = nn.Sequential(
            conv(entry, half, 1, 1, 1),
            conv(half, half, 3, stride, half)[:2],
            conv(half, half, 1, 1, 1),
        )
        self.left = None
        if stride == 2:
            self.left = nn.Sequential(conv(c, c, 3, 2, c)[:2], conv(c, half, 1, 1, 1))

    def forward(self, x: Any) -> Any:
        if self.left is None:
            one, other = x.chunk(2, 1)
            y = torch.cat((one, self.right(other)), 1)
        else:
            y = torch.cat((self.left(x), self.right(x)), 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet() -> Any:
    return nn.Sequential(
        conv(3, 24, 3, 2, 1), Shuffled(24, 40, 2), *(Shuffled(40, 40, 1) for _ in "ab")
    )


class Next(nn.Module):
    """A block of ConvNeXt."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.norm = nn.LayerNorm(c)
        self.wide, self.narrow = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.scale = nn.Parameter(torch.full((c, 1, 1), 0.1))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.narrow(nn.functional.gelu(self.wide(y))).permute(0, 3, 1, 2)
        return x + self.scale * y


def convnext() -> Any:
    return nn.Sequential(nn.Conv2d(3, 48, 4, 4), Next(48), Next(48))


NETWORKS: dict[str, Callable[[], Any]] = {
    "mobilenet": lambda: nn.Sequential(*[*MobileNetV3()][:11]),  # blocks of each kind
    "shufflenet": shufflenet,
    "convnext": convnext,
}


def network(name: str) -> Any:
    """One of NETWORKS in inference, its statistics as after some training."""
    torch.manual_seed(0)
    model = NETWORKS[name]()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in")
        elif isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.8, 1.2)
            module.weight.data.uniform_(0.7, 1.0)
    return model.eval()
