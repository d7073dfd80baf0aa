"""DenseNet with bottlenecks and compression (Huang et al., 2017)."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

# Layers of each block, the channels that each adds, and those of the first convolution.
_NETWORKS = {
    "densenet121": ((6, 12, 24, 16), 32, 64),
    "densenet161": ((6, 12, 36, 24), 48, 96),
    "densenet169": ((6, 12, 32, 32), 32, 64),
    "densenet201": ((6, 12, 48, 32), 32, 64),
}
NAMES = tuple(_NETWORKS)


def _layer(channels: int, growth: int) -> nn.Sequential:
    layers: dict[str, nn.Module] = {
        "norm1": nn.BatchNorm2d(channels),
        "relu1": nn.ReLU(inplace=True),
        "conv1": nn.Conv2d(channels, 4 * growth, 1, bias=False),
        "norm2": nn.BatchNorm2d(4 * growth),
        "relu2": nn.ReLU(inplace=True),
        "conv2": nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
    }
    return nn.Sequential(OrderedDict(layers))


class Dense(nn.Module):
    """Every layer takes the block's input and what all layers before it computed:
    (N, inputs, H, W) to (N, inputs + count * growth, H, W)."""

    def __init__(self, inputs: int, growth: int, count: int) -> None:
        super().__init__()
        for index in range(count):
            layer = _layer(inputs + index * growth, growth)
            self.add_module(f"denselayer{index + 1}", layer)

    def forward(self, x: Tensor) -> Tensor:
        pieces = [x]
        for layer in self.children():
            pieces.append(layer(x))
            x = torch.cat(pieces, 1)
        return x


class DenseNet(nn.Sequential):
    """Images (N, 3, 224, 224) to logits (N, 1000); 121 has 7,978,856 parameters.

    name: one of NAMES. Keys of the state are torchvision's.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        blocks, growth, channels = _NETWORKS[name]
        features: dict[str, nn.Module] = {
            "conv0": nn.Conv2d(3, channels, 7, 2, 3, bias=False),
            "norm0": nn.BatchNorm2d(channels),
            "relu0": nn.ReLU(inplace=True),
            "pool0": nn.MaxPool2d(3, 2, 1),
        }
        for number, count in enumerate(blocks, 1):
            features[f"denseblock{number}"] = Dense(channels, growth, count)
            channels += count * growth
            if number < len(blocks):
                transition: dict[str, nn.Module] = {
                    "norm": nn.BatchNorm2d(channels),
                    "relu": nn.ReLU(inplace=True),
                    "conv": nn.Conv2d(channels, channels // 2, 1, bias=False),
                    "pool": nn.AvgPool2d(2, 2),
                }
                features[f"transition{number}"] = nn.Sequential(OrderedDict(transition))
                channels //= 2
        features["norm5"] = nn.BatchNorm2d(channels)
        self.features = nn.Sequential(OrderedDict(features))
        self.relu = nn.ReLU(inplace=True)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(channels, 1000)
