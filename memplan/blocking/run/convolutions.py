"""Convolutions of any rank, dilated, grouped, transposed, as layers of two dimensions.

A layer has columns, rows, a window over them and a stride; the rest is put into these:

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
from collections.abc import Iterator
from dataclasses import dataclass, replace

from memplan.blocking.nest.layer import Layer, columns
from memplan.blocking.run.products import Reading

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
    return Reading(((layer, 1),))


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
