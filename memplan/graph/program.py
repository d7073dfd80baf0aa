"""A tensor program: operators in order, on values with known shapes.

`memplan.graph.lower` converts what `torch.export` returns to this form. Memory is
estimated on it, regions are found in it, and Python is generated from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import torch

Ranges = Mapping[str, tuple[int, int]]
"""Of each loop, the range [start, stop) of its extent that an iteration covers."""


Argument: TypeAlias = Any
"""An operator's argument: a Ref, a Bound, a plain value, or a nest of these."""

Metas: TypeAlias = Any
"""The Meta of a tensor; of several tensors, a tuple of theirs."""

Roots: TypeAlias = Any
"""The name of the storage that a value lies in; of several values, a tuple of names."""


class Ref(NamedTuple):
    """The value `name`, where it stands in an operator's arguments."""

    name: str


class Meta(NamedTuple):
    """A tensor's shape and strides (in elements), torch.dtype, and device."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: str

    @property
    def elements(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product

    @property
    def bytes(self) -> int:
        return self.elements * int(self.dtype.itemsize)

    def cut(self, dim: int, size: int) -> Meta:
        """A part of it that has `size` elements along a dimension."""
        return self._replace(shape=(*self.shape[:dim], size, *self.shape[dim + 1 :]))

    @property
    def contiguous(self) -> bool:
        """Whether its elements lie in row-major order without holes."""
        expected = 1
        for size, stride in zip(
            reversed(self.shape), reversed(self.strides), strict=True
        ):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


class Window(NamedTuple):
    """The part of a dimension of `size` that an iteration of `loop` holds.

    Where the iteration covers [a, b) of the loop's extent, that is
    [max(0, a * ratio - before), min(size, b * ratio + after)).
    """

    loop: str
    size: int
    ratio: Fraction = Fraction(1)
    before: int = 0
    after: int = 0

    def at(self, ranges: Ranges) -> tuple[int, int]:
        """The window's two ends while each loop covers the range given."""
        start, stop = ranges[self.loop]
        num, den = self.ratio.numerator, self.ratio.denominator
        low = start * num // den - self.before  # many times faster than by fractions
        high = stop * num // den + self.after
        return max(0, low), min(self.size, high)


class Bound(NamedTuple):
    """An integer that follows a window [lo, hi): `lo * low + hi * high + constant`.

    base: a window of the same dimension whose low end is subtracted, for positions
    within it. least, most: limits of the result, where they are given.
    """

    window: Window
    low: int = -1
    high: int = 1
    constant: int = 0
    least: int | None = None
    most: int | None = None
    base: Window | None = None

    def at(self, ranges: Ranges) -> int:
        """Its value while each loop covers the range given."""
        low, high = self.window.at(ranges)
        value = low * self.low + high * self.high + self.constant
        if self.base is not None:
            value -= self.base.at(ranges)[0]
        if self.least is not None:
            value = max(value, self.least)
        return value if self.most is None else min(value, self.most)


def extent(window: Window) -> Bound:
    """The length of a window: what an operator's size argument becomes in a loop."""
    return Bound(window)


@dataclass(slots=True, eq=False)
class Op:
    """One call of `target`. Its result is the value `name`: a tensor, or several.

    args, kwargs: as the target takes them, with Ref for values and, inside a loop,
    Bound for integers that follow an iteration. line: `file:line` of the source.
    """

    name: str
    target: Callable[..., Any]
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument] = field(default_factory=dict)
    line: str = ""
    _key: str | None = field(default=None, init=False, repr=False)
    _taken: list[str] | None = field(default=None, init=False, repr=False)

    @property
    def key(self) -> str:
        """The operator's name without its overload, as in ``aten.softmax``."""
        if self._key is None:
            self._key = key_of(self.target)
        return self._key

    def operands(self) -> list[str]:
        """Names of the values it takes, in the order of its arguments."""
        if self._taken is None:  # cached: it never changes
            self._taken = list(refs((self.args, self.kwargs)))
        return self._taken


@dataclass(slots=True, eq=False)
class Output:
    """A value of a loop's body, written chunk by chunk into a buffer.

    buffer: the value's name outside the loop. dim, window: where an iteration's
    result goes. order: the buffer's dimensions from the outermost in memory inwards,
    so (0, 2, 1) is stored with the last two transposed. into: a value that dies here
    and whose memory the buffer is; None for memory of its own. inside: whether the
    buffer is a view of the slice that the loop around this one writes.
    """

    inner: str
    buffer: str
    dim: int
    window: Window
    order: tuple[int, ...]
    into: str | None = None
    inside: bool = False

    @property
    def owned(self) -> bool:
        """Whether the buffer is memory of its own."""
        return self.into is None and not self.inside


@dataclass(slots=True, eq=False)
class Total:
    """A value that every iteration of a loop adds to, as a sum over the iterations.

    The body takes the total so far under the name of the `buffer` that holds it, and
    makes the next one, `inner`. start: what it is before the first iteration: a number,
    or the Ref of a value outside that is broadcast to it. dim: the dimension that the
    loop reduces. into: that value, if it dies here and its memory is the buffer.
    """

    inner: str
    buffer: str
    start: Argument
    dim: int
    into: str | None = None

    @property
    def owned(self) -> bool:
        """Whether the buffer is memory of its own."""
        return self.into is None


class Input(NamedTuple):
    """What a loop's body sees of a value outside, cut to a window of `dim`."""

    inner: str
    outer: str
    dim: int
    window: Window


@dataclass(slots=True, eq=False)
class Loop:
    """Operators run chunk by chunk: [0, step), [step, 2 step), … up to `extent`.

    The last chunk may be shorter. Values of outside that the body takes whole keep
    their names; those in `inputs` are cut. The body's own outputs are not used.
    totals: results that no iteration makes a slice of, but all together.
    """

    name: str
    body: Program
    inputs: list[Input]
    outputs: list[Output]
    extent: int
    step: int
    line: str = ""
    totals: list[Total] = field(default_factory=list)
    _taken: list[str] | None = field(default=None, init=False, repr=False)

    def made(self) -> list[Output | Total]:
        """All of its results."""
        return [*self.outputs, *self.totals]

    def operands(self) -> list[str]:
        """Names of the values outside that it takes, each once.

        A value into whose memory a result goes is one of `inputs`.
        """
        if self._taken is None:
            cut = (entry.outer for entry in self.inputs)
            starts = refs([total.start for total in self.totals])
            self._taken = list(dict.fromkeys((*cut, *starts, *self.wholes())))
        return self._taken

    def wholes(self) -> list[str]:
        """Names of the values outside that the body takes as they are, each once."""
        made = {entry.inner for entry in self.inputs}
        made.update(total.buffer for total in self.totals)
        taken: dict[str, None] = {}
        for op in self.body.ops:
            for name in op.operands():
                if name not in made:
                    taken.setdefault(name)
            made.update(results(op))
        return list(taken)


Step = Op | Loop


@dataclass(slots=True, eq=False)
class Program:
    """Operators and loops in order. See `memplan.graph.liveness` for their memory.

    inputs: values that the caller passes. constants: value -> name of the parameter or
    buffer that holds it. outputs: any nest of Ref and plain values.
    metas: every value's Meta, or a tuple of them for operators with several results.
    roots: the storage that a value lies in, named by the value that made it, as in
    ``mm``, or ``split[1]`` for the second of several; of a tuple, a tuple.
    ranges: for a loop's body, the iteration whose shapes the metas are, of this loop
    and of those around it; a full one, and not the first where there are several.
    modules: by an operator's name, the innermost module that ran it: its path in the
    model, or its class where that is the model itself.
    totals: of a loop's body, each total that it takes, and the operator whose result is
    the next one: it may write over the total.
    """

    inputs: list[str]
    constants: dict[str, str]
    ops: list[Step]
    outputs: Argument
    metas: dict[str, Metas]
    roots: dict[str, Roots]
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    moving: dict[str, dict[int, Window]] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    totals: dict[str, str] = field(default_factory=dict)


UNTAGGED = {"aten.hardswish"}  # torch's mark for element-wise operators is missing


def key_of(target: Callable[..., object]) -> str:
    """A target's name without its overload: ``aten.add``, or a function's name."""
    packet = getattr(target, "overloadpacket", None)
    if packet is not None:
        return str(packet)
    return str(getattr(target, "__name__", target))


def is_pointwise(op: Op) -> bool:
    """Whether each element of the result is made of one element of each operand."""
    import torch

    tags = getattr(op.target, "tags", ())
    return torch.Tag.pointwise in tags or op.key in UNTAGGED


def refs(value: Argument) -> Iterator[str]:
    """Names in a nest of tuples, lists and dicts, in order, each time they stand."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, Bound | str):
        return
    elif isinstance(value, tuple | list):
        for item in value:
            yield from refs(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from refs(item)
    elif isinstance(value, slice):
        yield from refs((value.start, value.stop, value.step))


_PLACES = Ref, Bound


def mapped(value: Argument, change: Callable[[Any], Argument]) -> Argument:
    """The same nest with `change` applied to every Ref and Bound in it."""
    if isinstance(value, _PLACES):
        return change(value)
    if isinstance(value, tuple):
        return tuple(mapped(item, change) for item in value)
    if isinstance(value, list):
        return [mapped(item, change) for item in value]
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    return value


def placed(body: Program) -> set[str]:
    """The results of loops in a loop's body that are where that loop keeps them."""
    loops = [step for step in body.ops if isinstance(step, Loop)]
    return {each.buffer for loop in loops for each in loop.outputs if each.inside}


def unused(name: str, *programs: Program) -> str:
    """The name, or one like it, that no value of the programs has."""
    found, count = name, 1
    while any(found in program.metas for program in programs):
        count += 1
        found = f"{name}{count}"
    return found


def results(step: Step) -> list[str]:
    """Names of the values that an operator or a loop makes."""
    if isinstance(step, Op):
        return [step.name]
    return [each.buffer for each in step.made()]
