"""Inception v3 (Szegedy et al., Rethinking the Inception Architecture, 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

AVERAGE, LARGEST = "average", "largest"
# A convolution: outputs of a 1x1; or outputs, height, width and stride.
Conv = int | tuple[int, int, int, int]
# One step along a branch: a pooling, a convolution, or two side by side.
Step = str | Conv | list[Conv]


class Convolution(nn.Sequential):
    """A convolution without bias, normalization and ReLU.

    Planes stay as large, or with a stride of 2 (or `padded` False) lose their borders.
    """

    def __init__(self, inputs: int, conv: Conv, padded: bool = True) -> None:
        super().__init__()
        outputs, high, wide, stride = (conv, 1, 1, 1) if isinstance(conv, int) else conv
        padding = (high // 2, wide // 2) if padded and stride == 1 else 0
        self.conv = nn.Conv2d(
            inputs, outputs, (high, wide), stride, padding, bias=False
        )
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)
        self.relu = nn.ReLU(inplace=True)


class Mixed(nn.Module):
    """Branches side by side, joined along the channels.

    Convolutions are numbered within a branch that has several, with a letter for each
    of two side by side.
    """

    def __init__(self, inputs: int, **branches: list[Step]) -> None:
        super().__init__()
        self.paths: list[list[list[str]]] = []
        for branch, steps in branches.items():
            path: list[list[str]] = []
            count = sum(not isinstance(step, str) for step in steps)
            channels, number = inputs, 0
            for step in steps:
                if isinstance(step, str):
                    path.append([step])
                    continue
                number += 1
                name = f"{branch}_{number}" if count > 1 else branch
                convs = step if isinstance(step, list) else [step]
                letters = "ab" if isinstance(step, list) else [""]
                path.append([name + letter for letter in letters])
                made = [Convolution(channels, conv) for conv in convs]
                for each, module in zip(path[-1], made, strict=True):
                    self.add_module(each, module)
                channels = sum(module.conv.out_channels for module in made)
            self.paths.append(path)
        self.add_module(AVERAGE, nn.AvgPool2d(3, 1, 1))
        self.add_module(LARGEST, nn.MaxPool2d(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self._along(path, x) for path in self.paths], 1)

    def _along(self, path: list[list[str]], x: Tensor) -> Tensor:
        for names in path:
            found = [getattr(self, name)(x) for name in names]
            x = found[0] if len(found) == 1 else torch.cat(found, 1)
        return x


class Auxiliary(nn.Module):
    """The classifier that training adds after Mixed_6e; in inference the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0 = Convolution(768, 128)
        self.conv1 = Convolution(128, (768, 5, 5, 1), padded=False)
        self.fc = nn.Linear(768, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return x


def _block_a(inputs: int, pooled: int) -> Mixed:
    return Mixed(
        inputs,
        branch1x1=[64],
        branch5x5=[48, (64, 5, 5, 1)],
        branch3x3dbl=[64, (96, 3, 3, 1), (96, 3, 3, 1)],
        branch_pool=[AVERAGE, pooled],
    )


def _block_c(inner: int) -> Mixed:
    wide, high = (inner, 1, 7, 1), (inner, 7, 1, 1)
    return Mixed(
        768,
        branch1x1=[192],
        branch7x7=[inner, wide, (192, 7, 1, 1)],
        branch7x7dbl=[inner, high, wide, high, (192, 1, 7, 1)],
        branch_pool=[AVERAGE, 192],
    )


def _block_e(inputs: int) -> Mixed:
    both: list[Conv] = [(384, 1, 3, 1), (384, 3, 1, 1)]
    return Mixed(
        inputs,
        branch1x1=[320],
        branch3x3=[384, both],
        branch3x3dbl=[448, (384, 3, 3, 1), both],
        branch_pool=[AVERAGE, 192],
    )


class InceptionV3(nn.Sequential):
    """Images (N, 3, 299, 299) to logits (N, 1000): 27,161,264 parameters, with those of
    the auxiliary classifier. Keys of the state are torchvision's."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = Convolution(3, (32, 3, 3, 2))
        self.Conv2d_2a_3x3 = Convolution(32, (32, 3, 3, 1), padded=False)
        self.Conv2d_2b_3x3 = Convolution(32, (64, 3, 3, 1))
        self.maxpool1 = nn.MaxPool2d(3, 2)
        self.Conv2d_3b_1x1 = Convolution(64, 80)
        self.Conv2d_4a_3x3 = Convolution(80, (192, 3, 3, 1), padded=False)
        self.maxpool2 = nn.MaxPool2d(3, 2)
        for letter, inputs, pooled in (("b", 192, 32), ("c", 256, 64), ("d", 288, 64)):
            self.add_module(f"Mixed_5{letter}", _block_a(inputs, pooled))
        self.Mixed_6a = Mixed(
            288,
            branch3x3=[(384, 3, 3, 2)],
            branch3x3dbl=[64, (96, 3, 3, 1), (96, 3, 3, 2)],
            branch_pool=[LARGEST],
        )
        for letter, inner in zip("bcde", (128, 160, 160, 192), strict=True):
            self.add_module(f"Mixed_6{letter}", _block_c(inner))
        self.AuxLogits = Auxiliary()
        self.Mixed_7a = Mixed(
            768,
            branch3x3=[192, (320, 3, 3, 2)],
            branch7x7x3=[192, (192, 1, 7, 1), (192, 7, 1, 1), (192, 3, 3, 2)],
            branch_pool=[LARGEST],
        )
        self.Mixed_7b = _block_e(1280)
        self.Mixed_7c = _block_e(2048)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout()
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(2048, 1000)
