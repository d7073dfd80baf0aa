"""What the pictures share: colours, the axis of bytes, titles, thinned curves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.text import Annotation

from memplan.arrays import Float64Array
from memplan.levels import extremes
from memplan.text import printable

Point = tuple[float, float]

INK = "#222222"
MUTED = "#666666"
PAPER = "#f4f4f2"  # what no buffer covers
# Lifetime classes, short to long: ColorBrewer YlGnBu, told apart with any colour
# vision and in grey; wrap-around buffers in the one warm colour.
SHORT_TO_LONG = ("#86cfa0", "#41b6c4", "#2c7fb8", "#253494")
WRAPPED = "#e6750d"
BOUND = "#b3127a"

_FONT = "DejaVu Sans"  # comes with matplotlib
_SETTINGS = {
    "font.sans-serif": [_FONT],
    "svg.hashsalt": "memplan",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "text.parse_math": False,  # dollar signs in names start no formula
}
_IEC = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """matplotlib's own defaults, whatever the user's matplotlibrc says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def byte_ticks(top: float) -> tuple[list[float], list[str]]:
    """Tick positions from 0 to `top` bytes, 4 to 8 powers of two apart, and labels."""
    step = 2.0 ** max(0, int(np.ceil(np.log2(max(top, 1) / 7))))
    power = _power(top)
    ticks = [float(tick) for tick in np.arange(0.0, top + step / 1e6, step)]
    labels = [f"{tick / 1024**power:g} {_IEC[power]}" for tick in ticks]
    return ticks, ["0", *labels[1:]]


def told_apart(first: int, second: int) -> tuple[str, str]:
    """Both byte counts in the unit of the first, with digits enough to differ."""
    power = _power(first)
    for digits in range(1, 7):
        one, other = (f"{n / 1024**power:.{digits}f}" for n in (first, second))
        if power and (one != other or first == second):
            return f"{one} {_IEC[power]}", f"{other} {_IEC[power]}"
    return f"{first:,} B", f"{second:,} B"


def set_byte_axis(axes: Axes, top: float) -> None:
    """Make the y axis one of bytes, from 0 to a little above `top`."""
    axes.set_ylim(0, max(top, 1) * 1.04)
    axes.set_yticks(*byte_ticks(max(top, 1)))


def bare_axes(figure: Figure, box: tuple[float, float, float, float]) -> Axes:
    """Axes in `box` (left, bottom, width, height, in parts of the figure)."""
    axes = figure.add_axes(box)
    axes.tick_params(labelsize=9, colors=INK, direction="out", length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes


def name_axes(axes: Axes, x: str = "", y: str = "") -> None:
    """Say what is across, and what is up."""
    axes.set_xlabel(x, fontsize=10, color=INK)
    axes.set_ylabel(y, fontsize=10, color=INK)


def say(axes: Axes, words: str, at: Point, shift: Point, **how: Any) -> Annotation:
    """Words beside a point, `shift` away in points, on white. how: of the text."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.8}
    places: dict[str, Any] = {"xytext": shift, "textcoords": "offset points"}
    return axes.annotate(words, at, **places, fontsize=9, bbox=box, zorder=9, **how)


def dashed(axes: Axes, level: float, zorder: float = 2) -> Line2D:
    """A dashed line across the axes."""
    line = axes.axhline(level, color=BOUND, linewidth=1.2, zorder=zorder)
    line.set_linestyle((0, (6, 4)))
    return line


def set_title(figure: Figure, left: float, title: str, facts: str) -> None:
    """A bold title, and under it a line of facts, from `left` (part of the width)."""
    inch = 1 / figure.get_figheight()
    name = figure.text(left, 1 - 0.35 * inch, shortened(title), fontsize=13)
    name.set(color=INK, fontweight="bold")
    figure.text(left, 1 - 0.61 * inch, facts, fontsize=9.5, color=MUTED)


def set_legend(
    figure: Figure,
    left: float,
    handles: Sequence[Artist],
    loc: str = "lower left",
    y: float = 0.015,
    columns: int = 0,
) -> None:
    """A legend, by default along the lower edge, clear of the data.

    columns: of its entries; 0 for one row.
    """
    figure.legend(
        handles=handles,
        loc=loc,
        bbox_to_anchor=(left - 0.008, y),
        ncols=columns or len(handles),
        fontsize=9,
        frameon=False,
        handlelength=1.4,
        columnspacing=1.6,
    )


def shortened(text: str, limit: int = 80) -> str:
    """`text` on one line, its middle left out where it is too long.

    Control characters become their escapes, what the font cannot draw becomes "?".
    """
    line = printable(" ".join(text.split()))
    keep = (limit - 1) // 2
    line = line if len(line) <= limit else f"{line[:keep]}…{line[-keep:]}"
    known = get_font(findfont(_FONT)).get_charmap()
    return "".join(c if ord(c) in known else "?" for c in line)


def thinned(
    times: Float64Array, values: Float64Array, bins: int = 2000
) -> tuple[Float64Array, Float64Array]:
    """A step curve with at most 4 points per bin, no peak or trough left out.

    times ascend; values[i] holds from times[i] on. Each bin of equal width keeps
    its first, lowest, highest and last point.
    """
    if len(times) <= 4 * bins:
        return times, values
    edges = np.linspace(times[0], times[-1], bins + 1)[1:-1]
    first = np.unique(np.concatenate([[0], np.searchsorted(times, edges)]))
    keep = extremes(values, np.append(first[first < len(times)], len(times)))
    return times[keep], values[keep]


def crest(
    times: Float64Array, values: Float64Array, bins: int = 800
) -> tuple[Float64Array, Float64Array]:
    """The most of a step curve in each of `bins` stretches of time; few points stay.

    times ascend; values[i] holds from times[i] on. Where a curve goes up and down
    within the width of its own line, this is what can be seen of it.
    """
    if len(times) <= 4 * bins:
        return times, values
    edges = np.linspace(times[0], times[-1], bins + 1)[:-1]
    first = np.minimum(np.searchsorted(times, edges), len(times) - 1)
    held = np.maximum(np.searchsorted(times, edges, side="right") - 1, 0)
    most = np.maximum(np.maximum.reduceat(values, first), values[held])
    return np.append(edges, times[-1]), np.append(most, values[-1])


def _power(count: float) -> int:
    """The power of 1024 that `count` bytes are written in."""
    return min(int(np.log2(max(count, 1)) // 10), len(_IEC) - 1)


def mark_peak(
    axes: Axes,
    at: tuple[float, float],
    words: str,
    edge: float = 0.1,
    color: str = BOUND,
) -> Annotation:
    """A mark at a curve's peak, `at`, and words above it that stay within the axes.

    edge: how near to an end of the axes, as a share of them, the words go to one side.
    """
    (arrow,) = axes.plot([at[0]], [at[1]], marker="v", color=color, zorder=8, ms=5)
    arrow.set_clip_on(False)
    part = at[0] / axes.get_xlim()[1]
    left, right = part < edge, part > 1 - edge
    align = "left" if left else "right" if right else "center"
    shift = 3 if left else -3 if right else 0, 7
    return say(axes, words, at, shift, ha=align, fontweight="bold", color=color)
