"""Executes a loop nest over integers, with a buffer for each run of loops that use a
tensor again, and counts what passes through every buffer.

Nothing is taken from memplan's counts: a buffer holds whatever the loops inside it
touch, is refilled when that set of elements changes, and refuses to give others. It may
also be asked for buffers elsewhere: `ends` are the numbers of loops inside of each, or,
of one that slides along the next loop, `Sliding` with that number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np

from memplan.blocking.nest.layer import DIMS, INDEXED_BY, Layer, Tensor
from memplan.blocking.nest.nest import Nest

Ranges: TypeAlias = Mapping[str, tuple[int, int]]  # half-open, by dimension
Elements: TypeAlias = frozenset[int]


class Sliding(NamedTuple):
    """A buffer with so many loops inside, which slides along the next one."""

    inside: int


Ends: TypeAlias = Mapping[Tensor, Sequence[int | Sliding]]

LETTERS = {"Fw": "w", "Fh": "h"}
RUNS = {
    Tensor.INPUT: r"K+|[wh][whK]*",  # a window that moves ends what K began
    Tensor.KERNEL: r"[XYB]+",
    Tensor.OUTPUT: r"[Cwh]+",
}


class MissError(AssertionError):
    """A buffer was asked for an element that is not in its tile."""


class Row(NamedTuple):
    """Elements of the largest tile, and elements that passed."""

    elements: int
    reads: int
    writes: int
    fills: int
    drains: int


class Memory:
    """A buffer and the one outside it; main memory, where there is none."""

    def __init__(self, outer: Memory | None, written: bool) -> None:
        self.outer, self.written = outer, written
        self.inner: Memory | None = None
        self.tile: Elements = frozenset()
        self.held: dict[int, int] = {}
        self.elements = self.reads = self.writes = self.fills = self.drains = 0
        if outer is not None:
            outer.inner = self

    def read(self, wanted: Elements) -> dict[int, int]:
        """Their values; of results, only of those that were begun."""
        if not wanted <= self.tile:
            raise MissError(f"{sorted(wanted - self.tile)} are not in the tile")
        found = {e: self.held[e] for e in wanted if not self.written or e in self.held}
        self.reads += len(found)
        return found

    def write(self, values: dict[int, int]) -> None:
        """Takes results from what is inside it."""
        if not values.keys() <= self.tile:
            raise MissError(f"{sorted(values.keys() - self.tile)} are not in the tile")
        self.writes += len(values)
        self.held.update(values)

    def visit(self, tile: Elements) -> None:
        """The loops inside it are about to run, and will touch `tile`."""
        if tile == self.tile or self.outer is None:
            return
        if self.written:
            self.drain()
        self.tile, self.elements = tile, max(self.elements, len(tile))
        self.held = self.outer.read(tile)
        self.fills += len(self.held)

    def drain(self) -> None:
        """Gives its results back, after those inside it have given it theirs."""
        if self.inner is not None:
            self.inner.drain()
        if self.outer is not None:
            self.outer.write(self.held)
            self.drains += len(self.held)
            self.held, self.tile = {}, frozenset()

    @property
    def row(self) -> Row:
        """What was counted."""
        return Row(self.elements, self.reads, self.writes, self.fills, self.drains)


class Ring(Memory):
    """A buffer of the input whose addresses go round: a column, or row, lies where its
    number modulo those of a tile says, and stays there until another one needs the
    place.

    places: of an element the number along the axis, and whatever else tells it.
    """

    def __init__(
        self, outer: Memory, places: Callable[[int], tuple[int, object]]
    ) -> None:
        super().__init__(outer, written=False)
        self._places = places
        self._width = 0
        self._slots: dict[tuple[int, object], tuple[int, int]] = {}

    def begin(self) -> None:
        """The loop that it slides along begins anew: nothing that it holds counts."""
        self._slots.clear()
        self.tile = frozenset()

    def visit(self, tile: Elements) -> None:
        """Takes in what the tile before did not have."""
        assert self.outer is not None
        if not self._width:  # the first tile is as large as any
            self._width = len({self._places(e)[0] for e in tile})
            self.elements = len(tile)
        for element, value in self.outer.read(tile - self.tile).items():
            address = self._address(element)
            if self._slots.get(address, (-1, 0))[0] in tile:
                raise MissError(f"{element} has no place beside the rest of its tile")
            self._slots[address] = element, value
            self.fills += 1
        assert len(self._slots) <= self.elements
        self.tile = tile

    def read(self, wanted: Elements) -> dict[int, int]:
        """Their values, from their places."""
        found = {}
        for element in wanted:
            held, value = self._slots.get(self._address(element), (-1, 0))
            if held != element or element not in self.tile:
                raise MissError(f"{element} is not in the ring")
            found[element] = value
        self.reads += len(found)
        return found

    def _address(self, element: int) -> tuple[int, object]:
        along, rest = self._places(element)
        return along % self._width, rest


class Machine:
    """Buffers of all tensors, their values, and the loops that work on them."""

    def __init__(self, nest: Nest, seed: int = 0, ends: Ends | None = None) -> None:
        self.nest, self.layer = nest, nest.layer
        draw = np.random.default_rng(seed).integers
        self.values = {t: draw(1, 10, shape(self.layer, t)) for t in Tensor}
        if not self.layer.kernel:
            self.values[Tensor.KERNEL][:] = 1
        self.labels = {
            t: np.arange(v.size).reshape(v.shape) for t, v in self.values.items()
        }
        self.ending: dict[int, list[tuple[Tensor, Memory]]] = {}
        self.swept: dict[int, list[Ring]] = {}
        where = ends or {t: self._runs(t) for t in self.layer.tensors}
        self.memories = {t: self._memories(t, where[t]) for t in self.layer.tensors}
        self._touched: dict[object, Elements] = {}

    def _runs(self, tensor: Tensor) -> list[int]:
        letters = "".join(LETTERS.get(loop.dim, loop.dim) for loop in self.nest.loops)
        return [run.end() for run in re.finditer(RUNS[tensor], letters)]

    def _memories(self, tensor: Tensor, ends: Sequence[int | Sliding]) -> list[Memory]:
        """Innermost first, main memory last; each is visited where its run ends."""
        written = tensor is Tensor.OUTPUT
        main = Memory(None, written)
        main.tile = frozenset(range(self.values[tensor].size))
        if not written:
            main.held = dict(enumerate(self.values[tensor].ravel().tolist()))
        made = [main]
        for end in reversed(ends):
            inside = end.inside if isinstance(end, Sliding) else end
            if isinstance(end, Sliding):
                ring = Ring(made[0], self._along(self.nest.loops[inside].dim))
                self.swept.setdefault(inside + 1, []).append(ring)
                made.insert(0, ring)
            else:
                made.insert(0, Memory(made[0], written))
            self.ending.setdefault(inside, []).append((tensor, made[0]))
        return made

    def _along(self, dim: str) -> Callable[[int], tuple[int, object]]:
        """The column (X) or row (Y) of an element of the input, and all else of it."""
        rows = self.values[Tensor.INPUT].shape[-1]
        columns = self.values[Tensor.INPUT].shape[-2]

        def places(element: int) -> tuple[int, object]:
            rest, row = divmod(element, rows)
            rest, column = divmod(rest, columns)
            return (column, (rest, row)) if dim == "X" else (row, (rest, column))

        return places

    def execute(self) -> None:
        """Runs all loops; raises MissError, or AssertionError if a result is wrong."""
        whole = {dim: (0, self.layer.size(dim)) for dim in DIMS}
        self._run(len(self.nest.loops), whole)
        main = self.memories[Tensor.OUTPUT][-1]
        main.drain()
        results = convolution(self.layer, self.values)
        assert main.held == dict(enumerate(results.ravel().tolist()))

    def _run(self, level: int, ranges: Ranges) -> None:
        for ring in self.swept.get(level, ()):
            ring.begin()
        for tensor, memory in self.ending.get(level, ()):
            memory.visit(self.touched(tensor, ranges))
        if level == 0:
            self._multiply(ranges)
            return
        loop = self.nest.loops[level - 1]
        lower, upper = ranges[loop.dim]
        for start in range(lower, upper, loop.inner):
            part = (start, min(start + loop.inner, upper))
            self._run(level - 1, {**ranges, loop.dim: part})

    def _multiply(self, ranges: Ranges) -> None:
        """What the datapath does at once: every operand is read once."""
        read = {
            t: own[0].read(self.touched(t, ranges)) for t, own in self.memories.items()
        }
        inputs, sums = read[Tensor.INPUT], read[Tensor.OUTPUT]
        weights = read.get(Tensor.KERNEL)
        wide, high = self.layer.stride
        at_input, at_weight, at_output = (self.labels[t].item for t in Tensor)
        for g, b, k, c, x, y, fw, fh in product(*(range(*ranges[d]) for d in ORDER)):
            term = inputs[at_input(g, b, c, x * wide + fw, y * high + fh)]
            if weights is not None:
                term *= weights[at_weight(g, k, c, fw, fh)]
            result = at_output(g, b, k, x, y)
            sums[result] = sums.get(result, 0) + term
        self.memories[Tensor.OUTPUT][0].write(sums)

    def touched(self, tensor: Tensor, ranges: Ranges) -> Elements:
        """The elements that these iterations read or write."""
        key = (tensor, *(ranges[dim] for dim in WALKED[tensor]))
        if key not in self._touched:
            labels = [0]
            for axis, size in zip(AXES[tensor], shape(self.layer, tensor), strict=True):
                places = self._places(axis, ranges)
                labels = [label * size + place for label in labels for place in places]
            self._touched[key] = frozenset(labels)
        return self._touched[key]

    def _places(self, axis: str, ranges: Ranges) -> Iterable[int]:
        """Along one axis of a tensor, what these iterations touch."""
        if axis not in MOVED:
            return range(*ranges[axis])
        (image, window), stride = MOVED[axis], self.layer.stride[axis == "row"]
        return {
            place * stride + part
            for place in range(*ranges[image])
            for part in range(*ranges[window])
        }


ORDER = ("G", "B", "K", "C", "X", "Y", "Fw", "Fh")
WALKED = {t: [dim for dim in DIMS if dim in INDEXED_BY[t]] for t in Tensor}
MOVED = {"column": ("X", "Fw"), "row": ("Y", "Fh")}
AXES = {
    Tensor.INPUT: ("G", "B", "C", "column", "row"),
    Tensor.KERNEL: ("G", "K", "C", "Fw", "Fh"),
    Tensor.OUTPUT: ("G", "B", "K", "X", "Y"),
}


def shape(layer: Layer, tensor: Tensor) -> tuple[int, ...]:
    """Of the whole tensor, with the columns and rows that a stride skips."""
    column = (layer.X - 1) * layer.stride[0] + layer.Fw
    row = (layer.Y - 1) * layer.stride[1] + layer.Fh
    sizes = {"column": column, "row": row, **{dim: layer.size(dim) for dim in DIMS}}
    return tuple(sizes[axis] for axis in AXES[tensor])


def convolution(layer: Layer, values: Mapping[Tensor, np.ndarray]) -> np.ndarray:
    """The layer's result, without any blocking."""
    wide, high = layer.stride
    total = np.zeros(shape(layer, Tensor.OUTPUT), dtype=np.int64)
    for fw, fh in product(range(layer.Fw), range(layer.Fh)):
        seen = values[Tensor.INPUT][..., fw:, fh:][..., ::wide, ::high]
        seen = seen[..., : layer.X, : layer.Y]
        weights = values[Tensor.KERNEL][..., fw, fh]
        total += np.einsum("gbcxy,gkc->gbkxy", seen, weights)
    return total


def trace(
    nest: Nest, seed: int = 0, ends: Ends | None = None
) -> dict[Tensor, list[Row]]:
    """Counts of each tensor's buffers, innermost first, and then of main memory. ends:
    where each tensor has buffers, inside out; None for one of each run."""
    machine = Machine(nest, seed, ends)
    machine.execute()
    return {t: [memory.row for memory in of] for t, of in machine.memories.items()}
