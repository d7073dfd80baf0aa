"""A generator and a discriminator of images (Radford et al., Unsupervised
Representation Learning with Deep Convolutional Generative Adversarial Networks, 2016).
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def generator(noise: int, width: int) -> nn.Sequential:
    """Noise (N, noise, 1, 1) to images (N, 3, 64, 64)."""

    def layers() -> Iterator[nn.Module]:
        yield nn.ConvTranspose2d(noise, 8 * width, 4, bias=False)
        for wider in (8, 4, 2):
            yield nn.BatchNorm2d(wider * width)
            yield nn.ReLU(inplace=True)
            yield nn.ConvTranspose2d(
                wider * width, wider * width // 2, 4, 2, 1, bias=False
            )
        yield nn.BatchNorm2d(width)
        yield nn.ReLU(inplace=True)
        yield nn.ConvTranspose2d(width, 3, 4, 2, 1)
        yield nn.Tanh()

    return nn.Sequential(*layers())


def discriminator(width: int) -> nn.Sequential:
    """Images (N, 3, 64, 64) to logits (N, 1), positive for real ones."""

    def layers() -> Iterator[nn.Module]:
        yield nn.Conv2d(3, width, 4, 2, 1)
        yield nn.LeakyReLU(0.2, inplace=True)
        for narrower in (1, 2, 4):
            yield nn.Conv2d(narrower * width, 2 * narrower * width, 4, 2, 1, bias=False)
            yield nn.BatchNorm2d(2 * narrower * width)
            yield nn.LeakyReLU(0.2, inplace=True)
        yield nn.Conv2d(8 * width, 1, 4)
        yield nn.Flatten()

    return nn.Sequential(*layers())
