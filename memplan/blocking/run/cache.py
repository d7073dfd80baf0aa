"""Blocked convolutions in simulated caches, against im2col and a matrix product.

The caches are set-associative, least recently used first out, write-allocate and
write-back; a level's misses are the next level's accesses. Real ones hash addresses
and prefetch, which is not modelled. Elements are 4-byte floats. Both ways to compute
work on register tiles of 4 columns by 8 channels, whose sums stay in registers over
the innermost loops along C, Fw and Fh; the kernel is packed as [K / 8][C][Fh][Fw][8].

Counts compare with the model so: a line that misses brings 16 elements, and every
visit of an output tile misses once a line, whether its sums are read again or written
for the first time. Misses of a level are therefore (fills of input and kernel + drains
of the output) / 16 of the outermost buffers within it (`expected_misses`). That holds
where tiles use whole lines and leave room for what streams through: strings found for
half of each capacity, with rows of 64 bytes and more, come within a few per cent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from memplan.blocking.cost.placement import in_levels
from memplan.blocking.machine.hierarchy import Cache, Hierarchy
from memplan.blocking.nest.counts import count
from memplan.blocking.nest.layer import DIMS, Layer, Tensor
from memplan.blocking.nest.nest import Nest, nest_of
from memplan.blocking.nest.precision import FORMATS
from memplan.errors import UsageError
from memplan.native import _nest

FLOAT_BYTES = 4
# Planes that a few register tiles work on at the same time must not share sets.
_TOGETHER = 64
# Planes that follow each other begin apart by this part of a way divided among them.
_PLANES = 16
_EVEN = 0.5


@dataclass(frozen=True)
class Layout:
    """Elements from one row and one plane (of a channel) to the next in memory.

    Input [B][G C][rows][columns], padding included; output [B][G K][Y][X].
    The kernel is packed as [G][K / 8][C][Fh][Fw][8].
    """

    input_row: int
    input_plane: int
    output_row: int
    output_plane: int

    @classmethod
    def dense(cls, layer: Layer) -> Layout:
        """Row after row, plane after plane."""
        wide, high = input_size(layer)
        plane = layer.X * layer.Y
        return cls(wide, wide * high, layer.X, plane)

    def planes(self, layer: Layer) -> Iterable[tuple[Tensor, int, int]]:
        """Each tensor of planes: how many an image has, bytes from one to the next."""
        yield Tensor.INPUT, layer.G * layer.C, self.input_plane * FLOAT_BYTES
        yield Tensor.OUTPUT, layer.G * layer.K, self.output_plane * FLOAT_BYTES


@dataclass(frozen=True)
class Aliasing:
    """Planes whose first lines share too few sets of a cache level.

    stride: bytes from a plane to the next; sets: how many sets the planes begin in.
    """

    tensor: Tensor
    stride: int
    level: str
    sets: int

    def __str__(self) -> str:
        into = "one set" if self.sets == 1 else f"{self.sets} sets"
        return (
            f"{self.tensor.value}: planes lie {self.stride} bytes apart, and begin all "
            f"in {into} of {self.level}; pad the planes"
        )


def input_size(layer: Layer) -> tuple[int, int]:
    """Columns and rows of an input plane, padding included."""
    wide = (layer.X - 1) * layer.stride[0] + layer.Fw
    high = (layer.Y - 1) * layer.stride[1] + layer.Fh
    return wide, high


def aliasing(
    layer: Layer, layout: Layout, hierarchy: Hierarchy
) -> tuple[Aliasing, ...]:
    """Where planes get in each other's way: one entry for each tensor and level.

    A stride that is a multiple of a level's way puts all planes into the same set; one
    that shares a large factor with it, into few.
    """
    found = []
    for tensor, planes, stride in layout.planes(layer):
        for level, cache in zip(hierarchy.levels, hierarchy.caches, strict=True):
            way = cache.nbytes // cache.ways
            sets = min(way // math.gcd(stride, way), way // cache.line)
            if sets * cache.ways < min(planes, _TOGETHER):
                found.append(Aliasing(tensor, stride, level.name, sets))
    return tuple(found)


def padded(layer: Layer, layout: Layout, hierarchy: Hierarchy) -> Layout:
    """The layout with those planes that alias moved apart by whole lines.

    By the fewest lines with which planes that follow each other begin far apart in
    every level, if not further than one way of the first level.
    """
    caches = hierarchy.caches
    line = max(cache.line for cache in caches)
    crowded = {entry.tensor for entry in aliasing(layer, layout, hierarchy)}

    def plane(tensor: Tensor, elements: int) -> int:
        if tensor not in crowded:
            return elements
        lines = -(-elements * FLOAT_BYTES // line)
        most = max(1, caches[0].nbytes // caches[0].ways // line)
        strides = [(lines + more) * line for more in range(most)]
        even = (stride for stride in strides if _spread(stride, caches) > _EVEN)
        best = next(even, max(strides, key=lambda stride: _spread(stride, caches)))
        return best // FLOAT_BYTES

    return replace(
        layout,
        input_plane=plane(Tensor.INPUT, layout.input_plane),
        output_plane=plane(Tensor.OUTPUT, layout.output_plane),
    )


def _spread(stride: int, caches: Sequence[Cache]) -> float:
    """How evenly planes `stride` bytes apart begin in a way of each level; 1 is best.

    Planes that do not reach around a way need no more room than their own length.
    """
    worst = 1.0
    for cache in caches:
        way = cache.nbytes // cache.ways
        starts = sorted(plane * stride % way for plane in range(_PLANES))
        around = pairwise([*starts, starts[0] + way])
        gap = min(after - before for before, after in around)
        worst = min(worst, gap / min(way / _PLANES, stride))
    return worst


TILE_X, TILE_K = 4, 8  # the register tile: columns and channels of the output
_SHARED = 16  # positions, which share a line
MAX_MACS = 2 * 10**9  # simulated in seconds
_MAX_LINES = 1 << 27


@dataclass(frozen=True)
class LevelCounts:
    """References to a level, those that missed it, and dirty lines that left it.

    Elements are counted one by one at the first level, lines at those outside it.
    """

    name: str
    accesses: int
    misses: int
    writebacks: int


@dataclass(frozen=True)
class Simulation:
    """What was simulated, and what every level saw; innermost levels first.

    layer, nest: the part of the layer that was simulated (`sample`), and its nest over
    register tiles; share: its part of all multiplications. expected: misses by level
    that the model gives for the same part.
    """

    layer: Layer
    nest: Nest
    share: float
    layout: Layout
    blocked: tuple[LevelCounts, ...]
    gemm: tuple[LevelCounts, ...]
    expected: tuple[float, ...]
    aliasing: tuple[Aliasing, ...]


def simulate(
    layer: Layer,
    nest: Nest,
    hierarchy: Hierarchy,
    *,
    pad: bool = False,
    max_macs: int = MAX_MACS,
) -> Simulation:
    """Runs every reference of the blocked nest, and of im2col + GEMM, through caches.

    pad: with planes padded so that they do not share sets. max_macs: of a larger layer
    a part is simulated, every reference of it: see `sample`. Caches are empty before,
    and lines still dirty in the end are not counted as written back.
    Raises UsageError for a layer without weights, a nest of another layer, or levels
    that are no caches.
    """
    whole = register_tiled(layer, nest)
    layout = Layout.dense(layer)
    if pad:
        layout = padded(layer, layout, hierarchy)
    part, inner = sample(layer, whole, max_macs)
    return Simulation(
        part,
        inner,
        part.macs / layer.macs,
        layout,
        _counted(hierarchy, part, layout, inner),
        _counted(hierarchy, part, layout, None),
        expected_misses(inner, hierarchy),
        aliasing(layer, layout, hierarchy),
    )


def simulator_of(hierarchy: Hierarchy) -> _nest.CacheSim:
    """Empty caches like the hierarchy's levels.

    Raises UsageError where one is no cache, or too large to simulate.
    """
    caches = hierarchy.caches
    if sum(cache.nbytes // cache.line for cache in caches) > _MAX_LINES:
        raise UsageError(
            f"{hierarchy.name}: caches of more than 2^27 lines are too large"
        )
    try:
        return _nest.CacheSim([[c.nbytes, c.ways, c.line] for c in caches])
    except ValueError as error:
        raise UsageError(f"{hierarchy.name}: {error}") from None


def register_tiled(
    layer: Layer, nest: Nest, unroll: Mapping[str, int] | None = None
) -> Nest:
    """The nest over register tiles: their extents rounded up to whole ones.

    unroll: what a tile has along X, Y and K; that of the simulator if None. What the
    datapath of `nest` does at once becomes the innermost loops.
    Raises UsageError if the layer has no weights, or the nest is that of another one.
    """
    if not layer.kernel:
        raise UsageError(f"{layer.name} has no weights, so it is no convolution")
    if replace(nest.layer, name=layer.name) != layer:
        raise UsageError(f"the nest is one of {nest.layer.name}, not of {layer.name}")
    unroll = unroll or {"X": TILE_X, "K": TILE_K}
    tile = {dim: min(extent, layer.size(dim)) for dim, extent in unroll.items()}
    sized = layer.padded(tile)
    loops = [*nest.unroll.items(), *((loop.dim, loop.outer) for loop in nest.loops)]
    whole = [
        (dim, min(-(-extent // lanes) * lanes, sized.size(dim)))
        for dim, extent in loops
        for lanes in (tile.get(dim, 1),)
    ]
    return nest_of(layer, whole, tile)


def sample(layer: Layer, nest: Nest, max_macs: int = MAX_MACS) -> tuple[Layer, Nest]:
    """The part of a layer that the first iterations of the outermost loops compute.

    Loops are cut short from the outermost in until at most `max_macs` multiplications
    are left, as far as whole iterations allow. Tiles inside are the same, so the inner
    levels extrapolate with the model: misses of the layer are about the model's for it,
    times what was simulated over what the model gives for the part. What an outer level
    holds across the iterations that were cut off cannot show.
    """
    loops = list(nest.loops)
    while layer.macs > max_macs and loops:
        dim, inner = loops[-1].dim, loops[-1].inner
        trips = -(-layer.size(dim) // inner)
        kept = max(1, trips * max_macs // layer.macs)
        if kept < trips:
            layer = replace(layer, **{dim: inner * kept})  # type: ignore[arg-type]
        if kept > 1:
            loops[-1] = replace(loops[-1], outer=inner * kept)
            break
        loops.pop()
    pairs = [(loop.dim, loop.outer) for loop in loops]
    unroll = {dim: min(n, layer.size(dim)) for dim, n in nest.unroll.items()}
    return layer, nest_of(layer, pairs, unroll)


def expected_misses(nest: Nest, hierarchy: Hierarchy) -> tuple[float, ...]:
    """Lines that the model says each level misses, with buffers of 4-byte floats.

    The outermost of a tensor's buffers in a level or inside it determines what passes
    the level; fills of the input and the kernel and drains of the output count.
    Stripes of the input are not among the buffers: where there is room for one, caches
    may miss less.
    """
    traffic = count(nest, FORMATS["fp32"])
    placement = in_levels(traffic, hierarchy)
    within: set[str] = set()
    found = []
    for level, cache in zip(hierarchy.levels, hierarchy.caches, strict=True):
        within.add(level.name)
        elements = 0
        for tensor, own in traffic.items():
            written = tensor is Tensor.OUTPUT
            passing = (own.demand + own.alpha) // 2 if written else own.demand
            for memory in placement[tensor]:
                if memory.level in within:
                    buffer = memory.outermost
                    passing = buffer.drains if written else buffer.fills
            elements += passing
        found.append(elements * FLOAT_BYTES / cache.line)
    return tuple(found)


def gemm_blocks(
    layer: Layer,
    caches: Sequence[Cache],
    *,
    panel: int = TILE_K,
    rows: int = _SHARED,
    columns: int = TILE_K,
) -> tuple[int, int, int]:
    """Depth, positions and channels of the matrix product's packed blocks.

    A panel, of so many channels or positions, takes half of the first level, a block of
    positions half of the second, one of channels half of the third (the last ones,
    where there are fewer levels), as in Goto's algorithm; the depth is then cut evenly.
    rows, columns: what positions and channels are multiples of.
    """
    level = [cache.nbytes // (2 * FLOAT_BYTES) for cache in caches]
    total = layer.C * layer.Fw * layer.Fh
    depth = max(1, level[0] // panel)
    depth = -(-total // -(-total // depth))
    second, third = level[min(1, len(level) - 1)], level[min(2, len(level) - 1)]
    return (
        depth,
        max(1, second // depth // rows) * rows,
        max(1, third // depth // columns) * columns,
    )


def _counted(
    hierarchy: Hierarchy, layer: Layer, layout: Layout, nest: Nest | None
) -> tuple[LevelCounts, ...]:
    """Counts of a blocked nest, or without one of im2col and a matrix product."""
    tensors = _nest.ConvTensors(
        [layer.size(dim) for dim in DIMS],
        list(layer.stride),
        FLOAT_BYTES,
        [layout.input_row, layout.input_plane],
        [layout.output_row, layout.output_plane],
        [TILE_X, TILE_K],
    )
    simulator = simulator_of(hierarchy)
    if nest is None:
        simulator.gemm(tensors, list(gemm_blocks(layer, hierarchy.caches)))
    else:
        order = {dim: place for place, dim in enumerate(DIMS)}
        loops = [(order[loop.dim], loop.outer) for loop in nest.loops]
        simulator.blocked(tensors, loops)
    return tuple(
        LevelCounts(level.name, *counts)
        for level, counts in zip(hierarchy.levels, simulator.counts(), strict=True)
    )
