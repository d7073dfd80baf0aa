"""A blocked loop nest as one C++ file that checks and times itself.

The file holds the blocked convolution on a register tile of the target's vectors, the
same with im2col and a matrix product on tiles of as many vectors, a direct one to
compare them with, and a main. Whatever the layer, the loops run over tiles that may be
smaller at the edges.
"""

from __future__ import annotations

import re
from importlib import resources

from memplan.blocking.machine.hierarchy import Hierarchy, load_hierarchy
from memplan.blocking.machine.registers import (
    RegisterTile,
    Target,
    best_tile,
    fits,
    rows_for,
    target_of,
)
from memplan.blocking.nest.layer import Layer
from memplan.blocking.nest.nest import Loop, Nest
from memplan.blocking.run.cache import Layout, gemm_blocks, register_tiled
from memplan.toolchain.instructions import FLAGS

# Comparing all outputs of a larger layer with the direct convolution takes too long.
_CHECKED_MACS = 4 * 10**9
_NAMES = {"X": "x", "Y": "y", "C": "c", "K": "k", "Fw": "fw", "Fh": "fh"}
_NAMES |= {"B": "b", "G": "g"}
_REDUCED = ("C", "Fh", "Fw")
_STEP = """\
step<NX, NY, NV, SX, SY * IN_ROW>(
    sums, input + {c} * IN_PLANE + {fh} * IN_ROW + {fw},
    kernel + (({c} * FH + {fh}) * FW + {fw}) * TK);"""
_TILE = """\
register_tile(input + input_at({b}, {g}, 0, {y} * SY, {x} * SX),
              kernel + kernel_at({g}, {k}, 0, 0, 0),
              partial + (PARTS ? sums_at({b}, {g}, {k}, {y}, {x}) : 0),
              output + output_at({b}, {g}, {k}, {y}, {x}), {x_to} - {x},
              {y_to} - {y}, {k_to} - {k},
              Part{{{c}, {c_to}, {fh}, {fh_to}, {fw}, {fw_to}}});"""


def emit(
    layer: Layer,
    nest: Nest,
    *,
    layout: Layout | None = None,
    hierarchy: Hierarchy | None = None,
    target: str = "native",
) -> str:
    """The source, C++20 with the vector extension that GCC and Clang share.

    nest: of this layer, with or without a datapath; see `register_tile_of`. Extents
    along X, Y and K are rounded up to whole register tiles. layout: how rows and planes
    lie, one after the other if None; the kernel is always packed. hierarchy: the caches
    that the matrix product's blocks are made for, the Xeon E5645's if None. target: the
    vectors that the code is for, one of TARGETS or "native"; it is right on others too.
    Compiled, the program exits with 1 if a result is wrong; of layers above 4e9
    multiplications it compares a part. For the columns of im2col it takes X Y C Fw Fh
    floats: 8 GB of Conv1.
    Raises UsageError for a layer without weights, a nest of another layer, or another
    target.
    """
    machine = target_of(target)
    tile = register_tile_of(layer, nest, machine)
    tiled = register_tiled(layer, nest, tile.unroll)
    inner = [loop.dim in _REDUCED for loop in tiled.loops]
    kept = inner.index(False) if False in inner else len(inner)
    outer = tiled.loops[kept:]
    rows = rows_for(layer, machine, tile.vectors)
    caches = (hierarchy or load_hierarchy("xeon-e5645")).caches
    blocks = gemm_blocks(layer, caches, panel=rows, rows=rows, columns=tile.channels)
    parts = {
        "NAME": re.sub(r"[^\w.,:=() -]", "?", layer.name),  # it stands in a comment
        "NEST": str(tiled),
        "TILE": str(tile),
        "FLAGS": " ".join(compiler_flags(target)),
        "SIZES": _constants(layer),
        "STRIDES": _strides(layer, layout or Layout.dense(layer)),
        "LANES": tile.lanes,
        "VECTORS": tile.vectors,
        "TX": tile.x,
        "TY": tile.y,
        "PARTS": "true" if any(loop.dim in _REDUCED for loop in outer) else "false",
        "REGISTER_LOOPS": _register_loops(tiled.loops[:kept], layer),
        "BLOCKED_LOOPS": _blocked_loops(outer),
        "PANEL": rows,
        "DEPTH": blocks[0],
        "ROWS": blocks[1],
        "COLUMNS": blocks[2],
        "CHECK_EVERY": -(-layer.macs // _CHECKED_MACS),
    }
    template = resources.files("memplan.blocking.run").joinpath("conv.cpp.in")
    return re.sub(
        "@([A-Z_]+)@",
        lambda match: str(parts[match[1]]),
        template.read_text(encoding="utf-8"),
    )


def compiler_flags(target: str) -> tuple[str, ...]:
    """Compiler flags for such code."""
    return ("-std=c++20", "-O3", *FLAGS[target])


def register_tile_of(layer: Layer, nest: Nest, target: Target) -> RegisterTile:
    """The tile of a nest's code: its datapath, where that is one of the target's, of X,
    Y and whole vectors of K and no more; else the best one for the layer."""
    channels = nest.unroll.get("K", 1)
    if channels % target.lanes == 0 and nest.unroll.keys() <= {"X", "Y", "K"}:
        x, y = (min(nest.unroll.get(d, 1), layer.size(d)) for d in ("X", "Y"))
        vectors = min(channels, layer.K + target.lanes - 1) // target.lanes
        tile = RegisterTile(target.lanes, vectors, x, y)
        if fits(tile, target):
            return tile
    return best_tile(layer, target)


def _constants(layer: Layer) -> str:
    return (
        f"constexpr Index X = {layer.X}, Y = {layer.Y}, C = {layer.C}, K = {layer.K};\n"
        f"constexpr Index FW = {layer.Fw}, FH = {layer.Fh}, B = {layer.B}, "
        f"G = {layer.G};\n"
        f"constexpr Index SX = {layer.stride[0]}, SY = {layer.stride[1]};"
    )


def _strides(layer: Layer, layout: Layout) -> str:
    return (
        f"constexpr Index IN_ROW = {layout.input_row}, "
        f"IN_PLANE = {layout.input_plane};\n"
        f"constexpr Index OUT_ROW = {layout.output_row}, "
        f"OUT_PLANE = {layout.output_plane};"
    )


class _Ranges:
    """The half-open range that each dimension has at the current place of the code."""

    def __init__(self, whole: dict[str, tuple[str, str]]) -> None:
        self._ranges = whole
        self._depth: dict[str, int] = {}

    def enter(self, loop: Loop) -> str:
        """The head of a loop over tiles; the ranges are then those inside it."""
        low, high = self._ranges[loop.dim]
        depth = self._depth.get(loop.dim, 0)
        self._depth[loop.dim] = depth + 1
        name = _NAMES[loop.dim] + str(depth)
        head = f"for (Index {name} = {low}; {name} < {high}; {name} += {loop.inner})"
        if loop.inner == 1:
            self._ranges[loop.dim] = (name, f"{name} + 1")
            return head + " {"
        self._ranges[loop.dim] = (name, f"{name}_to")
        end = f"const Index {name}_to = std::min<Index>({name} + {loop.inner}, {high});"
        return head + " {\n  " + end

    def names(self) -> dict[str, str]:
        """Low ends as x, k, ..., high ends as x_to, k_to, ..."""
        low = {_NAMES[dim]: ends[0] for dim, ends in self._ranges.items()}
        return low | {f"{_NAMES[dim]}_to": e[1] for dim, e in self._ranges.items()}


def _register_loops(loops: tuple[Loop, ...], layer: Layer) -> str:
    """Loops over part of the reduction; what they always cover whole is a constant."""
    covered = dict.fromkeys(_REDUCED, 1) | {loop.dim: loop.outer for loop in loops}
    whole = {
        dim: ("0", dim.upper())
        if covered[dim] == layer.size(dim)
        else (f"part.{_NAMES[dim]}", f"part.{_NAMES[dim]}_to")
        for dim in _REDUCED
    }
    return _nested(loops, _Ranges(whole), _STEP)


def _blocked_loops(loops: tuple[Loop, ...]) -> str:
    whole = {dim: ("0", dim.upper()) for dim in _NAMES}
    return _nested(loops, _Ranges(whole), _TILE)


def _nested(loops: tuple[Loop, ...], ranges: _Ranges, body: str) -> str:
    """Loops, given innermost first, around a body that names the ranges' ends."""
    lines: list[str] = []
    for depth, loop in enumerate(reversed(loops), 1):
        lines += _indented(ranges.enter(loop), depth)
    lines += _indented(body.format(**ranges.names()), len(loops) + 1)
    lines += ["  " * depth + "}" for depth in range(len(loops), 0, -1)]
    return "\n".join(lines)


def _indented(text: str, depth: int) -> list[str]:
    return ["  " * depth + line for line in text.splitlines()]
