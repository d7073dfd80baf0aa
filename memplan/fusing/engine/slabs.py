"""Memory for arenas, kept between calls: as much as the largest network needs."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from memplan.fusing.memory import arena

if TYPE_CHECKING:
    from memplan.fusing.engine.runner import Runner

MOST_IDLE = 4  # kept for calls at once, of several threads


class Slab:
    """Some bytes, and the runners that are bound to them, by engine and images."""

    def __init__(self, count: int) -> None:
        self.memory = arena(count)
        self.bytes = count
        self._runners: weakref.WeakKeyDictionary[Any, dict[Any, Runner]] = (
            weakref.WeakKeyDictionary()
        )

    def runners(self, engine: Any) -> dict[Any, Runner]:
        """The runners of an engine that are bound to this memory."""
        return self._runners.setdefault(engine, {})


class Slabs:
    """The memory of a fused module, shared by the programs for inputs of all shapes.

    One call has one slab at a time, to itself. A slab that is too small is let go, and
    a larger one made in its place; with this object all of them go.
    """

    def __init__(self) -> None:
        self._idle: list[Slab] = []

    def take(self, count: int) -> Slab:
        """A slab of at least so many bytes that nobody else has."""
        try:
            slab = self._idle.pop()  # atomic, and what was used last is in the cache
        except IndexError:
            return Slab(count)
        if slab.bytes >= count:
            return slab
        del slab  # before the larger one is made
        return Slab(count)

    def give(self, slab: Slab) -> None:
        """Take a slab back."""
        if len(self._idle) < MOST_IDLE:
            self._idle.append(slab)

    def trim(self, most: int) -> None:
        """Let go of idle slabs that are larger than anything that will be asked for,
        as those of trials."""
        self._idle = [slab for slab in self._idle if slab.bytes <= most]

    @property
    def bytes(self) -> int:
        """What is kept for calls to come."""
        return sum(slab.bytes for slab in list(self._idle))
