"""Networks of depthwise convolutions, their numbers as in torchvision, and weights that
keep values within reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def conv(c: int, k: int, size: int, stride: int, groups: int, act: Any = None) -> Any:
    """Convolution, normalisation, and what follows it."""
    parts: list[Any] = [
        nn.Conv2d(c, k, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(k),
    ]
    return nn.Sequential(*parts, *([act(inplace=True)] if act else []))


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, c: int, inner: int, act: Any, gate: Any) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.down, self.up = nn.Conv2d(c, inner, 1), nn.Conv2d(inner, c, 1)
        self.act, self.gate = act(), gate()

    def forward(self, x: Any) -> Any:
        return x * self.gate(self.up(self.act(self.down(self.pool(x)))))


class Inverted(nn.Module):
    """Wider by a 1×1 convolution, a depthwise one, narrower again."""

    def __init__(
        self,
        c: int,
        wide: int,
        k: int,
        size: int,
        stride: int,
        act: Any,
        squeeze: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__()
        parts = [conv(c, wide, 1, 1, 1, act)] if wide != c else []
        parts.append(conv(wide, wide, size, stride, wide, act))
        parts += [squeeze()] if squeeze else []
        self.block = nn.Sequential(*parts, conv(wide, k, 1, 1, 1))
        self.residual = stride == 1 and c == k

    def forward(self, x: Any) -> Any:
        return x + self.block(x) if self.residual else self.block(x)


def headed(features: list[Any], c: int, last: int, act: Any, classes: int) -> Any:
    """Features, a last 1×1 convolution, the mean of its planes, and a linear layer."""
    head = [conv(c, last, 1, 1, 1, act), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*features, *head, nn.Dropout(0.2), nn.Linear(last, classes))


def mobilenet_v2(classes: int = 1000) -> Any:
    """Sandler and others, 2018."""
    rows = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)]
    rows += [(6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    c, blocks = 32, [conv(3, 32, 3, 2, 1, nn.ReLU6)]
    for wider, k, count, stride in rows:
        for i in range(count):
            blocks.append(
                Inverted(c, c * wider, k, 3, stride if i == 0 else 1, nn.ReLU6)
            )
            c = k
    return headed(blocks, c, 1280, nn.ReLU6, classes)


def mobilenet_v3(classes: int = 1000) -> Any:
    """The large one of Howard and others, 2019."""
    re, hs = nn.ReLU, nn.Hardswish
    rows = [(3, 16, 16, 0, re, 1), (3, 64, 24, 0, re, 2), (3, 72, 24, 0, re, 1)]
    rows += [(5, 72, 40, 1, re, 2), (5, 120, 40, 1, re, 1), (5, 120, 40, 1, re, 1)]
    rows += [(3, 240, 80, 0, hs, 2), (3, 200, 80, 0, hs, 1), (3, 184, 80, 0, hs, 1)]
    rows += [(3, 184, 80, 0, hs, 1), (3, 480, 112, 1, hs, 1), (3, 672, 112, 1, hs, 1)]
    rows += [(5, 672, 160, 1, hs, 2), (5, 960, 160, 1, hs, 1), (5, 960, 160, 1, hs, 1)]
    c, blocks = 16, [conv(3, 16, 3, 2, 1, hs)]
    for size, wide, k, squeezed, act, stride in rows:
        inner = (wide // 4 + 4) // 8 * 8

        def squeeze(wide: int = wide, inner: int = inner) -> Any:
            return Squeeze(wide, inner, nn.ReLU, nn.Hardsigmoid)

        given = squeeze if squeezed else None
        blocks.append(Inverted(c, wide, k, size, stride, act, given))
        c = k
    return headed(blocks, c, 960, hs, classes)


def efficientnet_b0(classes: int = 1000) -> Any:
    """Tan and Le, 2019."""
    rows = [(1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3)]
    rows += [(6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1)]
    c, blocks = 32, [conv(3, 32, 3, 2, 1, nn.SiLU)]
    for wider, size, stride, k, count in rows:
        for i in range(count):
            wide, inner = c * wider, max(1, c // 4)

            def squeeze(wide: int = wide, inner: int = inner) -> Any:
                return Squeeze(wide, inner, nn.SiLU, nn.Sigmoid)

            step = stride if i == 0 else 1
            blocks.append(Inverted(c, wide, k, size, step, nn.SiLU, squeeze))
            c = k
    return headed(blocks, c, 1280, nn.SiLU, classes)


def mnasnet(classes: int = 1000) -> Any:
    """Tan and others, 2019, at depth 1."""
    rows = [(3, 3, 3, 24, 2), (3, 5, 3, 40, 2), (6, 5, 3, 80, 2)]
    rows += [(6, 3, 2, 96, 1), (6, 5, 4, 192, 2), (6, 3, 1, 320, 1)]
    blocks = [conv(3, 32, 3, 2, 1, nn.ReLU), conv(32, 32, 3, 1, 32, nn.ReLU)]
    blocks.append(conv(32, 16, 1, 1, 1))
    c = 16
    for wider, size, count, k, stride in rows:
        for i in range(count):
            step = stride if i == 0 else 1
            blocks.append(Inverted(c, c * wider, k, size, step, nn.ReLU))
            c = k
    return headed(blocks, c, 1280, nn.ReLU, classes)


class Shuffled(nn.Module):
    """A unit of ShuffleNetV2: half of the channels, or all with stride 2."""

    def __init__(self, c: int, k: int, stride: int) -> None:
        super().__init__()
        half, self.stride = k // 2, stride
        entry = c if stride == 2 else half
        self.right = nn.Sequential(
            conv(entry, half, 1, 1, 1, nn.ReLU),
            conv(half, half, 3, stride, half),
            conv(half, half, 1, 1, 1, nn.ReLU),
        )
        self.left = nn.Sequential()
        if stride == 2:
            self.left = nn.Sequential(
                conv(c, c, 3, 2, c), conv(c, half, 1, 1, 1, nn.ReLU)
            )

    def forward(self, x: Any) -> Any:
        if self.stride == 1:
            one, other = x.chunk(2, 1)
            y = torch.cat((one, self.right(other)), 1)
        else:
            y = torch.cat((self.left(x), self.right(x)), 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet_v2(classes: int = 1000) -> Any:
    """Ma and others, 2018, at width 1."""
    c = 24
    blocks = [conv(3, c, 3, 2, 1, nn.ReLU), nn.MaxPool2d(3, 2, 1)]
    for k, count in ((116, 4), (232, 8), (464, 4)):
        for i in range(count):
            blocks.append(Shuffled(c, k, 2 if i == 0 else 1))
            c = k
    return headed(blocks, c, 1024, nn.ReLU, classes)


class Normed(nn.LayerNorm):
    """Of each pixel's channels."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Next(nn.Module):
    """A block of ConvNeXt."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.norm = nn.LayerNorm(c)
        self.wide, self.narrow = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.act = nn.GELU()
        self.scale = nn.Parameter(torch.full((c, 1, 1), 0.1))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.narrow(self.act(self.wide(y))).permute(0, 3, 1, 2)
        return x + self.scale * y


def convnext(classes: int = 1000, depths: tuple[int, ...] = (3, 3, 9, 3)) -> Any:
    """The tiny one of Liu and others, 2022."""
    blocks: list[Any] = [nn.Conv2d(3, 96, 4, 4), Normed(96)]
    c = 96
    for i, depth in enumerate(depths):
        if i:
            blocks += [Normed(c), nn.Conv2d(c, 2 * c, 2, 2)]
            c *= 2
        blocks += [Next(c) for _ in range(depth)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(c)]
    return nn.Sequential(*blocks, *head, nn.Linear(c, classes))


NETWORKS: dict[str, Callable[[], Any]] = {
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v3": mobilenet_v3,
    "efficientnet_b0": efficientnet_b0,
    "mnasnet": mnasnet,
    "shufflenet_v2": shufflenet_v2,
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
