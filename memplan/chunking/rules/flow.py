"""The words in which operators' rules are written (the paper's chunk flow, §3.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from memplan.graph.program import Bound, Meta, Op, Ref, Window, extent, mapped


class Slice(NamedTuple):
    """What an iteration holds of a tensor: a window of one dimension, all of the rest.

    Where the loop covers [a, b) of its extent, it holds
    [a * ratio - before, b * ratio + after) of dimension `dim`, clamped to its size.
    before, after: elements, the halo that a convolution's neighbourhood needs.
    """

    dim: int
    ratio: Fraction = Fraction(1)
    before: int = 0
    after: int = 0

    def along(self, dim: int, times: Fraction | int = 1) -> Slice | None:
        """The same slice as it is seen from dimension `dim` of another tensor, where
        each of its elements is `times` elements. None if the halo is then no integer.
        """
        before, after = self.before * times, self.after * times
        if Fraction(before).denominator != 1 or Fraction(after).denominator != 1:
            return None
        return Slice(dim, self.ratio * times, int(before), int(after))

    def window(self, loop: str, shape: tuple[int, ...]) -> Window:
        """The window of `loop` that it is of a tensor of `shape`."""
        return Window(loop, shape[self.dim], self.ratio, self.before, self.after)


@dataclass(frozen=True)
class Call:
    """An operator whose result is wanted in slices.

    op: the call. operands: the Meta (a tuple of them for a tuple) of each value it
    takes, as `op.operands()` lists them. result: the Meta of its result, a tuple of
    them for several. loop: the name of the loop that would run it. moving: which of the
    result's dimensions vary with loops around that one already, and how.
    """

    op: Op
    operands: tuple[Any, ...]
    result: Any
    loop: str
    moving: Mapping[int, Window] = field(default_factory=dict)

    def sizes(self, out: Slice) -> list[Any]:
        """The result's sizes as arguments in which those that vary follow the loops."""
        windows = {**self.moving, out.dim: self.window(out)}
        return [
            extent(windows[dim]) if dim in windows else size
            for dim, size in enumerate(self.shape)
        ]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result, or of the first of several."""
        first = self.result if isinstance(self.result, Meta) else self.result[0]
        return tuple(first.shape)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by its place in the operator's schema, or by name."""
        if position < len(self.op.args):
            return self.op.args[position]
        return self.op.kwargs.get(name, default)

    def window(self, piece: Slice, shape: tuple[int, ...] | None = None) -> Window:
        """The window that `piece` is of a tensor of `shape`; else of the result."""
        return piece.window(self.loop, self.shape if shape is None else shape)


@dataclass(frozen=True)
class Flow:
    """How an operator runs in a loop.

    needs: for each operand, the Slice of it that is needed, or None: all of it.
    target, args, kwargs: what is called on them, where that is not the operator as it
    stands; integers that follow the iteration are Bound. names of `op.operands()` stay
    as they are, each the slice that `needs` says.
    """

    needs: tuple[Slice | None, ...]
    target: Callable[..., Any] | None = None
    args: tuple[Any, ...] | None = None
    kwargs: dict[str, Any] | None = field(default=None)


Rule = Callable[[Call, Slice], Flow | None]
"""Given a call and the slice of its result that an iteration makes, how; None: never.

A rule is only asked about dimensions that have more than one element. Where the result
is a tuple, the slice is of each of its members.
"""


def each(names: str, rule: Rule) -> dict[str, Rule]:
    """One rule for several operators of ATen, by their names with spaces between."""
    return {f"aten.{name}": rule for name in names.split()}


def whole(call: Call) -> list[Slice | None]:
    """`needs` in which every operand is taken whole, to be filled in."""
    return [None] * len(call.operands)


__all__ = [
    "Bound",
    "Call",
    "Flow",
    "Fraction",
    "Meta",
    "Op",
    "Ref",
    "Rule",
    "Slice",
    "Window",
    "each",
    "mapped",
    "whole",
]
