"""Vector registers of a processor, and the tile of a convolution's output they hold.

A register tile is x columns by y rows by so many vectors of channels. Its sums stay in
registers over all loops along C, Fh and Fw inside it. One step, a channel at a place of
the window, loads the vectors of weights and every input, and multiplies all with all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from memplan.blocking.nest.layer import Layer
from memplan.errors import UsageError
from memplan.toolchain.instructions import supported


@dataclass(frozen=True)
class Target:
    """What code is written for: floats in a vector register, and how many of these.

    fused: whether one instruction multiplies and adds; else there are two, and the
    product takes a register. A processor is taken to load two vectors and to calculate
    with two in a cycle, and to wait four cycles for their result.
    """

    name: str
    lanes: int
    registers: int
    fused: bool = True

    @property
    def spare(self) -> int:
        """Registers besides those for sums and weights."""
        return 1 if self.fused else 2


TARGETS: Mapping[str, Target] = {
    "avx512": Target("avx512", 16, 32),
    "avx2": Target("avx2", 8, 16),
    "portable": Target("portable", 4, 16, fused=False),
}
_PER_CYCLE, _LATENCY = 2, 4
_STEP = 0.5  # cycles that a step takes besides
_MANY = 1 << 16  # positions; of more it does not matter what is left at the end


def target_of(name: str) -> Target:
    """The target by its name; "native" is the widest that this processor runs.

    Raises UsageError for other names.
    """
    if name == "native":
        name = next(name for name in TARGETS if supported(name))
    if name not in TARGETS:
        raise UsageError(f"{name}: not one of native, {', '.join(TARGETS)}")
    return TARGETS[name]


@dataclass(frozen=True)
class RegisterTile:
    """x columns by y rows of the output by `vectors` of `lanes` channels each."""

    lanes: int
    vectors: int
    x: int
    y: int = 1

    @property
    def channels(self) -> int:
        return self.lanes * self.vectors

    @property
    def rows(self) -> int:
        """Outputs of one channel."""
        return self.x * self.y

    @property
    def unroll(self) -> dict[str, int]:
        """The tile as a datapath, which does all of it at once."""
        return {"X": self.x, "Y": self.y, "K": self.channels}

    def __str__(self) -> str:
        counts = ((self.x, "column"), (self.y, "row"), (self.vectors, "vector"))
        tile = " x ".join(f"{n} {one}{'s' * (n != 1)}" for n, one in counts)
        return f"{tile} of {self.lanes} channels"


def best_tile(layer: Layer, target: Target) -> RegisterTile:
    """The tile that the layer takes the fewest cycles in, estimated by `cycles`."""
    tiles = _tiles(layer, target)
    return min(tiles, key=lambda tile: (cycles(layer, tile, target), tile.y, tile.x))


def rows_for(layer: Layer, target: Target, vectors: int) -> int:
    """Positions in a tile for a product with all the layer's outputs in one row.

    vectors: of channels, no more than the layer has.
    """
    positions = min(layer.X * layer.Y, _MANY)
    flat = replace(layer, X=positions, Y=1)
    tiles = [tile for tile in _tiles(flat, target) if tile.vectors == vectors]
    return min(tiles, key=lambda tile: (cycles(flat, tile, target), tile.x)).x


def fits(tile: RegisterTile, target: Target) -> bool:
    """Whether sums, weights and what else there is stay in registers."""
    used = tile.vectors * tile.rows + tile.vectors + target.spare
    return tile.lanes == target.lanes and used <= target.registers


def cycles(layer: Layer, tile: RegisterTile, target: Target) -> float:
    """An estimate for the whole layer, with smaller tiles at its edges.

    Sums are written as rows in planes, for which squares of lanes are transposed.
    """
    depth = layer.C * layer.Fw * layer.Fh
    square = tile.lanes * (math.log2(tile.lanes) + 3)
    total = 0.0
    for x, y, k in itertools.product(
        _parts(layer.X, tile.x), _parts(layer.Y, tile.y), _parts(layer.K, tile.channels)
    ):
        vectors = -(-k[0] // tile.lanes)
        rows = x[0] * y[0]
        work = vectors * rows * (1 if target.fused else 2)
        busy = max(work, vectors + rows, _LATENCY * _PER_CYCLE)
        step = busy / _PER_CYCLE + _STEP
        squares = -(-x[0] // tile.lanes) * y[0] * vectors
        total += x[1] * y[1] * k[1] * (step * depth + squares * square)
    return total * layer.B * layer.G


def _tiles(layer: Layer, target: Target) -> Iterator[RegisterTile]:
    """All that stay in registers, none larger than the layer."""
    most = -(-layer.K // target.lanes)
    for vectors in range(1, min(most, target.registers) + 1):
        rows = (target.registers - target.spare - vectors) // vectors
        for x in range(1, min(rows, layer.X) + 1):
            for y in range(1, min(rows // x, layer.Y) + 1):
                yield RegisterTile(target.lanes, vectors, x, y)


def _parts(size: int, tile: int) -> list[tuple[int, int]]:
    """Sizes of the tiles along one dimension, and how many there are of each."""
    whole, edge = divmod(size, tile)
    return [(n, times) for n, times in ((tile, whole), (edge, 1)) if n and times]
