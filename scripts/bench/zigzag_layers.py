"""The layers that are blocked beside ZigZag."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bench.against_zigzag import UNROLL
from bench.blocking_code import RESNET_50
from memplan.blocking.nest.layer import Layer, fully_connected, parse_layer

# Channels, output columns, window, stride of MobileNetV3-Large's depthwise layers.
_DEPTHWISE = (
    *((16, 112, 3, 1), (64, 56, 3, 2), (72, 56, 3, 1), (72, 28, 5, 2)),
    *((120, 28, 5, 1), (240, 14, 3, 2), (200, 14, 3, 1), (184, 14, 3, 1)),
    *((480, 14, 3, 1), (672, 14, 3, 1), (672, 7, 5, 2), (960, 7, 5, 1)),
)
# Lanes of a depthwise layer: 8 channels, which divides all of them.
_CHANNELS = {"G": 8}


def resnet50() -> Iterator[Layer]:
    """Its 23 convolutions that differ; the stride is on the 3x3."""
    for text in RESNET_50:
        layer = parse_layer(text)
        yield _named(layer, f"{layer.C}-{layer.K}")


def _depthwise(channels: int, size: int, window: int, stride: int) -> Layer:
    step = (stride, stride)
    layer = Layer("", size, size, 1, 1, window, window, G=channels, stride=step)
    return _named(layer, f"{channels} by itself")


def _named(layer: Layer, channels: str) -> Layer:
    stride = f" /{layer.stride[0]}" * (layer.stride[0] > 1)
    size = f"{layer.X}x{layer.Y}, {layer.Fw}x{layer.Fh}{stride}"
    return replace(layer, name=f"{channels}, {size}")


def cases() -> Iterator[tuple[str, Layer, dict[str, int]]]:
    """Network, layer and datapath."""
    for layer in resnet50():
        yield "ResNet-50", layer, UNROLL
    for row in _DEPTHWISE:
        yield "MobileNetV3", _depthwise(*row), _CHANNELS
    for tokens in (1024, 1):
        for c, k in ((768, 3072), (3072, 768)):
            name = f"{c}-{k}, {tokens} token" + "s" * (tokens > 1)
            yield "GPT-2 MLP", fully_connected(name, c, k, tokens), UNROLL
