"""Live activation bytes along a model's operators, before and after chunking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from memplan.arrays import Float64Array
from memplan.plotting import style
from memplan.units import format_bytes, format_share

_BOX = (0.085, 0.19, 0.885, 0.60)
_BEFORE, _AFTER, _LOOP = style.SHORT_TO_LONG[0], style.SHORT_TO_LONG[2], "#8c8c8c"
MAX_LABELLED = 30  # loops with its number above it, however narrow


@dataclass(frozen=True)
class Activations:
    """Bytes live while each operator runs, in order, a loop's operators once.

    live_bytes: one an operator, at least one. peak_label: what runs at the peak, and
    where that stands. loops: (start, stop, times): the operators in [start, stop) run
    so many times.
    """

    live_bytes: Sequence[float]
    peak_label: str = ""
    loops: Sequence[tuple[int, int, int]] = ()


def activations(
    before: Activations, after: Activations, budget: int, title: str = ""
) -> Figure:
    """The picture of a model's activations as it was, and in chunks.

    budget: bytes, drawn as a line; 0 for none.
    """
    curves = [np.array(each.live_bytes, dtype=float) for each in (before, after)]
    length = max(map(len, curves))
    top = max(curves[0].max(), curves[1].max(), budget)
    with style.settled():
        figure = Figure(figsize=(12, 5.4), facecolor="white")
        axes = style.bare_axes(figure, _BOX)
        axes.set_xlim(0, length)
        style.set_byte_axis(axes, top * 1.12)
        _draw_loops(axes, after.loops, length)
        for i, (live, color) in enumerate(zip(curves, (_BEFORE, _AFTER), strict=True)):
            _draw_curve(axes, live, color, 2 + 2 * i)
        if budget:
            style.dashed(axes, budget, zorder=6)
        for live, each in zip(curves, (before, after), strict=True):
            _draw_peak(axes, live, each.peak_label, budget)
        what = "operators in the order they run"
        style.name_axes(axes, what, "live activation bytes")
        facts = _facts(curves[0], curves[1], budget)
        style.set_title(figure, _BOX[0], title or "activations", facts)
        _draw_legend(figure, bool(after.loops), bool(budget))
    return figure


def _draw_curve(axes: Axes, live: Float64Array, color: str, zorder: int) -> None:
    at, values = style.thinned(np.arange(len(live), dtype=np.float64), live)
    at, values = np.append(at, len(live)), np.append(values, values[-1])
    axes.fill_between(at, values, step="post", color=color, linewidth=0, zorder=zorder)
    (line,) = axes.plot(at, values, drawstyle="steps-post", color=style.INK)
    line.set(linewidth=0.7 if len(live) < 2000 else 0.2, zorder=zorder + 1)


def _draw_loops(axes: Axes, loops: Sequence[tuple[int, int, int]], length: int) -> None:
    """A shaded band for each loop, and how often it runs above it."""
    high = axes.get_xaxis_transform()
    labels: list[tuple[int, int, Text]] = []
    for start, stop, times in loops:
        axes.axvspan(start, stop, color=_LOOP, alpha=0.16, linewidth=0, zorder=1)
        around = [each for each in labels if each[0] <= start and stop <= each[1]]
        middle = (start + stop) / 2
        if around:  # a loop in a loop
            text = around[-1][2]
            text.set_text(f"{text.get_text()} ×{times:,}")
        elif len(loops) <= MAX_LABELLED or stop - start > 0.03 * length:
            text = axes.text(middle, 1.015, f"×{times:,}", transform=high, ha="center")
            text.set(fontsize=8.5, color=style.MUTED)
            labels.append((start, stop, text))


def _draw_peak(axes: Axes, live: Float64Array, label: str, budget: int) -> None:
    """A mark at the peak, and words above it, clear of the budget's line."""
    place = int(np.argmax(live))
    x, y = place + 0.5, float(live[place])
    words = format_bytes(int(y)) + (f" at {style.shortened(label)}" * bool(label))
    mark = style.mark_peak(axes, (x, y), words, edge=0.3, color=style.INK)
    if y <= budget < y + 0.08 * axes.get_ylim()[1]:
        mark.xy = (x, budget)


def _facts(before: Float64Array, after: Float64Array, budget: int) -> str:
    was, now = int(before.max()), int(after.max())
    facts = [f"peak {format_bytes(was)} before, {format_bytes(now)} after"]
    if was:
        facts.append(f"{format_share(1 - now / was)} saved")
    if budget:
        facts.append(f"budget {format_bytes(budget)}")
    facts.append(f"{len(before):,} operators")
    return "  ·  ".join(facts)


def _draw_legend(figure: Figure, loops: bool, budget: bool) -> None:
    handles: list[Patch | Line2D] = [
        Patch(facecolor=_BEFORE, label="as it was"),
        Patch(facecolor=_AFTER, label="in chunks"),
    ]
    if loops:
        text = "a loop, its operators once"
        handles.append(Patch(facecolor=_LOOP, alpha=0.3, label=text))
    if budget:
        line = Line2D([], [], color=style.BOUND, linewidth=1.2, label="budget")
        line.set_linestyle((0, (4, 2)))
        handles.append(line)
    style.set_legend(figure, _BOX[0], handles)
