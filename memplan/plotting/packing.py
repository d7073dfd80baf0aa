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
from matplotlib.colors import to_rgba, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from memplan.arrays import BoolArray, Float64Array, Int64Array
from memplan.core.bounds import live_bytes
from memplan.core.plan import Plan
from memplan.core.problem import Problem, pieces
from memplan.errors import InputError
from memplan.plotting import style
from memplan.plotting.save import DPI
from memplan.units import format_bytes, format_gap

INCHES = (12, 7)  # of the picture
BOX = (0.085, 0.155, 0.785, 0.72)  # of it the axes
VECTOR = 3000  # rectangles: up to here SVG and PDF hold shapes, beyond it pixels
CROWD = 30_000  # rectangles: beyond it those without room for an outline are painted

_WRAPS = "wraps around"
_CLASSES = ("alive < 1 %", "alive 1–10 %", "alive 10–50 %", "alive > 50 %", _WRAPS)
_LIMITS = (0.01, 0.1, 0.5)  # of the clock: what parts the classes
_TAB = "#7a3b00"
_COLOURS = (*style.SHORT_TO_LONG, style.WRAPPED)


def packing(plan: Plan, title: str = "") -> Figure:
    """The picture of `plan`; the title is the source's name unless given.

    Raises InputError if the plan holds no buffers.
    """
    if not len(plan.problem):
        raise InputError("the plan holds no buffers, so there is nothing to draw")
    with style.settled():
        figure = Figure(figsize=INCHES, facecolor="white")
        axes = style.bare_axes(figure, BOX)
        start, end = clock(plan.problem)
        axes.set_xlim(start, end)
        style.set_byte_axis(axes, max(plan.peak, plan.lower_bound))
        axes.fill_between([start, end], plan.peak, color=style.PAPER, lw=0, zorder=0)
        drawn = Rectangles.of(plan.problem, plan.offsets)
        _draw_pieces(axes, drawn)
        _draw_sizes(axes, drawn)
        _draw_borders(axes, plan.problem, plan.offsets)
        _draw_levels(axes, plan)
        _label_axes(axes, plan)
        made = plan.provenance
        name = title or made.source.name or made.program.script or "plan"
        style.set_title(figure, BOX[0], name, _facts(plan))
        _draw_legend(figure, plan.problem)
    return figure


def _draw_pieces(axes: Axes, pieces: Rectangles) -> None:
    # As numbers: a name would be looked up for each of them.
    colours = to_rgba_array(_COLOURS)[pieces.kind]
    # An outline where there is room for one. Elsewhere the edge has the colour of
    # the face: it is a pixel wide, and keeps what is thinner from vanishing.
    width, height = pieces.points(axes)
    many = len(pieces) > VECTOR
    roomy = np.minimum(width, height) > 4
    if len(pieces) > CROWD:
        _paint(axes, pieces, np.flatnonzero(~roomy))
        pieces, colours, roomy = pieces.chosen(roomy), colours[roomy], roomy[roomy]
    boxes = PolyCollection(
        pieces.corners(),
        facecolors=colours,
        edgecolors=np.where(roomy[:, np.newaxis], to_rgba(style.INK), colours),
        linewidths=0.5,
        snap=True,
        rasterized=many,
        zorder=1,
    )
    boxes.set_gid("buffers")
    axes.add_collection(boxes, autolim=False)


def _paint(axes: Axes, pieces: Rectangles, rows: npt.NDArray[np.intp]) -> None:
    """Those of the rectangles that hardly show alone, as pixels: at least one each."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    shape = tuple(round(DPI * INCHES[i] * BOX[2 + i]) for i in (1, 0))
    across, up = shape[1] / (right - left), shape[0] / (high - low)
    x = np.clip((pieces.left[rows] - left) * across, 0, shape[1] - 1).astype(int)
    y = np.clip((pieces.bottom[rows] - low) * up, 0, shape[0] - 1).astype(int)
    beyond = np.ceil((pieces.right[rows] - left) * across).astype(int)
    top = np.ceil((pieces.bottom[rows] + pieces.height[rows] - low) * up).astype(int)
    none = len(_COLOURS)
    grid = np.full(shape, none, dtype=np.uint8)
    columns = (x, np.maximum(beyond, x + 1), y, np.maximum(top, y + 1))
    kinds = pieces.kind[rows].tolist()
    for kind, a, b, c, d in zip(kinds, *(e.tolist() for e in columns), strict=True):
        grid[c:d, a:b] = kind
    palette = np.vstack([to_rgba_array(_COLOURS), np.zeros(4)])
    image = axes.imshow(
        palette[grid],
        extent=(left, right, low, high),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        zorder=1.1,
    )
    image.set_gid("crowd")


def _draw_sizes(axes: Axes, pieces: Rectangles) -> None:
    """Sizes in the rectangles wide and high enough to hold them."""
    width, height = pieces.points(axes)
    for i in np.flatnonzero((width > 32) & (height > 10.5)).tolist():
        size = int(pieces.height[i])
        text = format_bytes(size)
        if width[i] < 4.6 * len(text) + 5:
            continue
        face = _COLOURS[pieces.kind[i]]
        middle = (pieces.left[i] + pieces.right[i]) / 2, pieces.bottom[i] + size / 2
        label = axes.text(*middle, text, fontsize=7.5, ha="center", zorder=5)
        label.set(va="center_baseline")
        label.set_color("white" if pieces.kind[i] in (2, 3) else style.INK)
        label.set_bbox({"facecolor": face, "edgecolor": "none", "pad": 0.8})


def _draw_borders(axes: Axes, problem: Problem, offsets: Int64Array) -> None:
    """Tabs where a wrapped buffer leaves at the right and comes back at the left."""
    start, end = clock(problem)
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
    _, end = clock(plan.problem)
    moments, live = live_bytes(plan.problem)
    # Of a million moments only the crest: a line to and fro would cover all.
    times, values = style.crest(
        np.append(moments, end).astype(float), np.append(live, live[-1]).astype(float)
    )
    halo = [patheffects.withStroke(linewidth=2.6, foreground="white")]
    (curve,) = axes.plot(times, values, color=style.INK, drawstyle="steps-post")
    curve.set(linewidth=1.1, path_effects=halo, zorder=4, gid="live")
    axes.axhline(plan.peak, color=style.INK, linewidth=1.4, zorder=5, clip_on=False)
    line = style.dashed(axes, plan.lower_bound, zorder=6)
    line.set(linewidth=1.4, clip_on=False)
    peak, bound = style.told_apart(plan.peak, plan.lower_bound)
    middle = (plan.peak + plan.lower_bound) / 2
    apart = max(abs(plan.peak - plan.lower_bound) / 2, 0.033 * axes.get_ylim()[1])
    top = "peak" if plan.lifespan_bytes else "arena"
    for y, text, colour in (
        (middle + apart, f"{top}\n{peak}", style.INK),
        (middle - apart, f"lower bound\n{bound}", style.BOUND),
    ):
        label = axes.text(1.012, y, text, color=colour, fontsize=9, va="center")
        label.set_transform(axes.get_yaxis_transform())


def _label_axes(axes: Axes, plan: Plan) -> None:
    where = "" if plan.problem.length is None else " in the step"
    ticks = "" if plan.hot.requests is None else ", one per allocation and free"
    up = "offset in the arena"
    if plan.lifespan_bytes:
        up = "offset, as solved for the largest sizes"
    style.name_axes(axes, f"time{where} (ticks{ticks})", up)
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _facts(plan: Plan) -> str:
    count = len(plan.problem)
    peak, bound = style.told_apart(plan.peak, plan.lower_bound)
    facts = [
        style.shortened(plan.provenance.method, 40),
        f"{count:,} buffer{'s' * (count != 1)}",
        f"peak {peak}",
        f"lower bound {bound}",
    ]
    if plan.lifespan_bytes:
        arena = format_bytes(plan.arena_bytes)
        facts.append(f"applied in {arena}, by how long blocks live")
    else:
        proof = ", proved optimal" * plan.proved_optimal
        facts.append(f"gap {format_gap(plan.gap)}{proof}")
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
            what = "" if handles or part is _WRAPS else f" of the {clock}"
            text = f"{part}{what} ({count:,})"
            patch = Patch(facecolor=colour, edgecolor=style.INK, lw=0.5, label=text)
            handles.append(patch)
    handles.append(Line2D([], [], color=style.INK, linewidth=1.1, label="live bytes"))
    style.set_legend(figure, BOX[0], handles)


@dataclass(frozen=True)
class Rectangles:
    """Rectangles, shape (m,) each: ticks, bytes, class; a wrapped buffer has two, one
    with gaps as many as it has pieces."""

    left: Int64Array
    right: Int64Array
    bottom: Int64Array
    height: Int64Array
    kind: npt.NDArray[np.intp]

    @classmethod
    def of(cls, problem: Problem, offsets: Int64Array) -> Rectangles:
        """Of a plan's buffers, the short-lived ones last."""
        start, end = clock(problem)
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

    def chosen(self, mask: BoolArray) -> Rectangles:
        """Those of the rectangles."""
        columns = (self.left, self.right, self.bottom, self.height, self.kind)
        return Rectangles(*(column[mask] for column in columns))

    def points(self, axes: Axes) -> tuple[Float64Array, Float64Array]:
        """Widths and heights on paper, in points, shape (m,) each."""
        (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
        across = np.float64(72 * INCHES[0] * BOX[2] / (right - left))
        up = np.float64(72 * INCHES[1] * BOX[3] / (high - low))
        return (self.right - self.left) * across, self.height * up

    def corners(self) -> Any:
        """The rectangles' corners, float, shape (m, 4, 2)."""
        top = self.bottom + self.height
        x = np.stack([self.left, self.right, self.right, self.left], axis=1)
        y = np.stack([self.bottom, self.bottom, top, top], axis=1)
        return np.stack([x, y], axis=2).astype(float)


def lifetime_classes(problem: Problem) -> npt.NDArray[np.intp]:
    """0 to 3 by the part of the clock a buffer lives, 4 if it wraps; shape (n,)."""
    start, end = clock(problem)
    part = (problem.upper - problem.lower) / (end - start)
    return np.where(problem.wraps, 4, np.searchsorted(_LIMITS, part, side="right"))


def clock(problem: Problem) -> tuple[int, int]:
    """The ticks that the picture begins and ends with."""
    if problem.length is not None:
        return 0, problem.length
    return int(problem.lower.min()), int(problem.upper.max())
