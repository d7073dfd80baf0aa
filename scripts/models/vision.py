"""The 21 networks of BrainSlug's measurements (section 5), and its stack of Figure 10,
by name, with random weights.

`stack:N` is N blocks of max-pooling, batch normalization and ReLU on planes of 56 x 56.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models import resnet
from models.googlenet import Branches

# VGG (Simonyan and Zisserman, 2014): convolutions before each of the five poolings.
_VGG = {
    "vgg11": (1, 1, 2, 2, 2),
    "vgg13": (2, 2, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}
# SqueezeNet (Iandola et al., 2016): channels and kernel of the first convolution;
# between poolings, the channels that its fire modules squeeze to.
_SQUEEZENETS = {
    "squeezenet1_0": (96, 7, ((16, 16, 32), (32, 48, 48, 64), (64,))),
    "squeezenet1_1": (64, 3, ((16, 16), (32, 32), (48, 48, 64, 64))),
}
# DenseNet (Huang et al., 2017): layers of each block, the channels that each adds, and
# those of the first convolution.
_DENSENETS = {
    "densenet121": ((6, 12, 24, 16), 32, 64),
    "densenet161": ((6, 12, 36, 24), 48, 96),
    "densenet169": ((6, 12, 32, 32), 32, 64),
    "densenet201": ((6, 12, 48, 32), 32, 64),
}
NAMES = (
    *("alexnet", "inception_v3", *_DENSENETS, *resnet.NETWORKS, *_SQUEEZENETS),
    *(name + suffix for name in _VGG for suffix in ("", "_bn")),
)


def alexnet(classes: int = 1000) -> nn.Sequential:
    """Of one tower (Krizhevsky, One weird trick, 2014), without normalization."""

    def convolution(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
        layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
        return [layer, nn.ReLU(inplace=True)]

    return nn.Sequential(
        *(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        *(*convolution(64, 192, 5), nn.MaxPool2d(3, 2)),
        *convolution(192, 384, 3),
        *convolution(384, 256, 3),
        *(*convolution(256, 256, 3), nn.MaxPool2d(3, 2)),
        *(nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Dropout()),
        *(nn.Linear(256 * 6 * 6, 4096), nn.ReLU(inplace=True), nn.Dropout()),
        *(nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, classes)),
    )


def vgg(name: str) -> nn.Sequential:
    """With batch normalization where the name ends with _bn."""
    layers: list[nn.Module] = []
    inputs = 3
    stages = zip(_VGG[name[:5]], (64, 128, 256, 512, 512), strict=True)
    for count, channels in stages:
        for _ in range(count):
            layers.append(nn.Conv2d(inputs, channels, 3, padding=1))
            if name.endswith("_bn"):
                layers.append(nn.BatchNorm2d(channels))
            layers.append(nn.ReLU(inplace=True))
            inputs = channels
        layers.append(nn.MaxPool2d(2, 2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    for features in (512 * 7 * 7, 4096):
        layers += [nn.Linear(features, 4096), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(4096, 1000))


def squeezenet(name: str) -> nn.Sequential:
    """Fire modules: 1x1 down, then 1x1 and 3x3 up, side by side."""

    def conv(inputs: int, outputs: int, kernel: int = 1) -> nn.Sequential:
        layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
        return nn.Sequential(layer, nn.ReLU(inplace=True))

    inputs, kernel, stages = _SQUEEZENETS[name]
    layers = [nn.Conv2d(3, inputs, kernel, 2), nn.ReLU(inplace=True)]
    for stage in stages:
        layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
        for squeezed in stage:
            expanded = 4 * squeezed
            layers.append(conv(inputs, squeezed))
            both = conv(squeezed, expanded), conv(squeezed, expanded, 3)
            layers.append(Branches(*both))
            inputs = 2 * expanded
    layers += [nn.Dropout(), conv(inputs, 1000), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers)


class Dense(nn.Module):
    """Every layer takes the block's input and what all layers before it computed:
    (N, inputs, H, W) to (N, inputs + count * growth, H, W)."""

    def __init__(self, inputs: int, growth: int, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                *_normed(inputs + index * growth),
                nn.Conv2d(inputs + index * growth, 4 * growth, 1, bias=False),
                *_normed(4 * growth),
                nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
            for index in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        pieces = [x]
        for layer in self.layers:
            pieces.append(layer(x))
            x = torch.cat(pieces, 1)
        return x


def _normed(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]


def densenet(name: str) -> nn.Sequential:
    """With bottlenecks and compression."""
    blocks, growth, channels = _DENSENETS[name]
    layers = [nn.Conv2d(3, channels, 7, 2, 3, bias=False), *_normed(channels)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for number, count in enumerate(blocks, 1):
        layers.append(Dense(channels, growth, count))
        channels += count * growth
        layers += _normed(channels)
        if number < len(blocks):
            layers.append(nn.Conv2d(channels, channels // 2, 1, bias=False))
            layers.append(nn.AvgPool2d(2, 2))
            channels //= 2
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers)


def inception_v3() -> nn.Sequential:
    """Szegedy et al., Rethinking the Inception Architecture, 2016, for inference:
    without its auxiliary classifier."""
    mixed = [_block_a(*channels) for channels in ((192, 32), (256, 64), (288, 64))]
    narrowed = _chain(288, (64,), (96, 3, 3), (96, 3, 3, 2))
    mixed.append(Branches(_chain(288, (384, 3, 3, 2)), narrowed, nn.MaxPool2d(3, 2)))
    mixed += [_block_c(inner) for inner in (128, 160, 160, 192)]
    narrowed = _chain(768, (192,), (192, 1, 7), (192, 7, 1), (192, 3, 3, 2))
    first = _chain(768, (192,), (320, 3, 3, 2))
    mixed.append(Branches(first, narrowed, nn.MaxPool2d(3, 2)))
    return nn.Sequential(
        *(_conv(3, 32, 3, 3, 2), _conv(32, 32, 3, 3, padded=False)),
        *(_conv(32, 64, 3, 3), nn.MaxPool2d(3, 2)),
        *(_conv(64, 80), _conv(80, 192, 3, 3, padded=False), nn.MaxPool2d(3, 2)),
        *(*mixed, _block_e(1280), _block_e(2048)),
        *(nn.AdaptiveAvgPool2d(1), nn.Dropout(), nn.Flatten(), nn.Linear(2048, 1000)),
    )


def _conv(
    inputs: int,
    outputs: int,
    high: int = 1,
    wide: int = 1,
    stride: int = 1,
    padded: bool = True,
) -> nn.Sequential:
    """A convolution without bias, normalization and ReLU.

    Planes stay as large, or with a stride of 2 (or `padded` False) lose their borders.
    """
    padding = (high // 2, wide // 2) if padded and stride == 1 else 0
    layer = nn.Conv2d(inputs, outputs, (high, wide), stride, padding, bias=False)
    normed = nn.BatchNorm2d(outputs, eps=0.001)
    return nn.Sequential(layer, normed, nn.ReLU(inplace=True))


def _chain(inputs: int, *convs: tuple[int, ...]) -> nn.Sequential:
    """Convolutions one behind the other, each as `_conv` takes it."""
    layers = []
    for conv in convs:
        layers.append(_conv(inputs, *conv))
        inputs = conv[0]
    return nn.Sequential(*layers)


def _pooled(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), _conv(inputs, outputs))


def _block_a(inputs: int, pooled: int) -> Branches:
    return Branches(
        _conv(inputs, 64),
        _chain(inputs, (48,), (64, 5, 5)),
        _chain(inputs, (64,), (96, 3, 3), (96, 3, 3)),
        _pooled(inputs, pooled),
    )


def _block_c(inner: int) -> Branches:
    wide, high = (inner, 1, 7), (inner, 7, 1)
    return Branches(
        _conv(768, 192),
        _chain(768, (inner,), wide, (192, 7, 1)),
        _chain(768, (inner,), high, wide, high, (192, 1, 7)),
        _pooled(768, 192),
    )


def _block_e(inputs: int) -> Branches:
    def both() -> Branches:
        return Branches(_conv(384, 384, 1, 3), _conv(384, 384, 3, 1))

    return Branches(
        _conv(inputs, 320),
        nn.Sequential(_conv(inputs, 384), both()),
        nn.Sequential(_chain(inputs, (448,), (384, 3, 3)), both()),
        _pooled(inputs, 192),
    )


def input_shape(name: str) -> tuple[int, int, int]:
    """Channels, height and width of one input."""
    if name.startswith("stack:"):
        return 64, 56, 56
    side = 299 if name == "inception_v3" else 224
    return 3, side, side


def structure(name: str) -> nn.Module:
    """The modules of a network, its weights as torch initializes them: none at all
    under ``torch.device("meta")``."""
    if name in ("alexnet", "inception_v3"):
        return alexnet() if name == "alexnet" else inception_v3()
    if name in resnet.NETWORKS:
        layers, bottlenecks = resnet.NETWORKS[name]
        return resnet.ResNet(layers, bottlenecks=bottlenecks)
    if name.startswith("stack:"):
        layers_ = (
            (nn.MaxPool2d(3, 1, 1), nn.BatchNorm2d(64), nn.ReLU())
            for _ in range(int(name[6:]))
        )
        return nn.Sequential(*(layer for block in layers_ for layer in block))
    return {"d": densenet, "s": squeezenet, "v": vgg}[name[0]](name)


def build(name: str, seed: int = 0) -> nn.Module:
    """A network in evaluation mode, with random weights and statistics.

    The same seed gives the same weights; torch's own generator stays as it is.
    """
    with torch.device("meta"):  # initial values would take time, and random numbers
        empty = structure(name)
    return _randomized(empty.to_empty(device="cpu"), seed)


def _randomized(model: nn.Module, seed: int) -> nn.Module:
    """`model` itself, with weights by which activations neither fade nor grow.

    Convolutions and linear layers keep the variance of what ReLU leaves (He et al.,
    2015). Normalizations get statistics as if trained, none of them 0 or 1, so that
    leaving one out shows in the results. What closes a branch around a shortcut is
    damped, or sums would double in each of fifty blocks.
    """
    generator = torch.Generator().manual_seed(seed)

    def near(tensor: torch.Tensor, center: float, spread: float) -> None:
        noise = torch.rand(tensor.shape, generator=generator)
        tensor.copy_(noise.mul_(2 * spread).add_(center - spread))

    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                fan = module.weight[0].numel()
                module.weight.normal_(0.0, (2.0 / fan) ** 0.5, generator=generator)
                if module.bias is not None:
                    near(module.bias, 0.0, 0.1)
            elif isinstance(module, nn.BatchNorm2d):
                near(module.weight, 1.0, 0.2)
                near(module.bias, 0.0, 0.2)
                near(module.running_mean, 0.0, 0.2)
                near(module.running_var, 1.0, 0.2)
                module.num_batches_tracked.zero_()
        for module in model.modules():
            if isinstance(module, resnet.Block):
                module.residual[-1].weight.mul_(0.25)
    return model.eval().requires_grad_(False)
