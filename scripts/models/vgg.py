"""VGG, with and without batch normalization (Simonyan and Zisserman, 2014)."""

from __future__ import annotations

from torch import nn

# Convolutions before each of the five poolings, by the layers that have weights.
_STAGES = {
    "vgg11": (1, 1, 2, 2, 2),
    "vgg13": (2, 2, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}
_CHANNELS = (64, 128, 256, 512, 512)
NAMES = tuple(name + suffix for name in _STAGES for suffix in ("", "_bn"))


class VGG(nn.Sequential):
    """Images (N, 3, 224, 224) to logits (N, 1000); vgg16: 138,357,544 parameters.

    name: one of NAMES. Keys of the state are torchvision's.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        features: list[nn.Module] = []
        inputs = 3
        stages = _STAGES[name.removesuffix("_bn")]
        for count, channels in zip(stages, _CHANNELS, strict=True):
            for _ in range(count):
                features.append(nn.Conv2d(inputs, channels, 3, padding=1))
                if name.endswith("_bn"):
                    features.append(nn.BatchNorm2d(channels))
                features.append(nn.ReLU(inplace=True))
                inputs = channels
            features.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 1000),
        )
