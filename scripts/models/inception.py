"""Inception v3 (Szegedy et al., Rethinking the Inception Architecture, 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

# A convolution: channels in and out, kernel, stride, padding.
Conv = tuple[int, int, tuple[int, int], int, tuple[int, int]]
# A path through a block: names of convolutions, or a pooling; what is in brackets runs
# side by side on what comes before it.
Path = tuple[str | tuple[str, ...], ...]
AVERAGE, LARGEST = "average", "largest"


def _conv(
    inputs: int, outputs: int, height: int = 1, width: int = 0, stride: int = 1
) -> Conv:
    """Planes stay as large, or with a stride of 2 lose their borders, too."""
    kernel = (height, width or height)
    padding = (0, 0) if stride > 1 else (kernel[0] // 2, kernel[1] // 2)
    return inputs, outputs, kernel, stride, padding


class Convolution(nn.Sequential):
    """A convolution without bias, normalization and ReLU."""

    def __init__(self, conv: Conv) -> None:
        super().__init__()
        self.conv = nn.Conv2d(*conv, bias=False)
        self.bn = nn.BatchNorm2d(conv[1], eps=0.001)
        self.relu = nn.ReLU(inplace=True)


class Mixed(nn.Module):
    """Paths side by side, joined along the channels."""

    def __init__(self, convs: dict[str, Conv], *paths: Path) -> None:
        super().__init__()
        self.paths = paths
        for name, conv in convs.items():
            self.add_module(name, Convolution(conv))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self._along(path, x) for path in self.paths], 1)

    def _along(self, path: Path, x: Tensor) -> Tensor:
        for name in path:
            if isinstance(name, tuple):
                x = torch.cat([getattr(self, side)(x) for side in name], 1)
            elif name == AVERAGE:
                x = functional.avg_pool2d(x, 3, 1, 1)
            elif name == LARGEST:
                x = functional.max_pool2d(x, 3, 2)
            else:
                x = getattr(self, name)(x)
        return x


class Auxiliary(nn.Module):
    """The classifier that training adds after Mixed_6e; in inference the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0 = Convolution(_conv(768, 128))
        self.conv1 = Convolution((128, 768, (5, 5), 1, (0, 0)))
        self.fc = nn.Linear(768, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return x


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}_{number}" for number in range(1, count + 1))


def _block_a(inputs: int, pooled: int) -> Mixed:
    return Mixed(
        {
            "branch1x1": _conv(inputs, 64),
            "branch5x5_1": _conv(inputs, 48),
            "branch5x5_2": _conv(48, 64, 5),
            "branch3x3dbl_1": _conv(inputs, 64),
            "branch3x3dbl_2": _conv(64, 96, 3),
            "branch3x3dbl_3": _conv(96, 96, 3),
            "branch_pool": _conv(inputs, pooled),
        },
        ("branch1x1",),
        _numbered("branch5x5", 2),
        _numbered("branch3x3dbl", 3),
        (AVERAGE, "branch_pool"),
    )


def _block_b(inputs: int) -> Mixed:
    return Mixed(
        {
            "branch3x3": _conv(inputs, 384, 3, stride=2),
            "branch3x3dbl_1": _conv(inputs, 64),
            "branch3x3dbl_2": _conv(64, 96, 3),
            "branch3x3dbl_3": _conv(96, 96, 3, stride=2),
        },
        ("branch3x3",),
        _numbered("branch3x3dbl", 3),
        (LARGEST,),
    )


def _block_c(inputs: int, inner: int) -> Mixed:
    return Mixed(
        {
            "branch1x1": _conv(inputs, 192),
            "branch7x7_1": _conv(inputs, inner),
            "branch7x7_2": _conv(inner, inner, 1, 7),
            "branch7x7_3": _conv(inner, 192, 7, 1),
            "branch7x7dbl_1": _conv(inputs, inner),
            "branch7x7dbl_2": _conv(inner, inner, 7, 1),
            "branch7x7dbl_3": _conv(inner, inner, 1, 7),
            "branch7x7dbl_4": _conv(inner, inner, 7, 1),
            "branch7x7dbl_5": _conv(inner, 192, 1, 7),
            "branch_pool": _conv(inputs, 192),
        },
        ("branch1x1",),
        _numbered("branch7x7", 3),
        _numbered("branch7x7dbl", 5),
        (AVERAGE, "branch_pool"),
    )


def _block_d(inputs: int) -> Mixed:
    return Mixed(
        {
            "branch3x3_1": _conv(inputs, 192),
            "branch3x3_2": _conv(192, 320, 3, stride=2),
            "branch7x7x3_1": _conv(inputs, 192),
            "branch7x7x3_2": _conv(192, 192, 1, 7),
            "branch7x7x3_3": _conv(192, 192, 7, 1),
            "branch7x7x3_4": _conv(192, 192, 3, stride=2),
        },
        _numbered("branch3x3", 2),
        _numbered("branch7x7x3", 4),
        (LARGEST,),
    )


def _block_e(inputs: int) -> Mixed:
    wide, high = _conv(384, 384, 1, 3), _conv(384, 384, 3, 1)
    return Mixed(
        {
            "branch1x1": _conv(inputs, 320),
            "branch3x3_1": _conv(inputs, 384),
            "branch3x3_2a": wide,
            "branch3x3_2b": high,
            "branch3x3dbl_1": _conv(inputs, 448),
            "branch3x3dbl_2": _conv(448, 384, 3),
            "branch3x3dbl_3a": wide,
            "branch3x3dbl_3b": high,
            "branch_pool": _conv(inputs, 192),
        },
        ("branch1x1",),
        ("branch3x3_1", ("branch3x3_2a", "branch3x3_2b")),
        (*_numbered("branch3x3dbl", 2), ("branch3x3dbl_3a", "branch3x3dbl_3b")),
        (AVERAGE, "branch_pool"),
    )


class InceptionV3(nn.Sequential):
    """Images (N, 3, 299, 299) to logits (N, 1000): 27,161,264 parameters, with those of
    the auxiliary classifier. Keys of the state are torchvision's."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = Convolution(_conv(3, 32, 3, stride=2))
        self.Conv2d_2a_3x3 = Convolution((32, 32, (3, 3), 1, (0, 0)))
        self.Conv2d_2b_3x3 = Convolution(_conv(32, 64, 3))
        self.maxpool1 = nn.MaxPool2d(3, 2)
        self.Conv2d_3b_1x1 = Convolution(_conv(64, 80))
        self.Conv2d_4a_3x3 = Convolution((80, 192, (3, 3), 1, (0, 0)))
        self.maxpool2 = nn.MaxPool2d(3, 2)
        self.Mixed_5b = _block_a(192, 32)
        self.Mixed_5c = _block_a(256, 64)
        self.Mixed_5d = _block_a(288, 64)
        self.Mixed_6a = _block_b(288)
        self.Mixed_6b = _block_c(768, 128)
        self.Mixed_6c = _block_c(768, 160)
        self.Mixed_6d = _block_c(768, 160)
        self.Mixed_6e = _block_c(768, 192)
        self.AuxLogits = Auxiliary()
        self.Mixed_7a = _block_d(768)
        self.Mixed_7b = _block_e(1280)
        self.Mixed_7c = _block_e(2048)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout()
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(2048, 1000)
