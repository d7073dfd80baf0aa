"""The paper's Figure 2, drawn from what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bench.paper import Device, Result
from memplan.plotting import style

RETAINED, DEFAULT, PLANNED = "#c9c9c4", style.SHORT_TO_LONG[1], style.SHORT_TO_LONG[3]
_BOX = (0.075, 0.27, 0.905, 0.56)
_HALF = 0.4  # of the width of a case's two bars


def figure(results: Sequence[Result], device: Device) -> Figure:
    """Two bars a case: what the default allocator holds, and what is planned.

    Each is what is retained, and above it what is released by the end of each step; a
    line across both is the least that any plan can do with. Cases that were not run
    have only their planned bar.
    """
    with style.settled():
        picture = Figure(figsize=(12, 5.4), facecolor="white")
        axes = style.bare_axes(picture, _BOX)
        places = _places(results)
        for place, one in zip(places, results, strict=True):
            _draw_case(axes, place, one)
        tops = [max(_default_top(one), _planned_top(one)) for one in results]
        style.set_byte_axis(axes, max(tops, default=1))
        axes.set_xlim(places[0] - 0.8, places[-1] + 0.8)
        axes.set_xticks(places, [one.case.batch for one in results])
        axes.tick_params(axis="x", length=0)
        _name_networks(axes, places, results)
        axes.set_ylabel("memory held", fontsize=10, color=style.INK)
        style.set_title(
            picture,
            _BOX[0],
            "Memory retained, and released by the end of each step",
            f"{device.title}; batch sizes in training, I for inference of one input; "
            "left the default allocator, right the plan",
        )
        _draw_legend(picture)
    return picture


def _places(results: Sequence[Result]) -> list[float]:
    """Where each case stands on the x axis, networks set apart."""
    places: list[float] = []
    for i, one in enumerate(results):
        apart = i > 0 and one.case.network != results[i - 1].case.network
        places.append((places[-1] + 1 + 0.6 * apart) if places else 0.0)
    return places


def _default_top(one: Result) -> int:
    released = one.released("default")
    return 0 if released is None else one.retained + max(0, released)


def _planned_top(one: Result) -> int:
    return one.retained + int(one.solved["arena_bytes"])


def _draw_case(axes: Axes, place: float, one: Result) -> None:
    bars = [(place + _HALF / 2, int(one.solved["arena_bytes"]), PLANNED)]
    released = one.released("default")
    if released is not None:
        bars.append((place - _HALF / 2, max(0, released), DEFAULT))
    for x, height, colour in bars:
        axes.bar(x, one.retained, _HALF, color=RETAINED, hatch="....", edgecolor="w")
        axes.bar(x, height, _HALF, bottom=one.retained, color=colour)
    least = one.retained + int(one.solved["lower_bound"])
    ends = [place - _HALF * 1.1, place + _HALF * 1.1]
    axes.plot(ends, [least] * 2, color=style.BOUND, linewidth=1.6)


def _name_networks(
    axes: Axes, places: Sequence[float], results: Sequence[Result]
) -> None:
    """The networks' names, below the batch sizes of each."""
    members: dict[str, list[float]] = {}
    for place, one in zip(places, results, strict=True):
        members.setdefault(one.case.network, []).append(place)
    for name, own in members.items():
        axes.text(
            (own[0] + own[-1]) / 2,
            -0.11,
            name,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=10,
            color=style.INK,
        )


def _draw_legend(picture: Figure) -> None:
    style.set_legend(
        picture,
        _BOX[0],
        [
            Patch(facecolor=RETAINED, hatch="....", edgecolor="w", label="retained"),
            Patch(facecolor=DEFAULT, label="released, default allocator"),
            Patch(facecolor=PLANNED, label="released, planned arena"),
            Line2D([], [], color=style.BOUND, linewidth=1.6, label="lower bound"),
        ],
    )
