"""GoogLeNet, Inception v1 (Szegedy et al., Going Deeper with Convolutions, 2014).

As in the paper's table 1, 5x5 branches included, with batch normalization after each
convolution in place of its bias and of local response normalization.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Inputs, then the channels of #1x1, #3x3 reduce, #3x3, #5x5 reduce, #5x5, pool proj
# (table 1); "pool" halves the image.
_BLOCKS: tuple[tuple[int, int, int, int, int, int, int] | str, ...] = (
    (192, 64, 96, 128, 16, 32, 32),
    (256, 128, 128, 192, 32, 96, 64),
    "pool",
    (480, 192, 96, 208, 16, 48, 64),
    (512, 160, 112, 224, 24, 64, 64),
    (512, 128, 128, 256, 24, 64, 64),
    (512, 112, 144, 288, 32, 64, 64),
    (528, 256, 160, 320, 32, 128, 128),
    "pool",
    (832, 256, 160, 320, 32, 128, 128),
    (832, 384, 192, 384, 48, 128, 128),
)


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """Convolution, batch normalization, ReLU; the image keeps its size / stride."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class Branches(nn.Module):
    """Modules side by side, their results joined along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def inception(
    inputs: int,
    one: int,
    three_reduce: int,
    three: int,
    five_reduce: int,
    five: int,
    pool: int,
) -> Branches:
    """The paper's module of four branches."""
    convolved = (
        nn.Sequential(
            convolution(inputs, reduce, 1), convolution(reduce, outputs, size)
        )
        for reduce, outputs, size in ((three_reduce, three, 3), (five_reduce, five, 5))
    )
    pooled = nn.MaxPool2d(3, stride=1, padding=1), convolution(inputs, pool, 1)
    return Branches(convolution(inputs, one, 1), *convolved, nn.Sequential(*pooled))


class GoogLeNet(nn.Sequential):
    """Images (N, 3, H, W) to logits (N, classes).

    Without the auxiliary heads, 7,005,832 parameters: the original's 6,998,552, with
    a scale and a shift in place of each of its 7,280 convolution biases.
    """

    def __init__(self, classes: int = 1000) -> None:
        def halved() -> nn.Module:
            return nn.MaxPool2d(3, stride=2, ceil_mode=True)

        super().__init__(
            *(convolution(3, 64, 7, stride=2), halved()),
            *(convolution(64, 64, 1), convolution(64, 192, 3), halved()),
            *(halved() if isinstance(b, str) else inception(*b) for b in _BLOCKS),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4)),
            nn.Linear(1024, classes),
        )
