"""AlexNet (Krizhevsky, Sutskever and Hinton, ImageNet Classification with Deep
Convolutional Neural Networks, 2012), both halves on one device."""

from __future__ import annotations

from torch import Tensor, nn


def _normalization() -> nn.Module:
    """Local response normalization with the constants of section 3.3."""
    return nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0)


class AlexNet(nn.Module):
    """Images (N, 3, H, W) to logits (N, classes); H and W are 227 in the paper.

    With other sizes the last pooling is adapted to the 6 x 6 that the first fully
    connected layer expects. 60,965,224 parameters for 1,000 classes.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 96, 11, stride=4),
            nn.ReLU(inplace=True),
            _normalization(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(96, 256, 5, padding=2, groups=2),
            nn.ReLU(inplace=True),
            _normalization(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(256, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 384, 3, padding=1, groups=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1, groups=2),
            nn.ReLU(inplace=True),
            nn.AdaptiveMaxPool2d(6),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


class OneTower(nn.Sequential):
    """AlexNet of one tower (Krizhevsky, One weird trick, 2014), which has no
    normalization: images (N, 3, 224, 224) to logits (N, 1000), 61,100,840 parameters.
    """

    def __init__(self) -> None:
        super().__init__()

        def convolution(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
            layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
            return [layer, nn.ReLU(inplace=True)]

        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            *convolution(64, 192, 5),
            nn.MaxPool2d(3, stride=2),
            *convolution(192, 384, 3),
            *convolution(384, 256, 3),
            *convolution(256, 256, 3),
            nn.MaxPool2d(3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, 1000),
        )
