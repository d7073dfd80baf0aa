"""AlexNet, of one tower (Krizhevsky, One weird trick, 2014)."""

from __future__ import annotations

from typing import Any

from memplan.fusing.networks.weights import sequence, torch_layers

NAMES = ("alexnet",)


def network(_: str) -> Any:
    """Images (N, 3, 224, 224) to logits (N, 1000): 61,100,840 parameters."""
    nn = torch_layers()

    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[Any]:
        # The first one's padding is 2, which its stride of 4 has over to be even.
        padding = 2 if stride > 1 else kernel // 2
        found = nn.Conv2d(inputs, outputs, kernel, stride, padding)
        return [found, nn.ReLU(inplace=True)]

    def dense(inputs: int) -> list[Any]:
        return [nn.Dropout(), nn.Linear(inputs, 4096), nn.ReLU(inplace=True)]

    return sequence(
        features=nn.Sequential(
            *conv(3, 64, 11, 4),
            nn.MaxPool2d(3, 2),
            *conv(64, 192, 5),
            nn.MaxPool2d(3, 2),
            *conv(192, 384, 3),
            *conv(384, 256, 3),
            *conv(256, 256, 3),
            nn.MaxPool2d(3, 2),
        ),
        avgpool=nn.AdaptiveAvgPool2d((6, 6)),
        flatten=nn.Flatten(),
        classifier=nn.Sequential(
            *dense(256 * 6 * 6), *dense(4096), nn.Linear(4096, 1000)
        ),
    )
