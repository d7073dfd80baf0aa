"""Operations as layers, and the layers of a whole model.

A layer has columns, rows, a window over them and a stride. Other operations are put
into these:

- Dilation: outputs that are `dilation` apart read inputs that no others read, so they
  are images of a batch. Where dilation does not divide the outputs, images differ by
  one, and there are several layers.
- A third dimension: where outputs along an axis share no inputs (a window of one, or a
  stride as wide as the window), they are images, and the window is channels. Where no
  axis is so, one is taken all the same; then inputs are counted once for every
  position of its window that they are read in.
- Transposed, where no two inputs reach the same output: a matrix product. Where a
  stride fits: a convolution of stride 1 for each place within a stride. Otherwise a
  matrix product whose results are added up where they meet.

Multiply-adds are the operation's own in every case.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from memplan.blocking.nest.layer import MAX_SIZE, Layer, columns


@dataclass(frozen=True)
class Reading:
    """What one operation comes to: layers, each with how often it is run.

    note: how they differ from the operation, where they do not move the same elements;
    their multiply-adds are those of the operation in any case.
    """

    parts: tuple[tuple[Layer, int], ...]
    note: str = ""

    @property
    def macs(self) -> int:
        """Multiply-adds of all layers with weights; of others the operations are no
        multiply-adds."""
        return sum(layer.macs * count for layer, count in self.parts if layer.kernel)

    @property
    def without_weights(self) -> Reading:
        """The same windows reduced without weights: pooling."""
        parts = ((replace(layer, kernel=False), n) for layer, n in self.parts)
        return replace(self, parts=tuple(parts))


def once(layer: Layer) -> Reading:
    """An operation that is one layer."""
    return Reading(((layer, 1),))


def product(rows: int, inner: int, columns: int, groups: int = 1) -> Layer:
    """`groups` products of (rows, inner) and (inner, columns) matrices, none of which
    shares anything with another.

    Rows are the batch; those beyond MAX_SIZE are pixels, too, which is the same.
    Raises InputError where a size is 0 or too large.
    """
    pixels = 1
    if rows > MAX_SIZE:
        least = -(-rows // MAX_SIZE)
        pixels = next((n for n in range(least, MAX_SIZE) if rows % n == 0), 1)
    return Layer("", pixels, 1, inner, columns, B=rows // pixels, G=groups)


def matrix_product(left: Sequence[int], right: Sequence[int]) -> Layer:
    """Shapes (..., rows, inner) and (..., inner, columns), broadcast over the others.

    Where only one of the two has a dimension, the other is used again along it.
    """
    outer = max(len(left), len(right)) - 2
    lefts, rights = ([1] * (outer + 2 - len(own)) + [*own] for own in (left, right))
    rows, inner, columns, groups = lefts[-2], lefts[-1], rights[-1], 1
    for ours, theirs in zip(lefts[:outer], rights[:outer], strict=True):
        if ours == theirs:
            groups *= ours
        elif theirs == 1:
            rows *= ours
        else:
            columns *= theirs
    return product(rows, inner, columns, groups)


def attention(
    query: Sequence[int], key: Sequence[int], value: Sequence[int]
) -> Reading:
    """Queries by keys, and what comes of it by values; shapes (..., heads, length,
    width). Where there are fewer keys' heads, each serves several of the queries'.

    A mask saves nothing here, nor does causality: all products are counted.
    """
    groups = math.prod(key[:-2])
    rows = math.prod(query[:-1]) // groups
    scores = product(rows, query[-1], key[-2], groups)
    taken = product(rows, key[-2], value[-1], groups)
    note = "attention, counted as two products: what lies between them is moved, too"
    return Reading(((scores, 1), (taken, 1)), note)


def recurrent(gates: int, steps: int, batch: int, inputs: int, hidden: int) -> Reading:
    """One layer and direction: all steps' inputs at once, then step after step."""
    first = product(steps * batch, inputs, gates * hidden)
    return Reading(((first, 1), (product(batch, hidden, gates * hidden), steps)))


_DIMENSIONS = 2  # of a layer's image


@dataclass(frozen=True)
class Axis:
    """One dimension: outputs, the window's elements, and how far apart these are.

    inputs: of a transposed convolution, whose stride is that of its outputs.
    """

    outputs: int
    window: int
    stride: int = 1
    dilation: int = 1
    inputs: int = 0

    @property
    def plain(self) -> Axis:
        """The same work with stride and dilation that have no common divisor: inputs
        in between are not read."""
        if self.window == 1:
            return replace(self, dilation=1)
        common = math.gcd(self.stride, self.dilation)
        stride, dilation = self.stride // common, self.dilation // common
        return replace(self, stride=stride, dilation=dilation)

    @property
    def images(self) -> tuple[tuple[int, int], ...]:
        """Lengths of the parts that share no inputs, and how many there are; of a plain
        axis."""
        length, longer = divmod(self.outputs, self.dilation)
        parts = ((length + 1, longer), (length, self.dilation - longer))
        return tuple((size, count) for size, count in parts if size and count)

    @property
    def read_again(self) -> float:
        """Inputs that outputs one by one take, to those that there are; of a plain
        axis."""
        there = sum(
            columns(length, self.window, self.stride) * count
            for length, count in self.images
        )
        return self.outputs * self.window / max(there, 1)

    @property
    def meets(self) -> bool:
        """Whether, transposed, two inputs reach the same output."""
        return self.inputs > 1 and (self.window - 1) * self.dilation >= self.stride

    @property
    def fits(self) -> bool:
        """Whether, transposed, every place within a stride has an output for each
        input, and each of its weights is used for each."""
        return self.dilation == 1 and self.outputs == self.stride * self.inputs


@dataclass(frozen=True)
class Convolution:
    """channels, kernels: inputs and outputs of one group; axes: the last is that of
    columns."""

    batch: int
    channels: int
    kernels: int
    groups: int
    axes: tuple[Axis, ...]
    transposed: bool = False

    @property
    def macs(self) -> int:
        """Multiply-adds; padding counts as input, what a transposed one crops too."""
        sizes = (a.inputs if self.transposed else a.outputs for a in self.axes)
        window = math.prod(axis.window for axis in self.axes)
        each = self.channels * self.kernels * self.groups * window
        return self.batch * math.prod(sizes) * each

    def read(self) -> Reading:
        """As layers. Raises InputError where one has a size of 0, or too large."""
        if not self.transposed:
            return _forward(self)
        if not any(axis.meets for axis in self.axes):
            return _as_product(self)
        if all(axis.fits for axis in self.axes):
            return _by_place(self)
        found = _as_product(self)
        return replace(
            found,
            note="a transposed convolution, counted as a matrix product; adding its "
            "results up where they meet is left out",
        )


def _forward(whole: Convolution) -> Reading:
    batch, channels, notes = whole.batch, whole.channels, []
    axes = [axis.plain for axis in whole.axes]
    while len(axes) > _DIMENSIONS:
        axis = min(axes, key=lambda one: one.read_again)
        axes.remove(axis)
        batch, channels = batch * axis.outputs, channels * axis.window
        if axis.read_again > 1:
            notes.append(
                f"a convolution in {len(whole.axes)} dimensions, one of which is "
                f"counted as channels: its inputs {axis.read_again:.2g} times"
            )
    axes = [Axis(1, 1)] * (_DIMENSIONS - len(axes)) + axes
    y, x = axes
    parts = tuple(
        (
            Layer(
                "",
                X=wide,
                Y=high,
                C=channels,
                K=whole.kernels,
                Fw=x.window,
                Fh=y.window,
                B=batch * across * down,
                G=whole.groups,
                stride=(x.stride, y.stride),
            ),
            1,
        )
        for (high, down), (wide, across) in itertools.product(y.images, x.images)
    )
    if len(parts) > 1:
        notes.append(
            f"a dilated convolution, in {len(parts)} layers, each of which fetches the "
            "weights"
        )
    return Reading(parts, "; ".join(notes))


def _as_product(whole: Convolution) -> Reading:
    """Each input by all weights of its channel."""
    *outer, high, wide = [1, 1, *(axis.inputs for axis in whole.axes)]
    window = math.prod(axis.window for axis in whole.axes)
    layer = Layer(
        "",
        X=wide,
        Y=high,
        C=whole.channels,
        K=whole.kernels * window,
        B=whole.batch * math.prod(outer),
        G=whole.groups,
    )
    return once(layer)


def _by_place(whole: Convolution) -> Reading:
    """For each place within a stride, what reaches it: a convolution of stride 1."""
    found: Counter[Layer] = Counter()
    notes: dict[str, None] = {}
    for windows, count in _places(whole.axes):
        axes = tuple(
            Axis(axis.inputs, window)
            for axis, window in zip(whole.axes, windows, strict=True)
        )
        one = _forward(replace(whole, axes=axes, transposed=False))
        notes.update(dict.fromkeys(filter(None, [one.note])))
        for layer, times in one.parts:
            found[layer] += times * count
    if found.total() > 1:
        notes[
            f"a transposed convolution, counted as {found.total()} convolutions, each "
            "of which fetches the input"
        ] = None
    return Reading(tuple(found.items()), "; ".join(notes))


def _places(axes: tuple[Axis, ...]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Windows of the places within a stride that any weight reaches, and how many."""
    each = []
    for axis in axes:
        reach = [-(-(axis.window - at) // axis.stride) for at in range(axis.stride)]
        each.append(Counter(window for window in reach if window > 0).items())
    for chosen in itertools.product(*each):
        yield tuple(w for w, _ in chosen), math.prod(n for _, n in chosen)


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
