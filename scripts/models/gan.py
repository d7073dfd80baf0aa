"""A generator and a discriminator of images (Radford et al., Unsupervised
Representation Learning with Deep Convolutional Generative Adversarial Networks, 2016).
"""

from __future__ import annotations

from torch import nn


def generator(noise: int, width: int) -> nn.Sequential:
    """Noise (N, noise, 1, 1) to images (N, 3, 64, 64)."""
    layers: list[nn.Module] = [nn.ConvTranspose2d(noise, 8 * width, 4, bias=False)]
    for each in (8 * width, 4 * width, 2 * width):
        layers += [nn.BatchNorm2d(each), nn.ReLU(inplace=True)]
        layers.append(nn.ConvTranspose2d(each, each // 2, 4, 2, 1, bias=False))
    layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())


def discriminator(width: int) -> nn.Sequential:
    """Images (N, 3, 64, 64) to logits (N, 1), positive for real ones."""
    layers = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True)]
    for each in (width, 2 * width, 4 * width):
        layers.append(nn.Conv2d(each, 2 * each, 4, 2, 1, bias=False))
        layers += [nn.BatchNorm2d(2 * each), nn.LeakyReLU(0.2, inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4), nn.Flatten())
