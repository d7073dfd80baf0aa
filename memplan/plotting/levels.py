"""Live bytes over a model's schedule, after each pass that compiled it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from memplan.arrays import Float64Array
from memplan.core.bounds import live_bytes
from memplan.core.plan import Plan
from memplan.plotting import style
from memplan.units import format_bytes, format_share

_BOX = (0.085, 0.24, 0.885, 0.57)


@dataclass(frozen=True)
class Drawn:
    """A pass. plan: of the arena with it. bytes: of the arena, and what lies beside."""

    name: str
    plan: Plan
    bytes: int


def levels(passes: Sequence[Drawn], before: int, title: str = "") -> Figure:
    """The picture of what each pass brought, on top of those before it.

    passes: at least one, in order. before: bytes that the model needs without them.
    """
    top = max(before, *(each.plan.peak for each in passes))
    colors = mpl.colormaps["YlGnBu"](np.linspace(0.25, 1.0, len(passes)))
    with style.settled():
        figure = Figure(figsize=(12, 5.4), facecolor="white")
        axes = style.bare_axes(figure, _BOX)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        style.set_byte_axis(axes, top * 1.05)
        for i, (each, color) in enumerate(zip(passes, colors, strict=True)):
            at, live = _curve(each.plan)
            how = {"step": "post", "color": color, "linewidth": 0, "zorder": 2 + 2 * i}
            axes.fill_between(at, live, **how)
            (line,) = axes.plot(at, live, drawstyle="steps-post", color=style.INK)
            line.set(linewidth=0.5, zorder=3 + 2 * i)
        style.dashed(axes, before, zorder=2 * len(passes) + 4)
        style.name_axes(axes, "share of the schedule", "live bytes of the arena")
        last = passes[-1].bytes
        facts = [
            f"activations {format_bytes(before)} before, {format_bytes(last)} after"
        ]
        if before:
            facts.append(f"{format_share(1 - last / before)} saved")
        style.set_title(figure, _BOX[0], title or "levels", "  ·  ".join(facts))
        handles = [
            Patch(facecolor=color, label=f"{each.name}, {format_bytes(each.bytes)}")
            for each, color in zip(passes, colors, strict=True)
        ]
        line = Line2D([], [], color=style.BOUND, linewidth=1.2)
        line.set(label="the model", linestyle=(0, (4, 2)))
        style.set_legend(figure, _BOX[0], [line, *handles], columns=4)
    return figure


def _curve(plan: Plan) -> tuple[Float64Array, Float64Array]:
    """Bytes that are live from each share of the schedule on, up to its end."""
    times, live = live_bytes(plan.problem)
    if not len(times):
        return np.array([0.0, 1.0]), np.zeros(2)
    first, last = times[0], times[-1]
    at = (times - first) / max(1, last - first)
    return style.thinned(at.astype(float), live.astype(float))
