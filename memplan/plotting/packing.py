"""The packing of a plan: time across, addresses up, one rectangle per buffer.

A buffer with gaps in its lifespan is drawn as what it uses, in several rectangles.
As in Figure 1 of profile-guided memory optimization, on real data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from memplan.arrays import Float64Array, Int64Array
from memplan.core.bounds import live_bytes
from memplan.core.pieces import pieces
from memplan.core.plan import Plan
from memplan.core.problem import Problem
from memplan.errors import InputError
from memplan.plotting import style
from memplan.units import format_bytes, format_gap

VECTOR = 3000  # rectangles: up to here SVG and PDF hold shapes, beyond it pixels

_LIMITS = (0.01, 0.1, 0.5)  # of the clock: what parts the lifetime classes
_CLASSES = (
    "alive < 1 %",
    "alive 1–10 %",
    "alive 10–50 %",
    "alive > 50 %",
    "wraps around",
)
_TAB = "#7a3b00"
_COLOURS = (*style.SHORT_TO_LONG, style.WRAPPED)
_INCHES = (12, 7)
_BOX = (0.085, 0.155, 0.785, 0.72)


def packing(plan: Plan, title: str = "") -> Figure:
    """The picture of `plan`; the title is the source's name unless given.

    Raises InputError if the plan holds no buffers.
    """
    if not len(plan.problem):
        raise InputError("the plan holds no buffers, so there is nothing to draw")
    if len(plan.offsets) != len(plan.problem):
        raise InputError(f"{len(plan.offsets)} offsets for {len(plan.problem)} buffers")
    with style.settled():
        figure = Figure(figsize=_INCHES, facecolor="white")
        axes = style.bare_axes(figure, _BOX)
        start, end = _clock(plan.problem)
        axes.set_xlim(start, end)
        style.set_byte_axis(axes, max(plan.peak, plan.lower_bound))
        axes.fill_between([start, end], plan.peak, color=style.PAPER, lw=0, zorder=0)
        pieces = _Pieces.of(plan.problem, plan.offsets)
        _draw_pieces(axes, pieces)
        _draw_sizes(axes, pieces)
        _draw_borders(axes, plan.problem, plan.offsets)
        _draw_levels(axes, plan)
        _label_axes(axes, plan)
        made = plan.provenance
        name = title or made.source.name or made.program.script or "plan"
        style.set_title(figure, _BOX[0], name, _facts(plan))
        _draw_legend(figure, plan.problem)
    return figure


@dataclass(frozen=True)
class _Pieces:
    """Rectangles, shape (m,) each: ticks, bytes, class; a wrapped buffer has two, one
    with gaps as many as it has pieces."""

    left: Int64Array
    right: Int64Array
    bottom: Int64Array
    height: Int64Array
    kind: npt.NDArray[np.intp]

    @classmethod
    def of(cls, problem: Problem, offsets: Int64Array) -> _Pieces:
        start, end = _clock(problem)
        used = pieces(problem)
        wraps = used.lower > used.upper
        again = np.flatnonzero(wraps & (used.upper > 0))
        rows = np.concatenate([np.arange(len(used)), again])
        left = np.concatenate([used.lower, np.full(len(again), start)])
        right = np.where(wraps, end, used.upper)
        right = np.concatenate([right, used.upper[again]])
        # Short-lived ones last: drawn at least a pixel wide, they stay in sight.
        order = np.argsort(left - right, kind="stable")
        rows = rows[order]
        owner, begin = used.owner[rows], used.begin[rows]
        return cls(
            left[order],
            right[order],
            offsets[owner] + begin,
            used.end[rows] - begin,
            lifetime_classes(problem)[owner],
        )

    def __len__(self) -> int:
        return len(self.left)

    def points(self, axes: Axes) -> tuple[Float64Array, Float64Array]:
        """Widths and heights on paper, in points, shape (m,) each."""
        (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
        across = np.float64(72 * _INCHES[0] * _BOX[2] / (right - left))
        up = np.float64(72 * _INCHES[1] * _BOX[3] / (high - low))
        return (self.right - self.left) * across, self.height * up

    def corners(self) -> Any:
        """The rectangles' corners, float, shape (m, 4, 2)."""
        top = self.bottom + self.height
        x = np.stack([self.left, self.right, self.right, self.left], axis=1)
        y = np.stack([self.bottom, self.bottom, top, top], axis=1)
        return np.stack([x, y], axis=2).astype(float)


def lifetime_classes(problem: Problem) -> npt.NDArray[np.intp]:
    """0 to 3 by the part of the clock a buffer lives, 4 if it wraps; shape (n,)."""
    start, end = _clock(problem)
    part = (problem.upper - problem.lower) / (end - start)
    return np.where(problem.wraps, 4, np.searchsorted(_LIMITS, part, side="right"))


def _clock(problem: Problem) -> tuple[int, int]:
    if problem.length is not None:
        return 0, problem.length
    return int(problem.lower.min()), int(problem.upper.max())


def _draw_pieces(axes: Axes, pieces: _Pieces) -> None:
    colours = np.array(_COLOURS)[pieces.kind]
    # An outline where there is room for one. Elsewhere the edge has the colour of
    # the face: it is a pixel wide, and keeps what is thinner from vanishing.
    width, height = pieces.points(axes)
    roomy = np.minimum(width, height) > 4
    boxes = PolyCollection(
        pieces.corners(),
        facecolors=colours,
        edgecolors=np.where(roomy, style.INK, colours),
        linewidths=0.5,
        snap=True,
        rasterized=len(pieces) > VECTOR,
        zorder=1,
    )
    boxes.set_gid("buffers")
    axes.add_collection(boxes, autolim=False)


def _draw_sizes(axes: Axes, pieces: _Pieces) -> None:
    """Sizes in the rectangles wide and high enough to hold them."""
    width, height = pieces.points(axes)
    for i in np.flatnonzero((width > 32) & (height > 10.5)).tolist():
        size = int(pieces.height[i])
        text = format_bytes(size)
        if width[i] < 4.6 * len(text) + 5:
            continue
        face = _COLOURS[pieces.kind[i]]
        axes.text(
            (pieces.left[i] + pieces.right[i]) / 2,
            pieces.bottom[i] + size / 2,
            text,
            fontsize=7.5,
            ha="center",
            va="center_baseline",
            color="white" if pieces.kind[i] in (2, 3) else style.INK,
            bbox={"facecolor": face, "edgecolor": "none", "pad": 0.8},
            zorder=5,
        )


def _draw_borders(axes: Axes, problem: Problem, offsets: Int64Array) -> None:
    """Tabs where a wrapped buffer leaves at the right and comes back at the left."""
    start, end = _clock(problem)
    wraps = problem.wraps
    for border, rows in ((end, wraps), (start, wraps & (problem.upper > 0))):
        if not rows.any():
            continue
        bottom, size = offsets[rows], problem.size[rows]
        x = np.full(len(bottom), border)
        points = np.stack([x, bottom, x, bottom + size], axis=1).astype(float)
        tabs: Any = points.reshape(-1, 2, 2)
        lines = LineCollection(tabs, colors=_TAB, linewidths=5, zorder=3)
        lines.set_gid("tabs")
        axes.add_collection(lines, autolim=False)


def _draw_levels(axes: Axes, plan: Plan) -> None:
    """The curve of live bytes, the lower bound, the arena's top, and their labels."""
    _, end = _clock(plan.problem)
    moments, live = live_bytes(plan.problem)
    # Of a million moments only the crest: a line to and fro would cover all.
    times, values = style.crest(
        np.append(moments, end).astype(float), np.append(live, live[-1]).astype(float)
    )
    halo = [patheffects.withStroke(linewidth=2.6, foreground="white")]
    (curve,) = axes.plot(
        times,
        values,
        color=style.INK,
        linewidth=1.1,
        drawstyle="steps-post",
        path_effects=halo,
        zorder=4,
    )
    curve.set_gid("live")
    axes.axhline(plan.peak, color=style.INK, linewidth=1.4, zorder=5, clip_on=False)
    axes.axhline(
        plan.lower_bound,
        color=style.BOUND,
        linewidth=1.4,
        linestyle=(0, (6, 4)),
        zorder=6,
        clip_on=False,
    )
    peak, bound = style.told_apart(plan.peak, plan.lower_bound)
    middle = (plan.peak + plan.lower_bound) / 2
    apart = max(abs(plan.peak - plan.lower_bound) / 2, 0.033 * axes.get_ylim()[1])
    for y, text, colour in (
        (middle + apart, f"arena\n{peak}", style.INK),
        (middle - apart, f"lower bound\n{bound}", style.BOUND),
    ):
        axes.text(
            1.012,
            y,
            text,
            color=colour,
            fontsize=9,
            va="center",
            transform=axes.get_yaxis_transform(),
        )


def _label_axes(axes: Axes, plan: Plan) -> None:
    where = "" if plan.problem.length is None else " in the step"
    ticks = "" if plan.hot.requests is None else ", one per allocation and free"
    axes.set_xlabel(f"time{where} (ticks{ticks})", fontsize=10, color=style.INK)
    axes.set_ylabel("offset in the arena", fontsize=10, color=style.INK)
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _facts(plan: Plan) -> str:
    count = len(plan.problem)
    peak, bound = style.told_apart(plan.peak, plan.lower_bound)
    facts = [
        style.shortened(plan.provenance.method, 40),
        f"{count:,} buffer{'s' * (count != 1)}",
        f"peak {peak}",
        f"lower bound {bound}",
        f"gap {format_gap(plan.gap)}" + ", proved optimal" * plan.proved_optimal,
    ]
    if plan.lanes:
        arena = format_bytes(plan.arena_bytes)
        facts.append(f"{plan.lanes:,} threads' arenas like this, {arena}")
    return "  ·  ".join(facts)


def _draw_legend(figure: Figure, problem: Problem) -> None:
    counts = np.bincount(lifetime_classes(problem), minlength=5).tolist()
    clock = "run" if problem.length is None else "step"
    handles: list[Patch | Line2D] = []
    for colour, part, count in zip(_COLOURS, _CLASSES, counts, strict=True):
        if count:
            # The first says in full what the others abbreviate.
            what = "" if handles or part is _CLASSES[4] else f" of the {clock}"
            text = f"{part}{what} ({count:,})"
            patch = Patch(facecolor=colour, edgecolor=style.INK, lw=0.5, label=text)
            handles.append(patch)
    handles.append(Line2D([], [], color=style.INK, linewidth=1.1, label="live bytes"))
    style.set_legend(figure, _BOX[0], handles)
