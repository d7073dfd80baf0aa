"""A U-Net: convolutions down to a narrow middle and up again, joined by skips.

After Ronneberger, Fischer and Brox, "U-Net: Convolutional Networks for Biomedical Image
Segmentation" (2015), with padding and batch norms.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Double(nn.Sequential):
    """Two convolutions with batch norms."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """Images (N, 3, H, W) to logits (N, classes, H, W); H and W are multiples of
    2 ** depth."""

    def __init__(self, classes: int = 2, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            Double(inputs, outputs)
            for inputs, outputs in zip([3, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * each, each, 2, stride=2) for each in widths[-2::-1]
        )
        self.join = nn.ModuleList(Double(2 * each, each) for each in widths[-2::-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else nn.functional.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)


def factory() -> tuple[nn.Module, tuple[Tensor]]:
    """A narrow U-Net, and an image for `memplan compile`."""
    return UNet(width=16).eval(), (torch.randn(1, 3, 256, 256),)
