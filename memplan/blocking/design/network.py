"""All layers of a network on one hierarchy (paper, section 3.6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.machine.technology import area_mm2
from memplan.blocking.nest.layer import Layer, fully_connected
from memplan.blocking.search.result import Result
from memplan.errors import UsageError


@dataclass(frozen=True)
class LayerEnergy:
    """A layer that is run `count` times, and its best nest."""

    layer: Layer
    count: int
    result: Result

    @property
    def energy(self) -> float:
        """pJ of all its runs."""
        return self.count * self.result.energy


@dataclass(frozen=True)
class NetworkEnergy:
    """Layers of different sizes, in the order they first come, on one hierarchy."""

    hierarchy: Hierarchy
    layers: tuple[LayerEnergy, ...]

    @property
    def energy(self) -> float:
        """pJ of the whole network."""
        return sum(layer.energy for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of all memories on the chip."""
        return self.hierarchy.nbytes

    @property
    def mm2(self) -> float:
        """Chip area."""
        return area_mm2(self.nbytes, self.hierarchy.technology.area)


def distinct(
    layers: Sequence[Layer], counts: Sequence[int] | None = None
) -> list[tuple[Layer, int]]:
    """Layers that differ in more than the name, and how often each comes.

    counts: how often each of `layers` is run, by default once. Raises UsageError where
    there are no layers, or counts that do not fit.
    """
    if counts is None:
        counts = [1] * len(layers)
    if not layers or len(counts) != len(layers) or min(counts) < 1:
        raise UsageError(
            f"{len(layers)} layers and {len(counts)} counts: give one or more layers, "
            "and of each how often it is run, at least once"
        )
    first: dict[Layer, Layer] = {}
    found: Counter[Layer] = Counter()
    for layer, count in zip(layers, counts, strict=True):
        shape = replace(layer, name="")
        first.setdefault(shape, layer)
        found[shape] += count
    return [(layer, found[shape]) for shape, layer in first.items()]


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
