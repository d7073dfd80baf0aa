"""Inception-ResNet-v2 (Szegedy, Ioffe, Vanhoucke and Alemi, Inception-v4,
Inception-ResNet and the Impact of Residual Connections on Learning, 2016).

The stem is the one of the authors' own code, which is smaller than figure 3's; the
blocks are those of figures 16 to 19, and each adds a scaled residual (section 3.3).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Convolution(nn.Sequential):
    """Convolution without bias, batch normalization, ReLU.

    The image keeps its size, or, with `valid`, loses the border (and half at stride 2).
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int | tuple[int, int],
        *,
        stride: int = 1,
        valid: bool = False,
    ) -> None:
        height, width = (size, size) if isinstance(size, int) else size
        padding = (0, 0) if valid else (height // 2, width // 2)
        super().__init__(
            nn.Conv2d(inputs, outputs, (height, width), stride, padding, bias=False),
            nn.BatchNorm2d(outputs, eps=1e-3),
            nn.ReLU(inplace=True),
        )


class Branches(nn.Module):
    """Branches side by side over one input, joined along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Residual(nn.Module):
    """x + scale * linear(branches(x)), then a ReLU unless it is the last block."""

    def __init__(
        self,
        branches: Branches,
        joined: int,
        channels: int,
        scale: float,
        last: bool = False,
    ) -> None:
        super().__init__()
        self.residual = nn.Sequential(branches, nn.Conv2d(joined, channels, 1))
        self.scale = scale
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        total = torch.add(x, self.residual(x), alpha=self.scale)
        return total if self.last else torch.relu_(total)


def _stem() -> nn.Sequential:
    """(N, 3, 299, 299) to (N, 320, 35, 35)."""
    mixed = Branches(
        Convolution(192, 96, 1),
        nn.Sequential(Convolution(192, 48, 1), Convolution(48, 64, 5)),
        nn.Sequential(
            Convolution(192, 64, 1), Convolution(64, 96, 3), Convolution(96, 96, 3)
        ),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), Convolution(192, 64, 1)),
    )
    return nn.Sequential(
        Convolution(3, 32, 3, stride=2, valid=True),
        Convolution(32, 32, 3, valid=True),
        Convolution(32, 64, 3),
        nn.MaxPool2d(3, 2),
        Convolution(64, 80, 1),
        Convolution(80, 192, 3, valid=True),
        nn.MaxPool2d(3, 2),
        mixed,
    )


def _block_a() -> Residual:
    """Figure 16, 35 x 35."""
    branches = Branches(
        Convolution(320, 32, 1),
        nn.Sequential(Convolution(320, 32, 1), Convolution(32, 32, 3)),
        nn.Sequential(
            Convolution(320, 32, 1), Convolution(32, 48, 3), Convolution(48, 64, 3)
        ),
    )
    return Residual(branches, 128, 320, 0.17)


def _reduction_a() -> Branches:
    """Figure 7, 35 x 35 to 17 x 17: 320 to 1,088 channels."""
    return Branches(
        nn.MaxPool2d(3, 2),
        Convolution(320, 384, 3, stride=2, valid=True),
        nn.Sequential(
            Convolution(320, 256, 1),
            Convolution(256, 256, 3),
            Convolution(256, 384, 3, stride=2, valid=True),
        ),
    )


def _block_b() -> Residual:
    """Figure 17, 17 x 17."""
    branches = Branches(
        Convolution(1088, 192, 1),
        nn.Sequential(
            Convolution(1088, 128, 1),
            Convolution(128, 160, (1, 7)),
            Convolution(160, 192, (7, 1)),
        ),
    )
    return Residual(branches, 384, 1088, 0.1)


def _reduction_b() -> Branches:
    """Figure 18, 17 x 17 to 8 x 8: 1,088 to 2,080 channels."""
    return Branches(
        nn.MaxPool2d(3, 2),
        nn.Sequential(
            Convolution(1088, 256, 1), Convolution(256, 384, 3, stride=2, valid=True)
        ),
        nn.Sequential(
            Convolution(1088, 256, 1), Convolution(256, 288, 3, stride=2, valid=True)
        ),
        nn.Sequential(
            Convolution(1088, 256, 1),
            Convolution(256, 288, 3),
            Convolution(288, 320, 3, stride=2, valid=True),
        ),
    )


def _block_c(last: bool) -> Residual:
    """Figure 19, 8 x 8."""
    branches = Branches(
        Convolution(2080, 192, 1),
        nn.Sequential(
            Convolution(2080, 192, 1),
            Convolution(192, 224, (1, 3)),
            Convolution(224, 256, (3, 1)),
        ),
    )
    return Residual(branches, 448, 2080, 1.0 if last else 0.2, last)


class InceptionResNet(nn.Module):
    """Images (N, 3, H, W), 75 pixels a side or more, to logits (N, classes).

    55,843,464 parameters for 1,000 classes.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            _stem(),
            *(_block_a() for _ in range(10)),
            _reduction_a(),
            *(_block_b() for _ in range(20)),
            _reduction_b(),
            *(_block_c(last=number == 9) for number in range(10)),
            Convolution(2080, 1536, 1),
        )
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(1536, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(x).mean(dim=(2, 3))
        return self.classifier(self.dropout(x))
