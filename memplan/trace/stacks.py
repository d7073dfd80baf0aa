"""Interned call stacks, and what ran there: an index per event, each stored once."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

NO_STACK = -1


class Frame(NamedTuple):
    """One call: source file, line (1-based), function name."""

    filename: str
    line: int
    name: str


class Phase(enum.IntEnum):
    """What a program was doing when it asked for memory."""

    UNKNOWN = 0
    OUTSIDE = 1  # of all that follows: reading data, say
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4


class Origin(NamedTuple):
    """What ran where a stack was noted; of a backward pass, what made it necessary.

    module: its path from the outermost one ("encoder.layers.0"), "" if there is none.
    operator: as PyTorch names it ("linear"; "AddmmBackward0"), "" if unknown.
    """

    module: str = ""
    operator: str = ""
    phase: Phase = Phase.UNKNOWN


Stack = tuple[Frame, ...]  # innermost call first
NO_ORIGIN = Origin()


class StackTable:
    """Stacks by index, in the order they were first seen, each with its origin."""

    def __init__(
        self, stacks: Iterable[Stack] = (), origins: Sequence[Origin] = ()
    ) -> None:
        """`origins` of the first stacks; the others have NO_ORIGIN."""
        self._stacks: list[Stack] = list(stacks)
        missing = len(self._stacks) - len(origins)
        self._origins: list[Origin] = [*origins, *[NO_ORIGIN] * missing]
        pairs = zip(self._stacks, self._origins, strict=True)
        self._index = {pair: i for i, pair in enumerate(pairs)}

    def __len__(self) -> int:
        return len(self._stacks)

    def __getitem__(self, index: int) -> Stack:
        """The stack at `index`; empty for NO_STACK."""
        return () if index == NO_STACK else self._stacks[index]

    def origin(self, index: int) -> Origin:
        """What ran there; NO_ORIGIN where that was not noted, or for NO_STACK."""
        return NO_ORIGIN if index == NO_STACK else self._origins[index]

    @property
    def has_origins(self) -> bool:
        """Whether there is any other than NO_ORIGIN."""
        return any(origin != NO_ORIGIN for origin in self._origins)

    def intern(self, stack: Stack, origin: Origin = NO_ORIGIN) -> int:
        """The index of `stack` with that origin, new or known."""
        index = self._index.setdefault((stack, origin), len(self._stacks))
        if index == len(self._stacks):
            self._stacks.append(stack)
            self._origins.append(origin)
        return index

    def __iter__(self) -> Iterator[Stack]:
        return iter(self._stacks)
