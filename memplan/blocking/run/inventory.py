"""The layers of a model, and what of its multiply-adds is in none of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from memplan.blocking.nest.layer import Layer
from memplan.blocking.run.products import Reading


@dataclass(frozen=True)
class ModelLayer:
    """A layer, named after the first module that ran it, and how often it is run."""

    layer: Layer
    count: int


@dataclass(frozen=True)
class LeftOut:
    """An operation that is in no layer. where: the module, or node; macs: its
    multiply-adds, None if they are not known."""

    where: str
    reason: str
    macs: int | None


@dataclass(frozen=True)
class Reference:
    """What torch's own counter (torch.utils.flop_counter) makes of the same run.

    macs: half its floating-point operations; unknown: multiply-adds here, by
    operation, that it has no formula for.
    """

    macs: int
    unknown: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class ModelLayers:
    """layers: each once, in the order they first ran; left_out: operations that are in
    none of them; notes: where a layer is not quite the operation, how it differs;
    reference: torch's count, None of a file that torch did not run."""

    layers: tuple[ModelLayer, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...] = ()
    reference: Reference | None = None

    @property
    def counted(self) -> int:
        """Multiply-adds of the layers; of those without weights the operations are no
        multiply-adds."""
        return sum(x.count * x.layer.macs for x in self.layers if x.layer.kernel)

    @property
    def macs(self) -> int:
        """Multiply-adds of the layers and of all left out whose own are known."""
        return self.counted + sum(one.macs or 0 for one in self.left_out)

    def share(self, macs: int) -> float:
        """What part of all known multiply-adds so many are."""
        return macs / self.macs if self.macs else 0.0

    @property
    def difference(self) -> int:
        """Multiply-adds here above torch's, both of operations that it counts."""
        if self.reference is None:
            return 0
        unknown = sum(macs for _, macs in self.reference.unknown)
        return self.macs - unknown - self.reference.macs


class Inventory:
    """Collects layers; equal ones are counted."""

    def __init__(self) -> None:
        self._layers: dict[Layer, tuple[str, int]] = {}
        self._left_out: dict[tuple[str, str], int | None] = {}
        self._notes: dict[str, dict[str, None]] = {}

    def take(self, where: str, found: Reading) -> None:
        """Add the layers of an operation that ran at `where`."""
        for layer, count in found.parts:
            name, before = self._layers.get(layer, (where, 0))
            self._layers[layer] = name, before + count
        if found.note:
            self._notes.setdefault(found.note, {})[where] = None

    def leave_out(self, where: str, reason: str, macs: int | None) -> None:
        """An operation that is in no layer; the same one again is added."""
        before = self._left_out.get((where, reason), 0)
        known = None if macs is None or before is None else before + macs
        self._left_out[where, reason] = known

    def all(
        self, reference: Reference | None = None, more: Sequence[str] = ()
    ) -> ModelLayers:
        """Everything so far; more: notes that come first."""
        layers = tuple(
            ModelLayer(replace(layer, name=name), count)
            for layer, (name, count) in self._layers.items()
        )
        left = (LeftOut(*at, macs) for at, macs in self._left_out.items() if macs != 0)
        notes = tuple(f"{_several(at)}: {text}" for text, at in self._notes.items())
        return ModelLayers(layers, tuple(left), (*more, *notes), reference)


def _several(places: Iterable[str]) -> str:
    first, *others = places
    return f"{first} and {len(others):,} more" if others else first
