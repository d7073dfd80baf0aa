"""What was made for the input shapes that a module saw last."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

MOST_SHAPES = 8  # programs kept, for inputs of as many shapes
PATIENCE = 3  # calls with a shape beyond those, until it gets a program, too

Made = TypeVar("Made")


class Programs(Generic[Made]):
    """Programs by the key of the inputs that they are for, the oldest first.

    The first MOST_SHAPES keys get one at once. Beyond them a key must come back, and
    each program that is dropped doubles how often: many shapes in turn would compile
    for ever.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, Made] = {}
        self._seen: dict[Hashable, int] = {}
        self._patience = PATIENCE

    def get(self, key: Hashable) -> Made | None:
        """The program of a key."""
        return self._made.get(key)

    def admits(self, key: Hashable) -> bool:
        """Whether a key that has no program, or an outdated one, is to get one; each
        question counts."""
        self._seen[key] = self._seen.get(key, 0) + 1
        return len(self._made) < MOST_SHAPES or self._seen[key] >= self._patience

    def keep(self, key: Hashable, made: Made) -> None:
        """Keep a program, and drop the oldest beyond MOST_SHAPES."""
        found = {**self._made, key: made}
        while len(found) > MOST_SHAPES:
            del found[next(iter(found))]
            self._patience *= 2
            self._seen.clear()
        self._made = found  # whole: other threads read it

    def clear(self) -> None:
        """Drop all programs."""
        self._made = {}

    def all(self) -> list[Made]:
        """The programs, the oldest first."""
        return list(self._made.values())
