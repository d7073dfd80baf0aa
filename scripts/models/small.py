"""Models whose calls take less than a millisecond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from models.published import Built


class Classifier(nn.Module):
    """Six convolutions, and the mean of the last one's channels."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(3, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1)]
        layers: list[nn.Module] = []
        for before, after, stride in [*widths, (32, 64, 2), (64, 64, 1)]:
            layers.append(nn.Conv2d(before, after, 3, stride, 1, bias=False))
            layers += [nn.BatchNorm2d(after), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        """x: (N, 3, 32, 32). Returns (N, 10)."""
        return self.head(self.body(x).mean((2, 3)))


def perceptron() -> Built:
    """Ten layers of 64 x 64."""
    layers = [nn.Linear(64, 64) for _ in range(10)]
    return nn.Sequential(*layers).eval(), (torch.randn(1, 64),)


def encoder() -> Built:
    """Two layers of a transformer, 64 wide, over 16 tokens."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu")
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return model.eval(), (torch.randn(1, 16, 64),)


def classifier() -> Built:
    """A network for images of 32 x 32."""
    return Classifier().eval(), (torch.randn(1, 3, 32, 32),)


BUILDERS: dict[str, Callable[[], Built]] = {
    "perceptron, 10 x 64": perceptron,
    "encoder, 2 x 64": encoder,
    "classifier, 32 x 32": classifier,
}
