"""The 21 networks of BrainSlug's measurements (section 5), and its stack of Figure 10,
by name, with random weights.

`stack:N` is N blocks of max-pooling, batch normalization and ReLU on planes of 56 x 56.
"""

from __future__ import annotations

import torch
from torch import nn

from models import densenet, resnet, squeezenet, vgg
from models.alexnet import OneTower
from models.inception import InceptionV3

NAMES = (
    *("alexnet", "inception_v3", *densenet.NAMES, *resnet.NETWORKS),
    *(*squeezenet.NAMES, *vgg.NAMES),
)
MOST_BLOCKS = 1000  # of a stack


def check(name: str) -> None:
    """Raise ValueError unless `name` is one of NAMES or stack:N."""
    if name.startswith("stack:"):
        _blocks(name)
    elif name not in NAMES:
        known = ", ".join(NAMES)
        raise ValueError(f"{name!r} is no network; there are {known} and stack:N")


def _blocks(name: str) -> int:
    digits = name.removeprefix("stack:")
    count = int(digits) if digits.isascii() and digits.isdigit() else 0
    if not 1 <= count <= MOST_BLOCKS:
        raise ValueError(f"{name!r}: a stack has 1 to {MOST_BLOCKS} blocks: stack:10")
    return count


def input_shape(name: str) -> tuple[int, int, int]:
    """Channels, height and width of one input. Raises ValueError for other names."""
    check(name)
    if name.startswith("stack:"):
        return 64, 56, 56
    side = 299 if name == "inception_v3" else 224
    return 3, side, side


def structure(name: str) -> nn.Module:
    """The modules of a network, its weights as torch initializes them: none at all
    under ``torch.device("meta")``. Raises ValueError for other names."""
    check(name)
    if name == "alexnet":
        return OneTower()
    if name == "inception_v3":
        return InceptionV3()
    if name in resnet.NETWORKS:
        layers, bottlenecks = resnet.NETWORKS[name]
        return resnet.ResNet(layers, bottlenecks=bottlenecks)
    if name.startswith("stack:"):
        layers_ = (
            (nn.MaxPool2d(3, 1, 1), nn.BatchNorm2d(64), nn.ReLU())
            for _ in range(_blocks(name))
        )
        return nn.Sequential(*(layer for block in layers_ for layer in block))
    family = {"d": densenet.DenseNet, "s": squeezenet.SqueezeNet, "v": vgg.VGG}
    return family[name[0]](name)


def build(name: str, seed: int = 0) -> nn.Module:
    """A network in evaluation mode, with random weights and statistics.

    The same seed gives the same weights; torch's own generator stays as it is. Raises
    ValueError for other names.
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
                module.closing.weight.mul_(0.25)
    return model.eval().requires_grad_(False)
