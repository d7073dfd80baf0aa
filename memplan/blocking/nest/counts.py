"""Exact accesses of every buffer of a loop nest (paper, section 3.2, corrected).

A buffer belongs to a run of adjacent loops that use one tensor again; it holds what the
loops inside the run touch. Against the paper's Table 2: each level fetches its own
halo, n partial sums are written n times and read n - 1 times, and the first fetch from
main memory is counted. Fetches are an upper bound where tiles that follow each other
coincide, for each is counted. That can be in two places: where both a window loop and a
loop along the image lie outside a run, and one moves the input's tile back by what the
other moves it on; and, where extents do not divide each other, in an edge tile in which
the loops next outside a run have a single trip. Otherwise every count is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memplan.blocking.nest.layer import INDEXED_BY, Tensor, elements, footprint
from memplan.blocking.nest.nest import Nest

ELEMENT_BYTES = 2  # 16-bit words, throughout the paper
_WINDOW = ("Fw", "Fh")


@dataclass(frozen=True)
class Buffer:
    """A buffer for loops [begin, end), and the elements that pass through it.

    elements: its size; reads: those it serves to what is inside it, writes: those it
    takes from there; fills: those it takes from outside, drains: those it gives back.
    """

    begin: int
    end: int
    elements: int
    reads: int
    writes: int
    fills: int
    drains: int

    @property
    def nbytes(self) -> int:
        """What it takes up."""
        return ELEMENT_BYTES * self.elements

    @property
    def inward(self) -> int:
        """Elements exchanged with whatever lies inside it."""
        return self.reads + self.writes

    @property
    def outward(self) -> int:
        """Elements exchanged with whatever lies outside it."""
        return self.fills + self.drains

    @property
    def reuses(self) -> bool:
        """Whether it takes any traffic off what lies outside it."""
        return self.outward < self.inward


@dataclass(frozen=True)
class Traffic:
    """One tensor's buffers, innermost first. alpha: elements of the whole tensor;
    demand: elements that the datapath reads and writes; main: those that reach main
    memory, of which `compulsory` must, however the loops are blocked."""

    tensor: Tensor
    alpha: int
    demand: int
    buffers: tuple[Buffer, ...]
    main: int

    @property
    def compulsory(self) -> int:
        """Every element once: read if it is an operand, written if it is a result."""
        return self.alpha

    @property
    def used(self) -> tuple[Buffer, ...]:
        """The buffers without those that save nothing."""
        return tuple(buffer for buffer in self.buffers if buffer.reuses)


def count(nest: Nest) -> dict[Tensor, Traffic]:
    """Accesses of each tensor of the nest's layer, with every buffer it can have."""
    return {tensor: _traffic(nest, tensor) for tensor in nest.layer.tensors}


def runs(nest: Nest, tensor: Tensor) -> Iterator[tuple[int, int]]:
    """Half-open ranges of adjacent loops that use what `tensor` holds inside them.

    Of the input: once a window loop moves its halo, what K used again is another tile,
    so a run that K begins takes K alone.
    """
    loops, position = nest.loops, 0
    again = set("XYCKB") | set(_WINDOW)
    again -= INDEXED_BY[tensor]
    while position < len(loops):
        taken = again | set(_WINDOW) if tensor is Tensor.INPUT else again
        if loops[position].dim not in taken:
            position += 1
            continue
        begin = position
        if tensor is Tensor.INPUT and loops[begin].dim == "K":
            taken = {"K"}
        while position < len(loops) and loops[position].dim in taken:
            position += 1
        yield begin, position


def _traffic(nest: Nest, tensor: Tensor) -> Traffic:
    layer, base = nest.layer, nest.extents(0)
    alpha = elements(layer, tensor)
    written = tensor is Tensor.OUTPUT
    below = nest.fetched(tensor, base, base)
    demand = 2 * below - alpha if written else below
    reads, writes = (below - alpha, below) if written else (below, 0)
    buffers = []
    for begin, end in runs(nest, tensor):
        inner, outer = nest.extents(begin), nest.extents(end)
        tile = inner | {dim: outer[dim] for dim in _WINDOW}
        moved = nest.fetched(tensor, inner, outer)
        fills, drains = (moved - alpha, moved) if written else (moved, 0)
        size = footprint(layer, tensor, tile)
        buffers.append(Buffer(begin, end, size, reads, writes, fills, drains))
        reads, writes = fills, drains
    return Traffic(tensor, alpha, demand, tuple(buffers), reads + writes)
