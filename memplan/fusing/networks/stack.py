"""The paper's Figure 10: blocks that are nothing but memory traffic."""

from __future__ import annotations

from typing import Any

from memplan.fusing.networks.weights import torch_layers

SHAPE = (64, 56, 56)  # channels, height, width
BATCH = 16


def network(blocks: int) -> Any:
    """(N, 64, 56, 56) to the same, through `blocks` of <MaxPool 3x3, BN, ReLU>."""
    nn = torch_layers()
    layers: list[Any] = []
    for _ in range(blocks):
        layers += [nn.MaxPool2d(3, 1, 1), nn.BatchNorm2d(SHAPE[0]), nn.ReLU()]
    return nn.Sequential(*layers)
