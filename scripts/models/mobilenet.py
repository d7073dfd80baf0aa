"""MobileNetV3-Large (Howard et al., Searching for MobileNetV3, 2019, Table 1)."""

from __future__ import annotations

from torch import Tensor, nn

# Window, expanded channels, outputs, squeeze and excite, hard swish, stride.
ROWS = (
    *((3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2)),
    *((3, 72, 24, False, False, 1), (5, 72, 40, True, False, 2)),
    *((5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1)),
    *((3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1)),
    *((3, 184, 80, False, True, 1), (3, 184, 80, False, True, 1)),
    *((3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1)),
    *((5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1)),
    (5, 960, 160, True, True, 1),
)


class Excitation(nn.Sequential):
    """Scales each channel by what all channels' means say: (N, C, H, W) as it was."""

    def __init__(self, channels: int) -> None:
        inner = (channels // 4 + 4) // 8 * 8  # the nearest multiple of 8,
        inner += 8 * (10 * inner < 9 * (channels // 4))  # but not less than nine tenths
        super().__init__(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, inner, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, channels, 1),
            nn.Hardsigmoid(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * super().forward(x)


def convolution(
    inputs: int, outputs: int, window: int, stride: int, groups: int, swish: bool
) -> list[nn.Module]:
    """A convolution, its normalization and activation."""
    own = nn.Conv2d(
        inputs, outputs, window, stride, window // 2, groups=groups, bias=False
    )
    active = nn.Hardswish(inplace=True) if swish else nn.ReLU(inplace=True)
    return [own, nn.BatchNorm2d(outputs, eps=0.001), active]


class Bottleneck(nn.Module):
    """1x1 up, depthwise, 1x1 down; added to its input where both are alike."""

    def __init__(self, inputs: int, row: tuple[int, int, int, bool, bool, int]) -> None:
        super().__init__()
        window, inner, outputs, excite, swish, stride = row
        parts: list[nn.Module] = []
        if inner != inputs:
            parts += convolution(inputs, inner, 1, 1, 1, swish)
        parts += convolution(inner, inner, window, stride, inner, swish)
        if excite:
            parts.append(Excitation(inner))
        parts += [nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.residual = nn.Sequential(*parts)
        self.added = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.residual(x) if self.added else self.residual(x)


class MobileNetV3(nn.Sequential):
    """Images (N, 3, H, W) to logits (N, classes); 5,483,032 parameters."""

    def __init__(self, classes: int = 1000) -> None:
        layers = convolution(3, 16, 3, 2, 1, True)
        channels = 16
        for row in ROWS:
            layers.append(Bottleneck(channels, row))
            channels = row[2]
        layers += convolution(channels, 960, 1, 1, 1, True)
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1280)]
        layers += [nn.Hardswish(), nn.Dropout(0.2), nn.Linear(1280, classes)]
        super().__init__(*layers)
