"""Inception v3 (Szegedy et al., Rethinking the Inception Architecture, 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from memplan.fusing.networks.weights import sequence, torch_layers

NAMES = ("inception_v3",)
SIDE = 299  # pixels of an image


class Conv(NamedTuple):
    """A convolution without bias, normalisation and ReLU."""

    inputs: int
    outputs: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: tuple[int, int] = (0, 0)


# A path through a block: names of convolutions, or a pooling; what is in brackets runs
# side by side on what comes before it.
Path = tuple[str | tuple[str, ...], ...]
_AVERAGE, _LARGEST = "average", "largest"

_WIDE, _HIGH, _SMALL, _LARGE = (1, 7), (7, 1), (3, 3), (5, 5)


def network(_: str) -> Any:
    """Images (N, 3, 299, 299) to logits (N, 1000): 27,161,264 parameters, those of the
    auxiliary classifier among them, which only training calls."""
    nn = torch_layers()
    layers = {
        "Conv2d_1a_3x3": _conv(Conv(3, 32, _SMALL, 2)),
        "Conv2d_2a_3x3": _conv(Conv(32, 32, _SMALL)),
        "Conv2d_2b_3x3": _conv(Conv(32, 64, _SMALL, padding=(1, 1))),
        "maxpool1": nn.MaxPool2d(3, 2),
        "Conv2d_3b_1x1": _conv(Conv(64, 80)),
        "Conv2d_4a_3x3": _conv(Conv(80, 192, _SMALL)),
        "maxpool2": nn.MaxPool2d(3, 2),
        "Mixed_5b": _mixed(*_block_a(192, 32)),
        "Mixed_5c": _mixed(*_block_a(256, 64)),
        "Mixed_5d": _mixed(*_block_a(288, 64)),
        "Mixed_6a": _mixed(*_block_b(288)),
        "Mixed_6b": _mixed(*_block_c(768, 128)),
        "Mixed_6c": _mixed(*_block_c(768, 160)),
        "Mixed_6d": _mixed(*_block_c(768, 160)),
        "Mixed_6e": _mixed(*_block_c(768, 192)),
        "AuxLogits": _auxiliary(),
        "Mixed_7a": _mixed(*_block_d(768)),
        "Mixed_7b": _mixed(*_block_e(1280)),
        "Mixed_7c": _mixed(*_block_e(2048)),
        "avgpool": nn.AdaptiveAvgPool2d((1, 1)),
        "dropout": nn.Dropout(),
        "flatten": nn.Flatten(),
        "fc": nn.Linear(2048, 1000),
    }
    return sequence(**layers)


def _block_a(inputs: int, pooled: int) -> tuple[dict[str, Conv], list[Path]]:
    convs = {
        "branch1x1": Conv(inputs, 64),
        "branch5x5_1": Conv(inputs, 48),
        "branch5x5_2": Conv(48, 64, _LARGE, padding=(2, 2)),
        "branch3x3dbl_1": Conv(inputs, 64),
        "branch3x3dbl_2": Conv(64, 96, _SMALL, padding=(1, 1)),
        "branch3x3dbl_3": Conv(96, 96, _SMALL, padding=(1, 1)),
        "branch_pool": Conv(inputs, pooled),
    }
    return convs, [
        ("branch1x1",),
        ("branch5x5_1", "branch5x5_2"),
        ("branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3"),
        (_AVERAGE, "branch_pool"),
    ]


def _block_b(inputs: int) -> tuple[dict[str, Conv], list[Path]]:
    convs = {
        "branch3x3": Conv(inputs, 384, _SMALL, 2),
        "branch3x3dbl_1": Conv(inputs, 64),
        "branch3x3dbl_2": Conv(64, 96, _SMALL, padding=(1, 1)),
        "branch3x3dbl_3": Conv(96, 96, _SMALL, 2),
    }
    return convs, [
        ("branch3x3",),
        ("branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3"),
        (_LARGEST,),
    ]


def _wide(inputs: int, outputs: int) -> Conv:
    return Conv(inputs, outputs, _WIDE, padding=(0, 3))


def _high(inputs: int, outputs: int) -> Conv:
    return Conv(inputs, outputs, _HIGH, padding=(3, 0))


def _block_c(inputs: int, inner: int) -> tuple[dict[str, Conv], list[Path]]:
    convs = {
        "branch1x1": Conv(inputs, 192),
        "branch7x7_1": Conv(inputs, inner),
        "branch7x7_2": _wide(inner, inner),
        "branch7x7_3": _high(inner, 192),
        "branch7x7dbl_1": Conv(inputs, inner),
        "branch7x7dbl_2": _high(inner, inner),
        "branch7x7dbl_3": _wide(inner, inner),
        "branch7x7dbl_4": _high(inner, inner),
        "branch7x7dbl_5": _wide(inner, 192),
        "branch_pool": Conv(inputs, 192),
    }
    return convs, [
        ("branch1x1",),
        tuple(f"branch7x7_{i}" for i in range(1, 4)),
        tuple(f"branch7x7dbl_{i}" for i in range(1, 6)),
        (_AVERAGE, "branch_pool"),
    ]


def _block_d(inputs: int) -> tuple[dict[str, Conv], list[Path]]:
    convs = {
        "branch3x3_1": Conv(inputs, 192),
        "branch3x3_2": Conv(192, 320, _SMALL, 2),
        "branch7x7x3_1": Conv(inputs, 192),
        "branch7x7x3_2": _wide(192, 192),
        "branch7x7x3_3": _high(192, 192),
        "branch7x7x3_4": Conv(192, 192, _SMALL, 2),
    }
    return convs, [
        ("branch3x3_1", "branch3x3_2"),
        tuple(f"branch7x7x3_{i}" for i in range(1, 5)),
        (_LARGEST,),
    ]


def _block_e(inputs: int) -> tuple[dict[str, Conv], list[Path]]:
    wide, high = Conv(384, 384, (1, 3), 1, (0, 1)), Conv(384, 384, (3, 1), 1, (1, 0))
    convs = {
        "branch1x1": Conv(inputs, 320),
        "branch3x3_1": Conv(inputs, 384),
        "branch3x3_2a": wide,
        "branch3x3_2b": high,
        "branch3x3dbl_1": Conv(inputs, 448),
        "branch3x3dbl_2": Conv(448, 384, _SMALL, padding=(1, 1)),
        "branch3x3dbl_3a": wide,
        "branch3x3dbl_3b": high,
        "branch_pool": Conv(inputs, 192),
    }
    return convs, [
        ("branch1x1",),
        ("branch3x3_1", ("branch3x3_2a", "branch3x3_2b")),
        (
            "branch3x3dbl_1",
            "branch3x3dbl_2",
            ("branch3x3dbl_3a", "branch3x3dbl_3b"),
        ),
        (_AVERAGE, "branch_pool"),
    ]


def _conv(shape: Conv) -> Any:
    nn = torch_layers()
    return sequence(
        conv=nn.Conv2d(
            shape.inputs,
            shape.outputs,
            shape.kernel,
            shape.stride,
            shape.padding,
            bias=False,
        ),
        bn=nn.BatchNorm2d(shape.outputs, eps=0.001),
        relu=nn.ReLU(inplace=True),
    )


def _mixed(convs: Mapping[str, Conv], paths: list[Path]) -> Any:
    """Paths side by side, joined along the channels."""
    import torch
    from torch.nn import functional

    nn = torch_layers()

    class Mixed(nn.Module):  # type: ignore[misc, name-defined]
        """(N, C, H, W) to (N, C', H', W'), as `paths` say."""

        def __init__(self) -> None:
            super().__init__()
            for name, shape in convs.items():
                self.add_module(name, _conv(shape))

        def forward(self, x: Any) -> Any:
            return torch.cat([self.along(path, x) for path in paths], 1)

        def along(self, path: Path, x: Any) -> Any:
            for name in path:
                if isinstance(name, tuple):
                    x = torch.cat([getattr(self, side)(x) for side in name], 1)
                elif name == _AVERAGE:
                    x = functional.avg_pool2d(x, 3, 1, 1)
                elif name == _LARGEST:
                    x = functional.max_pool2d(x, 3, 2)
                else:
                    x = getattr(self, name)(x)
            return x

    return Mixed()


def _auxiliary() -> Any:
    """The classifier that training adds after Mixed_6e; evaluation passes it by."""
    nn = torch_layers()

    class Auxiliary(nn.Module):  # type: ignore[misc, name-defined]
        """The identity, with weights of its own."""

        def __init__(self) -> None:
            super().__init__()
            self.conv0 = _conv(Conv(768, 128))
            self.conv1 = _conv(Conv(128, 768, _LARGE))
            self.fc = nn.Linear(768, 1000)

        def forward(self, x: Any) -> Any:
            return x

    return Auxiliary()
