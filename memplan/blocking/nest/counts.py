"""Exact accesses of every buffer of a loop nest (paper, section 3.2, corrected).

A buffer belongs to a run of adjacent loops that use one tensor again; it holds what the
loops inside the run touch. Against the paper's Table 2: each level fetches its own
halo, n partial sums are written n times and read n - 1 times, and the first fetch from
main memory is counted.

Of the input there are stripes besides (section 4.2's shifting windows). Along X and Y
tiles that follow each other overlap, where the part of the window inside the loop is
wider than the stride: what both touch would be fetched for each. A stripe is a buffer
of one such loop, and holds all that the loop sweeps over. The rule of section 3.2 knows
no such buffer, so none is placed by rule; it is a choice, and may be left out.

A buffer is filled again, and whole, at every visit with another tile: also where
that overlaps the one before. A memory that shifts, as the paper's register files can,
or whose addresses go round, takes only new columns in. It can have sliding buffers: of
one loop along X or Y each, of the size of the tile inside that loop. In every sweep of
the loop all that it sweeps over passes in once, as into a stripe; when the loop begins
again, the tile is fetched whole. Along the other axis, and where another loop lies
between two sweeps, nothing stays: for both axes there are two buffers, the outer of
which slides with whole stripes of the inner one in it, as a line buffer does.

Fetches are an upper bound where tiles that follow each other coincide, for each is
counted. That can be in two places: where both a window loop and a loop along the image
lie outside a buffer, and one moves the input's tile back by what the other moves it on;
and, where extents do not divide each other, in an edge tile in which the loops next
outside a buffer have a single trip. Otherwise every count is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from memplan.blocking.nest.layer import INDEXED_BY, Tensor, elements, footprint
from memplan.blocking.nest.nest import Nest
from memplan.blocking.nest.precision import WORD_BITS, Precision

_DEFAULT = Precision()
_WINDOW = ("Fw", "Fh")
_IMAGE = ("X", "Y")


@dataclass(frozen=True)
class Buffer:
    """A buffer for loops [begin, end), and the elements that pass through it.

    elements: its size; reads: those it serves to what is inside it, writes: those it
    takes from there; fills: those it takes from outside, drains: those it gives back.
    bits: of an element in it; last_bits: of one that is written for the last time.
    slides: whether it holds the tile inside its one loop, which takes new columns in,
    and not what the loop sweeps over.
    """

    begin: int
    end: int
    elements: int
    reads: int
    writes: int
    fills: int
    drains: int
    bits: int = WORD_BITS
    last_bits: int = WORD_BITS
    slides: bool = False

    @property
    def nbytes(self) -> int:
        """What it takes up."""
        return -(-self.bits * self.elements // 8)

    @property
    def inward(self) -> int:
        """Elements exchanged with whatever lies inside it."""
        return self.reads + self.writes

    @property
    def outward(self) -> int:
        """Elements exchanged with whatever lies outside it."""
        return self.fills + self.drains

    @property
    def inward_words(self) -> float:
        """The same, in units of 16 bits."""
        return words(self.reads, self.writes, self.bits, self.last_bits)

    @property
    def outward_words(self) -> float:
        """The same, in units of 16 bits."""
        return words(self.fills, self.drains, self.bits, self.last_bits)

    @property
    def reuses(self) -> bool:
        """Whether it takes any traffic off what lies outside it."""
        return self.outward < self.inward


@dataclass(frozen=True)
class Traffic:
    """One tensor's buffers, innermost first. alpha: elements of the whole tensor;
    demand: elements that the datapath reads and writes; main: those that reach main
    memory, of which `compulsory` must, however the loops are blocked; bits and
    last_bits: as of its buffers.

    These are counted without stripes, which are optional. stripes: of the input, each
    as if all that lies inside it were kept, and did not slide; sliding: likewise
    buffers that slide, where they were asked for."""

    tensor: Tensor
    alpha: int
    demand: int
    buffers: tuple[Buffer, ...]
    main: int
    bits: int = WORD_BITS
    last_bits: int = WORD_BITS
    stripes: tuple[Buffer, ...] = ()
    sliding: tuple[Buffer, ...] = ()

    @property
    def demand_words(self) -> float:
        """The demand in units of 16 bits."""
        return self._words(self.demand)

    @property
    def compulsory_words(self) -> float:
        """The compulsory accesses in units of 16 bits."""
        return self._words(self.alpha)

    def _words(self, passed: int) -> float:
        """Of elements that pass a boundary: of the output all are partial sums, but for
        one write of each element."""
        narrower = (self.bits - self.last_bits) * self.alpha
        return (self.bits * passed - narrower) / WORD_BITS

    @property
    def compulsory(self) -> int:
        """Every element once: read if it is an operand, written if it is a result."""
        return self.alpha

    @property
    def used(self) -> tuple[Buffer, ...]:
        """The buffers without those that save nothing."""
        return tuple(buffer for buffer in self.buffers if buffer.reuses)

    @property
    def choices(self) -> tuple[Buffer, ...]:
        """Every buffer that a memory may be for, stripes and sliding ones too, inside
        out: no smaller than the one inside it, and what passes out of it no more."""
        every = (*self.buffers, *self.stripes, *self.sliding)
        return tuple(sorted(every, key=lambda one: (one.end, not one.slides)))

    @property
    def served(self) -> tuple[int, int]:
        """Elements that the datapath reads, and those it writes."""
        if self.tensor is not Tensor.OUTPUT:
            return self.demand, 0
        writes = (self.demand + self.alpha) // 2
        return writes - self.alpha, writes


def words(reads: int, writes: int, bits: int, last_bits: int) -> float:
    """Units of 16 bits in so many accesses: what is written more often than read is
    written for the last time."""
    last = max(writes - reads, 0)
    return (bits * (reads + writes - last) + last_bits * last) / WORD_BITS


def count(
    nest: Nest, precision: Precision = _DEFAULT, sliding: bool = False
) -> dict[Tensor, Traffic]:
    """Accesses of each tensor of the nest's layer, with every buffer it can have, and
    the stripes beside them. sliding: and the buffers that slide."""
    return {t: _traffic(nest, t, precision, sliding) for t in nest.layer.tensors}


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


def sweeping(nest: Nest) -> Iterator[int]:
    """Indices of the loops along which the input's tiles overlap."""
    for place, loop in enumerate(nest.loops):
        if loop.dim not in _IMAGE:
            continue
        axis = _IMAGE.index(loop.dim)
        if nest.extents(place)[_WINDOW[axis]] > nest.layer.stride[axis]:
            yield place


def striped(nest: Nest) -> Iterator[int]:
    """Indices of the loops that sweep over a stripe of the input.

    None of a loop that one over K comes next to: the run of that holds the same, and
    for longer.
    """
    outside = [*(loop.dim for loop in nest.loops[1:]), ""]
    yield from (place for place in sweeping(nest) if outside[place] != "K")


def _traffic(
    nest: Nest, tensor: Tensor, precision: Precision, sliding: bool
) -> Traffic:
    wide = precision.held(tensor), precision.last(tensor)
    layer, base = nest.layer, nest.extents(0)
    alpha = elements(layer, tensor)
    written = tensor is Tensor.OUTPUT
    below = nest.fetched(tensor, base, base)
    demand = 2 * below - alpha if written else below
    reads, writes = (below - alpha, below) if written else (below, 0)
    buffers = []
    for begin, end in runs(nest, tensor):
        size, moved = _tile(nest, tensor, begin, end)
        fills, drains = (moved - alpha, moved) if written else (moved, 0)
        counts = reads, writes, fills, drains
        buffers.append(Buffer(begin, end, size, *counts, *wide))
        reads, writes = fills, drains
    found = Traffic(tensor, alpha, demand, tuple(buffers), reads + writes, *wide)
    return _overlapping(nest, found, sliding) if tensor is Tensor.INPUT else found


def _overlapping(nest: Nest, own: Traffic, sliding: bool) -> Traffic:
    """The input's traffic with the buffers that there are for overlapping tiles."""
    stripes, rings = [], []
    with_stripes = set(striped(nest))
    for place in sweeping(nest):
        size, moved = _tile(nest, own.tensor, place + 1, place + 1)
        whole = Buffer(place, place + 1, size, 0, 0, moved, 0, own.bits, own.last_bits)
        if place in with_stripes:
            stripes.append(whole)
        if sliding:
            inside = footprint(nest.layer, own.tensor, nest.extents(place))
            rings.append(replace(whole, elements=inside, slides=True))
    if not stripes and not rings:
        return own
    served = list(_served(own, [*stripes, *rings]))
    return replace(
        own,
        stripes=tuple(one for one in served if not one.slides),
        sliding=tuple(one for one in served if one.slides),
    )


def _tile(nest: Nest, tensor: Tensor, begin: int, end: int) -> tuple[int, int]:
    """Elements of what the loops [begin, end) use again, and those fetched in all."""
    inner, outer = nest.extents(begin), nest.extents(end)
    tile = inner | {dim: outer[dim] for dim in _WINDOW}
    moved = nest.fetched(tensor, inner, outer)
    return footprint(nest.layer, tensor, tile), moved


def _served(own: Traffic, more: Sequence[Buffer]) -> Iterator[Buffer]:
    """These buffers, beside the tensor's, with what those inside them fetch that do not
    slide, for not every memory can."""
    reads = own.demand
    for buffer in replace(own, stripes=tuple(more)).choices:
        if buffer in more:
            yield replace(buffer, reads=reads)
        reads = reads if buffer.slides else buffer.fills
