"""All layers of a network on one hierarchy (paper, section 3.6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from memplan.blocking.machine.area import area_mm2
from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.nest.layer import Layer
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
    def macs(self) -> int:
        """Multiplications of the whole network, without padding."""
        return sum(layer.count * layer.layer.macs for layer in self.layers)

    @property
    def proved(self) -> bool:
        """Whether every layer's nest is known to be optimal on this hierarchy."""
        return all(layer.result.proved for layer in self.layers)

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
