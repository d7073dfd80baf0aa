"""A loop nest as a picture: its loops as code, and beside them what each buffer spans.

A buffer stands beside the loops that use what it holds again and again; what it holds
is what the loops below them touch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from memplan.plotting import style
from memplan.units import format_bytes

_CODE = 0.42  # part of the width that the loops take
_INDENT, _DEEPEST = 0.008, 0.07  # parts of it: of one loop, and of all


@dataclass(frozen=True)
class DrawnBuffer:
    """Buffer `name` of `tensor`, in `level`, beside loops [begin, end) from inside."""

    name: str
    tensor: str
    level: str
    begin: int
    end: int
    nbytes: int


@dataclass(frozen=True)
class LoopNest:
    """loops: dimension, extent inside and extent after, innermost first; datapath: what
    is done at once below all loops."""

    loops: Sequence[tuple[str, int, int]]
    tensors: Sequence[str]
    buffers: Sequence[DrawnBuffer]
    datapath: str


def draw_nest(axes: Axes, nest: LoopNest, colours: Mapping[str, str]) -> None:
    """Draw the nest; `colours` says how each level looks."""
    rows = len(nest.loops)
    axes.set_xlim(0, 1)
    axes.set_ylim(-1.1, rows + 0.9)
    axes.axis("off")
    width = (1 - _CODE) / len(nest.tensors)
    for place, (dim, inner, outer) in enumerate(nest.loops):
        if place % 2 == 0:
            shade = Rectangle((0, place), 1, 1, color=style.PAPER, lw=0, zorder=0)
            axes.add_patch(shade)
        depth = (rows - 1 - place) * min(_INDENT, _DEEPEST / max(rows, 1))
        trips, row = -(-outer // inner), place + 0.5
        step = f" by {inner}" if inner > 1 else ""
        _write(axes, (0.006 + depth, row), f"{dim} to {outer:,}{step}", "left")
        _write(axes, (_CODE - 0.02, row), f"× {trips:,}", "right", style.MUTED)
    _write(axes, (0.006, -0.55), nest.datapath, "left", style.MUTED)
    for lane, tensor in enumerate(nest.tensors):
        left = _CODE + lane * width
        _write(axes, (left + width / 2, rows + 0.45), tensor, "center", weight="bold")
        for buffer in nest.buffers:
            if buffer.tensor == tensor:
                _draw_buffer(axes, buffer, left, width, colours[buffer.level])


def _draw_buffer(
    axes: Axes, buffer: DrawnBuffer, left: float, width: float, colour: str
) -> None:
    box = Rectangle(
        (left + 0.006, buffer.begin + 0.08),
        width - 0.012,
        buffer.end - buffer.begin - 0.16,
        facecolor=colour,
        edgecolor="none",
        zorder=2,
    )
    name = style.shortened(buffer.name)
    box.set_gid(f"buffer {name}")
    axes.add_patch(box)
    middle = (buffer.begin + buffer.end) / 2
    text = f"{name}  {format_bytes(buffer.nbytes)}"
    red, green, blue = to_rgb(colour)
    dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
    ink = "white" if dark else style.INK
    _write(axes, (left + width / 2, middle), text, "center", ink)


def _write(
    axes: Axes,
    at: tuple[float, float],
    text: str,
    align: str,
    colour: str = style.INK,
    weight: str = "normal",
) -> None:
    written = axes.text(*at, text, ha=align, va="center", color=colour, zorder=3)
    written.set(fontsize=8.5, fontweight=weight)
