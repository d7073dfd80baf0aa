"""Energies of many nests of one loop order at once.

The same numbers as `Objective.evaluate` gives, for nests whose extents divide each
other, and the sizes of the layer, which are rounded up to what the datapath does at
once. Loops are walked inner to outer with one state a row, so that loops of a single
trip may be left in: they neither open a run nor end it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from memplan.arrays import Float64Array, Int64Array
from memplan.blocking.cost.many_pricing import Closing, Rows, pricing
from memplan.blocking.cost.objective import Objective
from memplan.blocking.nest.layer import (
    DIMS,
    INDEXED_BY,
    Layer,
    Tensor,
    elements,
    footprint,
)
from memplan.blocking.nest.precision import WORD_BITS

_CHUNK = 4096  # rows at once: what fits a second-level cache
_WINDOW = ("Fw", "Fh")
_Passed = TypeVar("_Passed", float, Float64Array)
_END = ""  # in place of a dimension, outside all loops


@dataclass(frozen=True)
class _Step:
    """One loop of every row: its dimension, and the rows in which it has more than one
    trip; inner: extents of the tile inside it, and visits: how often that comes."""

    dim: str
    active: Rows
    inner: Mapping[str, Float64Array]
    visits: Float64Array


@dataclass(frozen=True)
class _Run:
    """The run that each row is in: what its buffer holds, but for an input's window."""

    open: Rows
    by_kernels: Rows  # whether a K loop began it; of an input
    wide: Float64Array
    high: Float64Array
    rest: Float64Array


class BatchEvaluator:
    """Evaluates nests of one layer and datapath against one objective."""

    def __init__(
        self, layer: Layer, unroll: Mapping[str, int], objective: Objective
    ) -> None:
        self.layer = layer.padded(unroll)
        self.base = {dim: min(unroll.get(dim, 1), layer.size(dim)) for dim in DIMS}
        self._pricing = pricing(objective)
        self._precision = objective.precision
        self._below: dict[Tensor, float] = {}
        self._alpha: dict[Tensor, float] = {}
        tiles = 1
        for dim in DIMS:
            tiles *= self.layer.size(dim) // self.base[dim]
        self._tiles = float(tiles)
        for tensor in self.layer.tensors:
            below = tiles * footprint(self.layer, tensor, self.base)
            self._below[tensor] = float(below)
            self._alpha[tensor] = float(elements(self.layer, tensor))

    def __call__(self, order: Sequence[str], extents: Int64Array) -> Float64Array:
        """pJ of each nest, shape (n,).

        order: dimensions of the loops, innermost first; extents: shape (loops, n),
        cumulative; each a multiple of the extent inside it, and the last of every
        dimension its size, so that each column covers the layer. Nothing is checked.
        """
        n = extents.shape[1]
        found = np.empty(n)
        for begin in range(0, n, _CHUNK):
            part = extents[:, begin : begin + _CHUNK]
            found[begin : begin + _CHUNK] = self._energies(order, part)
        return found

    def _energies(self, order: Sequence[str], extents: Int64Array) -> Float64Array:
        steps = self._steps(order, extents)
        n = extents.shape[1]
        return self._pricing(
            {t: self._demand(t) for t in self.layer.tensors},
            {t: self._closings(t, steps) for t in self.layer.tensors},
            n,
        )

    def _demand(self, tensor: Tensor) -> float:
        below = self._below[tensor]
        if tensor is Tensor.OUTPUT:
            return self._words(tensor, 2 * below - self._alpha[tensor])
        return self._words(tensor, below)

    def _words(self, tensor: Tensor, passed: _Passed) -> _Passed:
        """The elements that pass a boundary in units of 16 bits."""
        held, last = self._precision.held(tensor), self._precision.last(tensor)
        if held == last == WORD_BITS:
            return passed
        return (held * passed - (held - last) * self._alpha[tensor]) / WORD_BITS

    def _steps(self, order: Sequence[str], extents: Int64Array) -> list[_Step]:
        """The loops, and one that ends them all."""
        n = extents.shape[1]
        inner = {dim: np.full(n, float(self.base[dim])) for dim in DIMS}
        visits = np.full(n, self._tiles)
        steps = []
        for dim, row in zip(order, extents, strict=True):
            outer = row.astype(np.float64)
            trips = outer / inner[dim]
            active = trips > 1
            if not active.any():
                continue
            steps.append(_Step(dim, True if active.all() else active, inner, visits))
            inner, visits = inner | {dim: outer}, visits / trips
        return [*steps, _Step(_END, True, inner, visits)]

    def _closings(self, tensor: Tensor, steps: list[_Step]) -> Iterator[Closing]:
        """The tensor's buffers, inner to outer, each where the run ends."""
        indexed = INDEXED_BY[tensor]
        run: _Run | None = None
        for step in steps:
            window = tensor is Tensor.INPUT and step.dim in _WINDOW
            again = window or (step.dim not in indexed and step.dim != _END)
            if run is not None:
                ends = _both(step.active, run.by_kernels if window else not again)
                if ends is not False:
                    yield self._closing(tensor, run, step, _both(ends, run.open))
                    run = _remaining(run, ends)
            if again:
                run = self._entered(tensor, run, step)

    def _entered(self, tensor: Tensor, run: _Run | None, step: _Step) -> _Run:
        """The rows' runs with `step` in them: begun where there was none."""
        e = step.inner
        if tensor is Tensor.INPUT:
            wide, high, rest = e["X"], e["Y"], e["C"] * e["B"] * e["G"]
        elif tensor is Tensor.KERNEL:
            wide, high, rest = e["Fw"], e["Fh"], e["C"] * e["K"] * e["G"]
        else:
            wide, high, rest = e["X"], e["Y"], e["K"] * e["B"] * e["G"]
        by_kernels = tensor is Tensor.INPUT and step.dim == "K"
        if run is None:
            return _Run(step.active, by_kernels, wide, high, rest)
        if run.open is True:
            return run
        wide = np.where(run.open, run.wide, wide)
        high = np.where(run.open, run.high, high)
        rest = np.where(run.open, run.rest, rest)
        kind = run.by_kernels
        if not (isinstance(kind, bool) and kind == by_kernels):
            kind = np.where(run.open, kind, by_kernels)
        opened: Rows = True
        if step.active is not True:
            opened = run.open | step.active
        return _Run(opened, kind, wide, high, rest)

    def _closing(self, tensor: Tensor, run: _Run, step: _Step, closes: Rows) -> Closing:
        if tensor is Tensor.INPUT:
            wide = _columns(run.wide, step.inner["Fw"], self.layer.stride[0])
            high = _columns(run.high, step.inner["Fh"], self.layer.stride[1])
            size = wide * high * run.rest
        else:
            size = run.wide * run.high * run.rest
        outward = size * step.visits
        if tensor is Tensor.OUTPUT:
            outward = 2 * outward - self._alpha[tensor]
        return Closing(closes, size, self._words(tensor, outward))


def _both(one: Rows, other: Rows) -> Rows:
    """The rows in both; True stands for all of them, and False for none."""
    if one is True or other is False:
        return other
    if other is True or one is False:
        return one
    return one & other


def _remaining(run: _Run, ends: Rows) -> _Run | None:
    """The runs that go on, where the loop that ends others makes a single trip."""
    if ends is True:
        return None
    left = np.logical_not(ends) & run.open
    if not left.any():
        return None
    return replace(run, open=left)


def _columns(count: Float64Array, window: Float64Array, stride: int) -> Float64Array:
    """`layer.columns` of arrays."""
    if stride == 1:
        return count + (window - 1)
    overlap = (count - 1) * stride + window
    return np.where(window >= stride, overlap, count * window)
