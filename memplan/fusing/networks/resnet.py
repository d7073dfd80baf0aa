"""ResNet (He et al., Deep Residual Learning, 2015).

Bottlenecks as in v1.5: the stride sits on the 3x3 convolution, not on the first 1x1.
"""

from __future__ import annotations

from typing import Any

from memplan.fusing.networks.weights import sequence, torch_layers

# Blocks of each stage, and whether they are bottlenecks, four times as wide outside.
_STAGES = {
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
    "resnet101": ((3, 4, 23, 3), True),
    "resnet152": ((3, 8, 36, 3), True),
}
_WIDTHS = (64, 128, 256, 512)

NAMES = tuple(_STAGES)


def network(name: str) -> Any:
    """Images (N, 3, 224, 224) to logits (N, 1000); resnet50: 25,557,032 parameters."""
    nn = torch_layers()
    blocks, bottleneck = _STAGES[name]
    inputs = 64
    stages = {}
    for number, (count, width) in enumerate(zip(blocks, _WIDTHS, strict=True), 1):
        outputs = 4 * width if bottleneck else width
        stage = []
        for index in range(count):
            stride = 2 if index == 0 and number > 1 else 1
            stage.append(_block(inputs, width, outputs, stride))
            inputs = outputs
        stages[f"layer{number}"] = nn.Sequential(*stage)
    return sequence(
        conv1=nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        bn1=nn.BatchNorm2d(64),
        relu=nn.ReLU(inplace=True),
        maxpool=nn.MaxPool2d(3, 2, 1),
        **stages,
        avgpool=nn.AdaptiveAvgPool2d((1, 1)),
        flatten=nn.Flatten(),
        fc=nn.Linear(inputs, 1000),
    )


def _block(inputs: int, width: int, outputs: int, stride: int) -> Any:
    """Around a shortcut: 3x3, 3x3; or where `outputs` is more, 1x1, 3x3, 1x1."""
    nn = torch_layers()
    kernels = (1, 3, 1) if outputs > width else (3, 3)

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        """(N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""

        def __init__(self) -> None:
            super().__init__()
            before = inputs
            strided = kernels.index(3)
            for place, kernel in enumerate(kernels):
                after = outputs if place == len(kernels) - 1 else width
                step = stride if place == strided else 1
                layer = nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False)
                self.add_module(f"conv{place + 1}", layer)
                self.add_module(f"bn{place + 1}", nn.BatchNorm2d(after))
                before = after
            self.relu = nn.ReLU(inplace=True)
            self.downsample = None
            if stride != 1 or inputs != outputs:
                self.downsample = nn.Sequential(
                    nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                    nn.BatchNorm2d(outputs),
                )

        @property
        def closing(self) -> Any:
            """The normalisation whose result is added to the shortcut."""
            return self.get_submodule(f"bn{len(kernels)}")

        def forward(self, x: Any) -> Any:
            shortcut = x if self.downsample is None else self.downsample(x)
            for place in range(1, len(kernels) + 1):
                x = getattr(self, f"bn{place}")(getattr(self, f"conv{place}")(x))
                if place < len(kernels):
                    x = self.relu(x)
            x += shortcut
            return self.relu(x)

    return Block()
