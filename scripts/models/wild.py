"""Forty networks that memplan was not built for, by name, with random weights: of timm
and torchvision, which have to be installed, and six that are written here.

timm imports torchvision, which beside PyTorch's build for the CPU fails for want of
compiled operators unless its own build for the CPU is installed.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]
_TIMM = """
coat_lite_tiny convnext_tiny cspdarknet53 dla34 dpn48b edgenext_small efficientformer_l1
efficientnet_b0 ese_vovnet39b fastvit_t8 gernet_s ghostnet_100 hrnet_w18_small
inception_next_tiny levit_128s mixer_s16_224 mnasnet_100 mobileone_s0
mobilenetv3_large_100 mobilevit_s poolformer_s12 pvt_v2_b0 regnety_008 repvgg_a0
res2net50_26w_4s resnest26d resnext50_32x4d selecsls42b swin_tiny_patch4_window7_224
vit_tiny_patch16_224 xception41
"""


class Sum(nn.Module):
    """What layers make of an input, and the input."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """x: any shape that the layers keep."""
        found: Tensor = x + self.layers(x)
        return found


def _of_timm(name: str) -> nn.Module:
    model: nn.Module = importlib.import_module("timm").create_model(name)
    return model


class _Whole(nn.Module):
    """A network of torchvision's for segmentation, whose result is a dict."""

    def __init__(self, name: str) -> None:
        super().__init__()
        models = importlib.import_module("torchvision.models.segmentation")
        self.inner = getattr(models, name)(weights=None, weights_backbone=None)

    def forward(self, x: Tensor) -> Tensor:
        """x: (N, 3, H, W). Returns (N, 21, H, W)."""
        found: Tensor = self.inner(x)["out"]
        return found


def _video() -> nn.Module:
    models = importlib.import_module("torchvision.models.video")
    found: nn.Module = models.r3d_18(weights=None)
    return found


def edsr() -> nn.Module:
    """Eight blocks of 64 channels that double a picture (Lim et al., 2017)."""

    def convolution(before: int, after: int) -> nn.Module:
        return nn.Conv2d(before, after, 3, 1, 1)

    def block() -> nn.Module:
        return Sum(convolution(64, 64), nn.ReLU(), convolution(64, 64))

    return nn.Sequential(
        convolution(3, 64),
        *(block() for _ in range(8)),
        *(convolution(64, 256), nn.PixelShuffle(2), convolution(64, 3)),
    )


def dncnn() -> nn.Module:
    """Seventeen layers that find a picture's noise (Zhang et al., 2017)."""
    layers: list[nn.Module] = [nn.Conv2d(1, 64, 3, 1, 1), nn.ReLU()]
    for _ in range(15):
        layers += [nn.Conv2d(64, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)]
        layers.append(nn.ReLU())
    return nn.Sequential(*layers, nn.Conv2d(64, 1, 3, 1, 1))


def dcgan() -> nn.Module:
    """A generator of pictures of 64 x 64 (Radford et al., 2015)."""
    widths = (100, 512, 256, 128, 64)
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(itertools.pairwise(widths)):
        stride, padding = (1, 0) if i == 0 else (2, 1)
        layers.append(nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False))
        layers += [nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())


def waves() -> nn.Module:
    """A residual network for signals, of one dimension."""
    layers: list[nn.Module] = [nn.Conv1d(2, 64, 7, 2, 3), nn.BatchNorm1d(64), nn.ReLU()]
    for width in (64, 128, 256):
        for _ in range(2):
            inner = nn.Conv1d(width, width, 3, 1, 1)
            layers += [Sum(inner, nn.BatchNorm1d(width), nn.ReLU()), nn.ReLU()]
        layers.append(nn.Conv1d(width, 2 * width, 3, 2, 1))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten())


def volumes() -> nn.Module:
    """A convolutional network for volumes."""
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv3d(before, after, 3, 1, 1), nn.BatchNorm3d(after), nn.ReLU()]
        layers.append(nn.MaxPool3d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten())


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    **{name: (partial(_of_timm, name), (3, 224, 224)) for name in _TIMM.split()},
    "fcn_resnet50": (partial(_Whole, "fcn_resnet50"), (3, 224, 224)),
    "lraspp_mobilenet": (partial(_Whole, "lraspp_mobilenet_v3_large"), (3, 224, 224)),
    "r3d_18": (_video, (3, 8, 112, 112)),
    "edsr": (edsr, (3, 64, 64)),
    "dncnn": (dncnn, (1, 96, 96)),
    "dcgan": (dcgan, (100, 1, 1)),
    "waves": (waves, (2, 4096)),
    "volumes": (volumes, (1, 32, 32, 32)),
    "encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True), 4
        ),
        (128, 256),
    ),
}


def build(name: str, seed: int = 0) -> nn.Module:
    """A network in evaluation mode; the same seed gives the same weights. Statistics of
    normalizations are as if trained, none of them 0 or 1."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = NETWORKS[name][0]().eval()
        for name_, buffer in model.named_buffers():
            if name_.endswith("running_mean"):
                buffer.uniform_(-0.1, 0.1)
            elif name_.endswith("running_var"):
                buffer.uniform_(0.8, 1.2)
    return model
