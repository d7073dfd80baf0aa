"""How a slice of an operator's result follows from slices of its operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from memplan.graph.arguments import arguments_of, parameters
from memplan.graph.program import (
    Argument,
    Bound,
    Meta,
    Metas,
    Op,
    Window,
    extent,
    refs,
)


class Slice(NamedTuple):
    """What an iteration holds of a tensor: a window of one dimension, all of the rest.

    Where the loop covers [a, b) of its extent, it holds
    [a * ratio - before, b * ratio + after) of dimension `dim`, clamped to its size.
    before, after: elements, the halo that a convolution's neighbourhood needs.
    total: the tensor is a reduction's result, and an iteration adds a slice of what is
    reduced to all of it; `dim` is as `rules.totals` has it.
    """

    dim: int
    ratio: Fraction = Fraction(1)
    before: int = 0
    after: int = 0
    total: bool = False

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
    operands: tuple[Metas, ...]
    result: Metas
    loop: str
    moving: Mapping[int, Window] = field(default_factory=dict)

    def sizes(self, out: Slice) -> list[Argument]:
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

    def argument(self, position: int, name: str, default: Argument = None) -> Argument:
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

    needs: for each operand, the Slice of it that is needed, or None for all of it.
    target, args, kwargs: the call, if it is not the unchanged operator; integers that
    follow the iteration are Bound. Names of `op.operands()` stay the same and mean the
    slices in `needs`.
    """

    needs: tuple[Slice | None, ...]
    target: Callable[..., object] | None = None
    args: tuple[Argument, ...] | None = None
    kwargs: dict[str, Argument] | None = field(default=None)


Rule = Callable[[Call, Slice], Flow | None]
"""Given a call and the slice of its result that an iteration makes, how; None: never.

A rule is only asked about dimensions that have more than one element. Where the result
is a tuple, the slice is of each of its members.
"""


RULES: dict[str, Rule] = {}
"""Every operator's rule, by the operator's name without its overload."""


def rule(names: str = "", own: str = "") -> Callable[[Rule], Rule]:
    """Register a rule for operators of ATen, and for functions of memplan's `own`.

    Both are names with spaces between, without overloads.
    """

    def register(function: Rule) -> Rule:
        keys = [f"aten.{name}" for name in names.split()] + own.split()
        RULES.update(dict.fromkeys(keys, function))
        return function

    return register


def whole(call: Call) -> list[Slice | None]:
    """`needs` in which every operand is taken whole, to be filled in."""
    return [None] * len(call.operands)


def given(call: Call) -> dict[str, Argument]:
    """All arguments by name, those left out at their defaults."""
    return arguments_of(call.op)


def places(call: Call) -> dict[str, tuple[int, ...]]:
    """For each argument given, where its values stand among the call's operands."""
    names = [name for name, _ in parameters(call.op.target)]
    passed = [*zip(names, call.op.args, strict=False), *call.op.kwargs.items()]
    found: dict[str, tuple[int, ...]] = {}
    count = 0
    for name, value in passed:
        width = sum(1 for _ in refs(value))
        found[name] = tuple(range(count, count + width))
        count += width
    return found


def shape(call: Call, name: str) -> tuple[int, ...] | None:
    """The shape of the tensor that is the argument `name`; None if none is given."""
    place = places(call).get(name, ())
    return tuple(call.operands[place[0]].shape) if place else None


def needing(call: Call, slices: Mapping[str, Slice | None]) -> tuple[Slice | None, ...]:
    """`needs` with the named arguments sliced, if they are given; all others whole."""
    needs: list[Slice | None] = [None] * len(call.operands)
    for name, place in places(call).items():
        for position in place:
            needs[position] = slices.get(name)
    return tuple(needs)


def changed(
    call: Call, needs: Iterable[Slice | None], changes: Mapping[str, Argument]
) -> Flow:
    """The same operator with some arguments replaced."""
    names = [name for name, _ in parameters(call.op.target)]
    args = list(call.op.args)
    kwargs = dict(call.op.kwargs)
    for name, value in changes.items():
        position = names.index(name)
        if position < len(args):
            args[position] = value
        else:
            kwargs[name] = value
    return Flow(tuple(needs), call.op.target, tuple(args), kwargs)


def part_of(
    made: Window, times: int, shift: int, wanted: Window
) -> tuple[Bound, Bound, Bound]:
    """Where an operator's result begins, and where the wanted part begins and ends.

    The result of an operand's window [lo, hi), `made`, begins at lo * times + shift.
    """
    begin = Bound(made, times, 0, shift)
    return begin, Bound(wanted, 1, 0), Bound(wanted, 0, 1)


def positive(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim + rank if dim < 0 else dim


def integers(value: Argument, count: int) -> tuple[int, ...]:
    """An argument that is one integer, or one for each of `count` dimensions."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * count if len(values) == 1 else values
