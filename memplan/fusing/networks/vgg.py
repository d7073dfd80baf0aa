"""VGG, with and without batch normalisation (Simonyan and Zisserman, 2014)."""

from __future__ import annotations

from typing import Any

from memplan.fusing.networks.weights import sequence, torch_layers

# Convolutions before each of the five poolings, by the layers that have weights.
_STAGES = {
    "vgg11": (1, 1, 2, 2, 2),
    "vgg13": (2, 2, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}
_CHANNELS = (64, 128, 256, 512, 512)
_NORMALISED = "_bn"

NAMES = tuple(name + suffix for name in _STAGES for suffix in ("", _NORMALISED))


def network(name: str) -> Any:
    """Images (N, 3, 224, 224) to logits (N, 1000); vgg16: 138,357,544 parameters."""
    nn = torch_layers()
    features: list[Any] = []
    inputs = 3
    stages = _STAGES[name.removesuffix(_NORMALISED)]
    for count, channels in zip(stages, _CHANNELS, strict=True):
        for _ in range(count):
            features.append(nn.Conv2d(inputs, channels, 3, padding=1))
            if name.endswith(_NORMALISED):
                features.append(nn.BatchNorm2d(channels))
            features.append(nn.ReLU(inplace=True))
            inputs = channels
        features.append(nn.MaxPool2d(2, 2))

    def dense(inputs: int) -> list[Any]:
        return [nn.Linear(inputs, 4096), nn.ReLU(inplace=True), nn.Dropout()]

    return sequence(
        features=nn.Sequential(*features),
        avgpool=nn.AdaptiveAvgPool2d((7, 7)),
        flatten=nn.Flatten(),
        classifier=nn.Sequential(
            *dense(512 * 7 * 7), *dense(4096), nn.Linear(4096, 1000)
        ),
    )
