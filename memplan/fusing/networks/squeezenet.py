"""SqueezeNet 1.0 and 1.1 (Iandola et al., 2016)."""

from __future__ import annotations

from typing import Any

from memplan.fusing.networks.weights import sequence, torch_layers

# Channels and kernel of the first convolution.
_FIRST = {"squeezenet1_0": (96, 7), "squeezenet1_1": (64, 3)}
# Between poolings, fire modules: channels squeezed to, expanded to by each kernel.
_STAGES = {
    "squeezenet1_0": (
        ((16, 64), (16, 64), (32, 128)),
        ((32, 128), (48, 192), (48, 192), (64, 256)),
        ((64, 256),),
    ),
    "squeezenet1_1": (
        ((16, 64), (16, 64)),
        ((32, 128), (32, 128)),
        ((48, 192), (48, 192), (64, 256), (64, 256)),
    ),
}

NAMES = tuple(_FIRST)


def network(name: str) -> Any:
    """Images (N, 3, 224, 224) to logits (N, 1000); 1.1 has 1,235,496 parameters."""
    nn = torch_layers()
    inputs, kernel = _FIRST[name]
    features = [nn.Conv2d(3, inputs, kernel, 2), nn.ReLU(inplace=True)]
    for stage in _STAGES[name]:
        features.append(nn.MaxPool2d(3, 2, ceil_mode=True))
        for squeezed, expanded in stage:
            features.append(_fire(inputs, squeezed, expanded))
            inputs = 2 * expanded
    return sequence(
        features=nn.Sequential(*features),
        classifier=nn.Sequential(
            nn.Dropout(),
            nn.Conv2d(inputs, 1000, 1),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d((1, 1)),
        ),
        flatten=nn.Flatten(),
    )


def _fire(inputs: int, squeezed: int, expanded: int) -> Any:
    """(N, inputs, H, W) to (N, 2 * expanded, H, W)."""
    import torch

    nn = torch_layers()

    class Fire(nn.Module):  # type: ignore[misc, name-defined]
        """1x1 down, then 1x1 and 3x3 up, side by side."""

        def __init__(self) -> None:
            super().__init__()
            self.squeeze = nn.Conv2d(inputs, squeezed, 1)
            self.squeeze_activation = nn.ReLU(inplace=True)
            self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
            self.expand1x1_activation = nn.ReLU(inplace=True)
            self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)
            self.expand3x3_activation = nn.ReLU(inplace=True)

        def forward(self, x: Any) -> Any:
            x = self.squeeze_activation(self.squeeze(x))
            small = self.expand1x1_activation(self.expand1x1(x))
            return torch.cat([small, self.expand3x3_activation(self.expand3x3(x))], 1)

    return Fire()
