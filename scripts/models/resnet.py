"""ResNet with bottleneck blocks (He et al., Deep Residual Learning, 2015).

The variant known as v1.5: where a block halves the image, the stride sits on the
3x3 convolution rather than on the first 1x1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

RESNET50 = (3, 4, 6, 3)
EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up, around a shortcut: (N, inputs, H, W) to
    (N, 4 * width, H / stride, W / stride)."""

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.residual(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Images (N, 3, H, W) to logits (N, classes), in four stages of bottlenecks.

    `layers` counts the blocks of each stage; `width` is the first stage's, and
    doubles with each stage. The defaults are ResNet-50: 25,557,032 parameters.
    """

    def __init__(
        self,
        layers: Sequence[int] = RESNET50,
        width: int = 64,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        channels = width
        for stage, depth in enumerate(layers):
            inner = width << stage
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Bottleneck(channels, inner, stride))
                channels = inner * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        return self.classifier(x.mean(dim=(2, 3)))
