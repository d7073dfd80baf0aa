"""Interned call stacks: an index per event, each stack stored once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

NO_STACK = -1


class Frame(NamedTuple):
    """One call: source file, line (1-based), function name."""

    filename: str
    line: int
    name: str


Stack = tuple[Frame, ...]  # innermost call first


class StackTable:
    """Stacks by index, in the order they were first seen."""

    def __init__(self, stacks: Iterable[Stack] = ()) -> None:
        self._stacks: list[Stack] = list(stacks)
        self._index = {stack: i for i, stack in enumerate(self._stacks)}

    def __len__(self) -> int:
        return len(self._stacks)

    def __getitem__(self, index: int) -> Stack:
        """The stack at `index`; empty for NO_STACK."""
        return () if index == NO_STACK else self._stacks[index]

    def intern(self, stack: Stack) -> int:
        """The index of `stack`, new or known."""
        index = self._index.setdefault(stack, len(self._stacks))
        if index == len(self._stacks):
            self._stacks.append(stack)
        return index

    def __iter__(self) -> Iterator[Stack]:
        return iter(self._stacks)
