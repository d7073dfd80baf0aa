"""The picture of a blocking plan: energy, the loop nest, energy against area."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from memplan.errors import InputError
from memplan.plotting import style
from memplan.plotting.areacurve import AreaPoint, draw_curve
from memplan.plotting.energybars import (
    EnergyBars,
    draw_energy,
    drawn_of,
    level_colours,
    levels_of,
    room_for_names,
)
from memplan.plotting.loopnest import LoopNest, draw_nest
from memplan.plotting.paretofront import TimedPoint, draw_front

_WIDE = 12.0  # inches
_HEAD, _FOOT = 0.95, 1.0  # inches above and below the bars
_CURVE = 3.4  # inches that the curve adds
_ROW = 0.27  # inches of one loop


def blocked(  # noqa: PLR0913 - by name, but three
    layers: Sequence[EnergyBars],
    title: str,
    facts: Sequence[str],
    *,
    nest: LoopNest | None = None,
    curve: Sequence[AreaPoint] = (),
    front: Sequence[TimedPoint] = (),
    chosen: TimedPoint | None = None,
) -> Figure:
    """Bars of all layers, and where they are given, a nest, a curve, and a front with
    the point that was chosen.

    Raises InputError if there are no layers.
    """
    if not layers:
        raise InputError("there are no layers, so there is nothing to draw")
    rows = len(nest.loops) + 2 if nest is not None else 0
    body = max(3.5, _ROW * rows)
    extra = _CURVE * (bool(curve) + bool(front))
    drawn = drawn_of(layers)
    foot = _FOOT + room_for_names(drawn)
    high = _HEAD + body + foot + extra
    with style.settled():
        figure = Figure(figsize=(_WIDE, high), facecolor="white")
        width = 0.36 if nest is not None else 0.885
        bottom, height = (foot + extra) / high, body / high
        left = 0.075
        axes = style.bare_axes(figure, (left, bottom, width, height))
        handles = draw_energy(axes, layers)
        if nest is not None:
            beside = figure.add_axes((left + width + 0.03, bottom, 0.525, height))
            draw_nest(beside, nest, level_colours(levels_of(layers)))
        if len(drawn) < len(layers):
            facts = [*facts, f"drawn: the {len(drawn)} that take most"]
        line = "  ·  ".join(map(style.shortened, facts))
        style.set_title(figure, left, title, line)
        if curve:
            bottom = _CURVE if front else 0.0
            _add_curve(figure, (left, bottom), high, curve, layers[0].mac_pj)
        if front:
            at, height = (_FOOT + 0.15) / high, (_CURVE - 1.1) / high
            draw_front(
                style.bare_axes(figure, (left, at, 0.885, height)), front, chosen
            )
        style.set_legend(figure, left, handles)
    return figure


def _add_curve(
    figure: Figure,
    corner: tuple[float, float],
    high: float,
    curve: Sequence[AreaPoint],
    mac_pj: float,
) -> None:
    left, above = corner
    bottom, height = (_FOOT + 0.15 + above) / high, (_CURVE - 1.1) / high

    def half(at: float) -> Axes:
        return style.bare_axes(figure, (at, bottom, 0.39, height))

    draw_curve(half(left), half(left + 0.495), curve, mac_pj)
