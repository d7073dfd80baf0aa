"""DenseNet with bottlenecks and compression (Huang et al., 2017)."""

from __future__ import annotations

from typing import Any

from memplan.fusing.networks.weights import sequence, torch_layers

# Layers of each block, the channels that each adds, and those of the first convolution.
_BLOCKS = {
    "densenet121": ((6, 12, 24, 16), 32, 64),
    "densenet161": ((6, 12, 36, 24), 48, 96),
    "densenet169": ((6, 12, 32, 32), 32, 64),
    "densenet201": ((6, 12, 48, 32), 32, 64),
}

NAMES = tuple(_BLOCKS)


def network(name: str) -> Any:
    """Images (N, 3, 224, 224) to logits (N, 1000); 121 has 7,978,856 parameters."""
    nn = torch_layers()
    blocks, growth, channels = _BLOCKS[name]
    features: dict[str, Any] = {
        "conv0": nn.Conv2d(3, channels, 7, 2, 3, bias=False),
        "norm0": nn.BatchNorm2d(channels),
        "relu0": nn.ReLU(inplace=True),
        "pool0": nn.MaxPool2d(3, 2, 1),
    }
    for number, count in enumerate(blocks, 1):
        features[f"denseblock{number}"] = _block(channels, growth, count)
        channels += count * growth
        if number < len(blocks):
            features[f"transition{number}"] = sequence(
                norm=nn.BatchNorm2d(channels),
                relu=nn.ReLU(inplace=True),
                conv=nn.Conv2d(channels, channels // 2, 1, bias=False),
                pool=nn.AvgPool2d(2, 2),
            )
            channels //= 2
    features["norm5"] = nn.BatchNorm2d(channels)
    return sequence(
        features=sequence(**features),
        relu=nn.ReLU(inplace=True),
        avgpool=nn.AdaptiveAvgPool2d((1, 1)),
        flatten=nn.Flatten(),
        classifier=nn.Linear(channels, 1000),
    )


def _block(inputs: int, growth: int, count: int) -> Any:
    """(N, inputs, H, W) to (N, inputs + count * growth, H, W)."""
    import torch

    nn = torch_layers()

    def layer(channels: int) -> Any:
        return sequence(
            norm1=nn.BatchNorm2d(channels),
            relu1=nn.ReLU(inplace=True),
            conv1=nn.Conv2d(channels, 4 * growth, 1, bias=False),
            norm2=nn.BatchNorm2d(4 * growth),
            relu2=nn.ReLU(inplace=True),
            conv2=nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        """Every layer takes what all before it made, and the block's input."""

        def __init__(self) -> None:
            super().__init__()
            for index in range(count):
                made = layer(inputs + index * growth)
                self.add_module(f"denselayer{index + 1}", made)

        def forward(self, x: Any) -> Any:
            pieces = [x]
            for one in self.children():
                pieces.append(one(x))
                x = torch.cat(pieces, 1)
            return x

    return Block()
