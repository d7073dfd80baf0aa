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
# The auxiliary heads read the input of the blocks at these places: 4b and 4e.
_AUXILIARY = {4: 512, 7: 528}


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """Convolution, batch normalization, ReLU; the image keeps its size / stride."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class Inception(nn.Module):
    """Four branches side by side, joined along the channels."""

    def __init__(
        self,
        inputs: int,
        one: int,
        three_reduce: int,
        three: int,
        five_reduce: int,
        five: int,
        pool: int,
    ) -> None:
        super().__init__()
        self.one = convolution(inputs, one, 1)
        self.three = nn.Sequential(
            convolution(inputs, three_reduce, 1), convolution(three_reduce, three, 3)
        )
        self.five = nn.Sequential(
            convolution(inputs, five_reduce, 1), convolution(five_reduce, five, 5)
        )
        self.pool = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1), convolution(inputs, pool, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


class AuxiliaryHead(nn.Module):
    """A small classifier on a middle layer (section 5); used in training only."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(4),
            convolution(inputs, 128, 1),
            nn.Flatten(),
            nn.Linear(128 * 16, 1024),
            nn.ReLU(inplace=True),
            nn.Dropout(0.7),
            nn.Linear(1024, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x)
        return logits


class GoogLeNet(nn.Module):
    """Images (N, 3, H, W) to logits (N, classes), those of each head in a list.

    The main head's come first; with `auxiliary`, and in training, the two auxiliary
    heads' follow. Without them 7,005,832 parameters: the original's 6,998,552, with
    a scale and a shift in place of each of its 7,280 convolution biases.
    """

    def __init__(self, classes: int = 1000, auxiliary: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            convolution(3, 64, 7, stride=2),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            convolution(64, 64, 1),
            convolution(64, 192, 3),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
        )
        self.blocks = nn.ModuleList(
            nn.MaxPool2d(3, stride=2, ceil_mode=True)
            if isinstance(block, str)
            else Inception(*block)
            for block in _BLOCKS
        )
        self.auxiliary = nn.ModuleDict(
            {
                str(place): AuxiliaryHead(inputs, classes)
                for place, inputs in _AUXILIARY.items()
                if auxiliary
            }
        )
        self.dropout = nn.Dropout(0.4)
        self.classifier = nn.Linear(1024, classes)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        heads = []
        for place, block in enumerate(self.blocks):
            if self.training and str(place) in self.auxiliary:
                heads.append(self.auxiliary[str(place)](x))
            x = block(x)
        features = self.dropout(x.mean(dim=(2, 3)))
        return [self.classifier(features), *heads]
