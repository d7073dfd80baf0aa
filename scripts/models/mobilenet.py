"""MobileNetV3-Large (Howard et al., Searching for MobileNetV3, 2019, Table 1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Window, expanded channels, outputs, squeeze and excite, hard swish, stride.
ROWS = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)


class Excitation(nn.Module):
    """Scales each channel by what all channels' means say: (N, C, H, W) as it was."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = eights(channels // 4)
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, inner, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, channels, 1),
            nn.Hardsigmoid(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale(x)


def eights(channels: int) -> int:
    """The nearest multiple of 8, but not less than nine tenths."""
    nearest = max(8, (channels + 4) // 8 * 8)
    return nearest + 8 if 10 * nearest < 9 * channels else nearest


def convolution(
    inputs: int, outputs: int, window: int, stride: int, groups: int, swish: bool
) -> list[nn.Module]:
    """A convolution, its normalization and activation."""
    own = nn.Conv2d(
        inputs, outputs, window, stride, window // 2, groups=groups, bias=False
    )
    active = nn.Hardswish(inplace=True) if swish else nn.ReLU(inplace=True)
    return [own, nn.BatchNorm2d(outputs, eps=0.001), active]


class Bottleneck(nn.Module):
    """1x1 up, depthwise, 1x1 down; added to its input where both are alike."""

    def __init__(self, inputs: int, row: tuple[int, int, int, bool, bool, int]) -> None:
        super().__init__()
        window, inner, outputs, excite, swish, stride = row
        parts: list[nn.Module] = []
        if inner != inputs:
            parts += convolution(inputs, inner, 1, 1, 1, swish)
        parts += convolution(inner, inner, window, stride, inner, swish)
        if excite:
            parts.append(Excitation(inner))
        parts += [nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.residual = nn.Sequential(*parts)
        self.added = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.residual(x) if self.added else self.residual(x)


class MobileNetV3(nn.Module):
    """Images (N, 3, H, W) to logits (N, classes); 5,483,032 parameters."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        blocks = convolution(3, 16, 3, 2, 1, True)
        channels = 16
        for row in ROWS:
            blocks.append(Bottleneck(channels, row))
            channels = row[2]
        blocks += convolution(channels, 960, 1, 1, 1, True)
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Sequential(
            nn.Linear(960, 1280),
            nn.Hardswish(),
            nn.Dropout(0.2),
            nn.Linear(1280, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.mean(self.blocks(x), dim=(2, 3)))
