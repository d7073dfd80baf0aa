"""ResNet (He et al., Deep Residual Learning, 2015).

Bottlenecks are those of v1.5: where a block halves the image, the stride sits on the
3x3 convolution rather than on the first 1x1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

RESNET50 = (3, 4, 6, 3)
# Blocks of each stage, and whether they are bottlenecks, four times as wide outside.
NETWORKS: dict[str, tuple[tuple[int, ...], bool]] = {
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": (RESNET50, True),
    "resnet101": ((3, 4, 23, 3), True),
    "resnet152": ((3, 8, 36, 3), True),
}
EXPANSION = 4


class Block(nn.Module):
    """Convolutions around a shortcut: (N, inputs, H, W) to
    (N, outputs, H / stride, W / stride).

    3x3 and 3x3; or, where `outputs` is more than `width`, 1x1, 3x3 and 1x1.
    """

    def __init__(self, inputs: int, width: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        kernels = (1, 3, 1) if outputs > width else (3, 3)
        strided, last = kernels.index(3), len(kernels) - 1
        layers: list[nn.Module] = []
        channels = inputs
        for index, kernel in enumerate(kernels):
            out = outputs if index == last else width
            step = stride if index == strided else 1
            layers += [
                nn.Conv2d(channels, out, kernel, step, kernel // 2, bias=False),
                nn.BatchNorm2d(out),
                nn.ReLU(inplace=True),
            ]
            channels = out
        self.residual = nn.Sequential(*layers[:-1])
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.residual(x) + self.shortcut(x))


class ResNet(nn.Sequential):
    """Images (N, 3, H, W) to logits (N, classes), in four stages of blocks.

    `layers` counts the blocks of each stage; `width` is the first stage's, and
    doubles with each stage. The defaults are ResNet-50: 25,557,032 parameters.
    """

    def __init__(
        self,
        layers: Sequence[int] = RESNET50,
        width: int = 64,
        classes: int = 1000,
        bottlenecks: bool = True,
    ) -> None:
        stem = [
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
        stages: list[nn.Module] = []
        channels = width
        for stage, depth in enumerate(layers):
            inner = width << stage
            outer = inner * EXPANSION if bottlenecks else inner
            blocks = []
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Block(channels, inner, outer, stride))
                channels = outer
            stages.append(nn.Sequential(*blocks))
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
        super().__init__(*stem, *stages, *head)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
