"""The networks of the paper's Table 1, layer by layer (convolutions, then the rest)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memplan.blocking.nest.layer import Layer, fully_connected


def _alexnet() -> Iterator[Layer]:
    """Krizhevsky et al. 2012, in two groups as on their two GPUs."""
    yield Layer("conv1", 55, 55, 3, 96, 11, 11, stride=(4, 4))
    yield Layer("conv2", 27, 27, 48, 128, 5, 5, G=2)
    yield Layer("conv3", 13, 13, 256, 384, 3, 3)
    yield Layer("conv4", 13, 13, 192, 192, 3, 3, G=2)
    yield Layer("conv5", 13, 13, 192, 128, 3, 3, G=2)
    yield fully_connected("fc6", 9216, 4096)
    yield fully_connected("fc7", 4096, 4096)
    yield fully_connected("fc8", 4096, 1000)


def _vgg(convolutions: tuple[int, ...]) -> Iterator[Layer]:
    """Simonyan and Zisserman 2015, Table 1: so many convolutions in each stage."""
    channels, side = 3, 224
    for stage, count in enumerate(convolutions):
        filters = min(64 << stage, 512)
        for number in range(1, count + 1):
            name = f"conv{stage + 1}_{number}"
            yield Layer(name, side, side, channels, filters, 3, 3)
            channels = filters
        side //= 2
    yield fully_connected("fc6", channels * side * side, 4096)
    yield fully_connected("fc7", 4096, 4096)
    yield fully_connected("fc8", 4096, 1000)


NETWORKS: Mapping[str, tuple[Layer, ...]] = {
    "alexnet": tuple(_alexnet()),
    "vgg-b": tuple(_vgg((2, 2, 2, 2, 2))),
    "vgg-d": tuple(_vgg((2, 2, 3, 3, 3))),
}
