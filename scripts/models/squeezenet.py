"""SqueezeNet 1.0 and 1.1 (Iandola et al., 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Channels and kernel of the first convolution; between poolings the fire modules:
# channels squeezed to, and expanded to by each kernel.
_NETWORKS = {
    "squeezenet1_0": (
        (96, 7),
        (
            ((16, 64), (16, 64), (32, 128)),
            ((32, 128), (48, 192), (48, 192), (64, 256)),
            ((64, 256),),
        ),
    ),
    "squeezenet1_1": (
        (64, 3),
        (
            ((16, 64), (16, 64)),
            ((32, 128), (32, 128)),
            ((48, 192), (48, 192), (64, 256), (64, 256)),
        ),
    ),
}
NAMES = tuple(_NETWORKS)


class Fire(nn.Module):
    """1x1 down, then 1x1 and 3x3 up, side by side: (N, inputs, H, W) to
    (N, 2 * expanded, H, W)."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.squeeze_activation = nn.ReLU(inplace=True)
        self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand1x1_activation = nn.ReLU(inplace=True)
        self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)
        self.expand3x3_activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze_activation(self.squeeze(x))
        small = self.expand1x1_activation(self.expand1x1(x))
        return torch.cat([small, self.expand3x3_activation(self.expand3x3(x))], 1)


class SqueezeNet(nn.Sequential):
    """Images (N, 3, 224, 224) to logits (N, 1000); 1.1 has 1,235,496 parameters.

    name: one of NAMES. Keys of the state are torchvision's.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        (inputs, kernel), stages = _NETWORKS[name]
        features = [nn.Conv2d(3, inputs, kernel, 2), nn.ReLU(inplace=True)]
        for stage in stages:
            features.append(nn.MaxPool2d(3, 2, ceil_mode=True))
            for squeezed, expanded in stage:
                features.append(Fire(inputs, squeezed, expanded))
                inputs = 2 * expanded
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Conv2d(inputs, 1000, 1),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
        )
        self.flatten = nn.Flatten()
