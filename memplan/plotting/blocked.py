"""The picture of a blocking plan: energy, the loop nest, energy against area and time.

Energy is in stacked bars by memory level and tensor, as in Figures 5 to 8 of the
blocking paper; against what memories may take up as in its Figure 7. A nest's loops
stand as code; a buffer stands beside the loops that use what it holds again and again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from memplan.blocking.cost.evaluation import Evaluation, Placed
from memplan.blocking.cost.timed_memories import FrontPoint
from memplan.blocking.nest.layer import Tensor
from memplan.blocking.plan import BlockingPlan, PlannedLayer
from memplan.errors import InputError
from memplan.plotting import style
from memplan.units import format_bytes

_WIDE = 12.0  # inches
_HEAD, _FOOT = 0.95, 1.0  # inches above and below the bars
_CURVE = 3.4  # inches that the curve adds
_ROW = 0.27  # inches of one loop
MAX_LAYERS = 60  # drawn; of more, those that take most energy
_WITH_TENSORS = 20  # layers: up to here every tensor has a bar
_NAME = 28  # characters of a layer's name, at most
_FEW = 8  # layers: up to here there is room for larger letters
_ACROSS, _LETTER = 10.6, 0.068  # inches for all names, and of one letter
_SPREAD = 20.0  # largest over least: from here on bars show parts, not pJ
_HATCH = "////"
_CODE = 0.42  # part of the width that the loops take
_INDENT, _DEEPEST = 0.008, 0.07  # parts of it: of one loop, and of all


def blocked(
    plan: BlockingPlan, title: str, facts: Sequence[str], datapath: str
) -> Figure:
    """Bars of all layers; of a layer alone its nest, too, and its front with the point
    that was chosen; and the curve by area, where there is one.

    datapath: what is done at once below all loops, in words. Raises InputError if there
    are no layers.
    """
    layers, curve = plan.layers, plan.curve
    if not layers:
        raise InputError("there are no layers, so there is nothing to draw")
    alone = layers[0] if len(layers) == 1 else None
    front = () if alone is None else alone.search.front
    rows = 0 if alone is None else len(alone.evaluation.nest.loops) + 2
    body = max(3.5, _ROW * rows)
    extra = _CURVE * (bool(curve) + bool(front))
    drawn = drawn_of(layers)
    foot = _FOOT + _room_for_names(drawn)
    high = _HEAD + body + foot + extra
    below = (_CURVE - 1.1) / high
    with style.settled():
        figure = Figure(figsize=(_WIDE, high), facecolor="white")
        width = 0.885 if alone is None else 0.36
        bottom, height = (foot + extra) / high, body / high
        left = 0.075
        axes = style.bare_axes(figure, (left, bottom, width, height))
        handles = _draw_energy(axes, layers)
        if alone is not None:
            beside = figure.add_axes((left + width + 0.03, bottom, 0.525, height))
            _draw_nest(beside, alone.evaluation, datapath)
        if len(drawn) < len(layers):
            facts = [*facts, f"drawn: the {len(drawn)} that take most"]
        line = "  ·  ".join(map(style.shortened, facts))
        style.set_title(figure, left, title, line)
        if curve:
            at = (_FOOT + 0.15 + (_CURVE if front else 0.0)) / high
            sides = [
                style.bare_axes(figure, (x, at, 0.39, below))
                for x in (left, left + 0.495)
            ]
            _draw_curve(sides[0], sides[1], plan)
        if front and alone is not None:
            at = (_FOOT + 0.15) / high
            across = style.bare_axes(figure, (left, at, 0.885, below))
            draw_front(across, front, alone.evaluation)
        style.set_legend(figure, left, handles)
    return figure


def level_colours(levels: Sequence[str]) -> dict[str, str]:
    """A colour for each level, innermost first; the last, main memory, is warm."""
    shades = LinearSegmentedColormap.from_list("levels", style.SHORT_TO_LONG)
    count = len(levels) - 1
    places = np.linspace(0, 1, count) if count > 1 else [0.33]
    inner = {level: to_hex(shades(x)) for level, x in zip(levels, places, strict=False)}
    return inner | {levels[-1]: style.WRAPPED}


def levels_of(layers: Sequence[PlannedLayer]) -> list[str]:
    """All levels, innermost first; main memory, which every layer has, last."""
    each = [one.evaluation.levels for one in layers]
    found: dict[str, None] = {}
    for levels in max(each, key=len), *each:
        found |= dict.fromkeys(levels[:-1])
    return [*found, each[0][-1]]


def drawn_of(layers: Sequence[PlannedLayer]) -> list[PlannedLayer]:
    """Those that are drawn: of too many, the ones that take most energy."""
    if len(layers) <= MAX_LAYERS:
        return list(layers)
    least = sorted(map(_total_pj, layers))[-MAX_LAYERS]
    return [one for one in layers if _total_pj(one) >= least][:MAX_LAYERS]


def _total_pj(one: PlannedLayer) -> float:
    return one.evaluation.total * one.count


def _name(one: PlannedLayer) -> str:
    times = f" × {one.count}" if one.count > 1 else ""
    return one.evaluation.layer.name + times


def _per_mac(one: PlannedLayer) -> float:
    return one.evaluation.per_mac(one.evaluation.total)


def _draw_energy(axes: Axes, layers: Sequence[PlannedLayer]) -> list[Patch | Line2D]:
    """Draw the bars, and return what a legend needs to explain them."""
    shown = drawn_of(layers)
    totals = list(map(_per_mac, shown))
    parted = max(totals) > _SPREAD * min(totals)
    tensors = len(shown) <= _WITH_TENSORS
    colours = level_colours(levels_of(layers))
    names: list[tuple[float, str]] = []
    for place, layer in enumerate(shown):
        found = layer.evaluation
        scale = 1 / (_per_mac(layer) or 1.0) if parted else 1.0
        bars: list[Tensor | None] = list(found.layer.tensors) if tensors else []
        width = 0.8 / (len(bars) + 1)
        for i, tensor in enumerate([*bars, None]):
            x = place - 0.4 + width * (i + 0.5)
            names.append((x, "all" if tensor is None else tensor.value))
            levels = {
                level: found.per_mac(found.pj(level, tensor)) for level in found.levels
            }
            _draw_bar(axes, x, width * 0.9, levels, colours, scale)
        _draw_compulsory(axes, x, width * 0.9, found, scale)
        _draw_total(axes, x, _per_mac(layer), scale, len(shown))
    top = max(1.0 if parted else total for total in totals)
    _set_axes(axes, shown, top, parted)
    if tensors:
        _name_bars(axes, names, len(shown))
    handles: list[Patch | Line2D] = [
        Patch(facecolor=colour, label=style.shortened(level, _NAME))
        for level, colour in colours.items()
    ]
    patch = Patch(facecolor=style.WRAPPED, edgecolor="white", hatch=_HATCH)
    patch.set_label("compulsory: each element once")
    handles.append(patch)
    if not parted:
        mac_pj = shown[0].evaluation.mac_pj
        line = style.dashed(axes, mac_pj, zorder=4)
        line.set_label(f"the MAC itself, {mac_pj:g} pJ")
        handles.append(line)
    return handles


def _draw_bar(
    axes: Axes,
    x: float,
    width: float,
    levels: Mapping[str, float],
    colours: Mapping[str, str],
    scale: float,
) -> None:
    bottom = 0.0
    for level, colour in colours.items():
        height = levels.get(level, 0.0) * scale
        if height:
            bar = axes.bar(x, height, width, bottom, color=colour, zorder=2)
            bar.patches[0].set_gid(f"level {style.shortened(level)}")
        bottom += height


def _draw_compulsory(
    axes: Axes, x: float, width: float, found: Evaluation, scale: float
) -> None:
    """The top of the bar of all, where main memory is, is what no blocking saves."""
    height = found.per_mac(found.compulsory) * scale
    bottom = found.per_mac(found.total) * scale - height
    how: dict[str, Any] = {"facecolor": "none", "edgecolor": "white", "linewidth": 0}
    bar = axes.bar(x, height, width, bottom, **how, hatch=_HATCH, zorder=3)
    bar.patches[0].set_gid("compulsory")


def _draw_total(
    axes: Axes, x: float, per_mac: float, scale: float, layers: int
) -> None:
    many = layers > _WITH_TENSORS
    words, at = f"{per_mac:#.3g}".rstrip("."), (x, per_mac * scale)
    text = axes.annotate(words, at, xytext=(0, 3), textcoords="offset points")
    text.set(ha="center", rotation=90 if many else 0)
    text.set(fontsize=9 if layers <= _FEW else 7.5, color=style.INK)
    text.set(fontweight="bold", zorder=6)
    text.set_path_effects([patheffects.withStroke(linewidth=2.6, foreground="white")])


def _room_for_names(shown: Sequence[PlannedLayer]) -> float:
    """Inches that names need below the bars where they must stand upright; else 0."""
    longest = max(min(len(_name(one)), _NAME) for one in shown)
    if len(shown) * (longest + 1) * _LETTER <= _ACROSS:
        return 0.0
    return longest * _LETTER


def _name_bars(axes: Axes, names: Sequence[tuple[float, str]], layers: int) -> None:
    """Tensors' names below the bars: in full where a layer is alone."""
    xs = [x for x, _ in names]
    if layers == 1:
        axes.set_xticks(xs, [name for _, name in names])
        return
    few = layers <= _FEW
    whole = "all" if few else ""
    letters = [whole if name == "all" else name[0].upper() for _, name in names]
    axes.xaxis.remove_overlapping_locs = False  # the middle bar's, and its layer's
    size = 8 if few else 7
    axes.set_xticks(xs, letters, minor=True, fontsize=size, color=style.MUTED)
    axes.tick_params(axis="x", which="minor", length=0, pad=3)
    axes.tick_params(axis="x", which="major", pad=17)


def _set_axes(
    axes: Axes, shown: Sequence[PlannedLayer], top: float, parted: bool
) -> None:
    names = [style.shortened(_name(one), _NAME) for one in shown]
    upright = bool(_room_for_names(shown))
    axes.set_xticks(range(len(shown)), names, rotation=90 if upright else 0)
    axes.tick_params(axis="x", length=0, labelsize=8 if upright else 9)
    axes.set_xlim(-0.5, len(shown) - 0.5)
    axes.set_ylim(0, top * (1.1 if len(shown) <= _WITH_TENSORS else 1.18))
    what = "part of the energy; above: pJ per MAC" if parted else "pJ per MAC"
    style.name_axes(axes, y=what)
    if parted:
        axes.yaxis.set_major_formatter(lambda part, _: f"{part:.0%}".replace("%", " %"))


def _draw_nest(axes: Axes, found: Evaluation, datapath: str) -> None:
    """Draw the nest, and its buffers beside the loops that use them again."""
    loops, tensors = found.nest.loops, found.layer.tensors
    colours = level_colours(found.levels)
    rows = len(loops)
    axes.set_xlim(0, 1)
    axes.set_ylim(-1.1, rows + 0.9)
    axes.axis("off")
    width = (1 - _CODE) / len(tensors)
    for place, loop in enumerate(loops):
        if place % 2 == 0:
            shade = Rectangle((0, place), 1, 1, color=style.PAPER, lw=0, zorder=0)
            axes.add_patch(shade)
        depth = (rows - 1 - place) * min(_INDENT, _DEEPEST / max(rows, 1))
        trips, row = -(-loop.outer // loop.inner), place + 0.5
        step = f" by {loop.inner}" if loop.inner > 1 else ""
        text = f"{loop.dim} to {loop.outer:,}{step}"
        _write(axes, (0.006 + depth, row), text, "left")
        _write(axes, (_CODE - 0.02, row), f"× {trips:,}", "right", style.MUTED)
    _write(axes, (0.006, -0.55), datapath, "left", style.MUTED)
    for lane, tensor in enumerate(tensors):
        left = _CODE + lane * width
        middle = (left + width / 2, rows + 0.45)
        _write(axes, middle, tensor.value, "center", weight="bold")
        for placed in found.buffers:
            if placed.tensor is tensor:
                _draw_buffer(axes, placed, left, width, colours[placed.level])


def _draw_buffer(
    axes: Axes, placed: Placed, left: float, width: float, colour: str
) -> None:
    begin, end = placed.buffer.begin, placed.buffer.end
    corner, high = (left + 0.006, begin + 0.08), end - begin - 0.16
    box = Rectangle(corner, width - 0.012, high, facecolor=colour, edgecolor="none")
    name = style.shortened(placed.name)
    box.set(zorder=2, gid=f"buffer {name}")
    axes.add_patch(box)
    text = f"{name}  {format_bytes(placed.nbytes)}"
    red, green, blue = to_rgb(colour)
    dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
    ink = "white" if dark else style.INK
    _write(axes, (left + width / 2, (begin + end) / 2), text, "center", ink)


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


def _draw_curve(by_bytes: Axes, by_area: Axes, plan: BlockingPlan) -> None:
    """Energy over the budget's bytes, and over the area that it takes."""
    points, mac_pj = plan.curve, plan.layers[0].evaluation.mac_pj
    energies = [point.energy_pj / plan.macs for point in points]
    sizes, areas = zip(*((one.budget, one.area_mm2) for one in points), strict=True)
    for axes, x, what in (
        (by_bytes, sizes, "budget for memories"),
        (by_area, areas, "area of memories and datapath (mm²)"),
    ):
        axes.plot(x, energies, color=style.SHORT_TO_LONG[2], marker="o", ms=4)
        _set_energy_axes(axes, max(*energies, mac_pj), what)
        style.dashed(axes, mac_pj)
    if min(sizes) > 0:  # no budget at all has no place on a logarithmic axis
        by_bytes.set_xscale("log", base=2)
    every = -(-len(sizes) // 8)
    labels = [format_bytes(size).replace(".0 ", " ") for size in sizes[::every]]
    by_bytes.set_xticks(sizes[::every], labels)
    by_bytes.minorticks_off()
    by_area.set_xlim(left=0)


def _set_energy_axes(axes: Axes, top: float, across: str) -> None:
    axes.grid(axis="y", color=style.PAPER, zorder=0)
    axes.set_axisbelow(True)
    axes.set_ylim(0, top * 1.08)
    style.name_axes(axes, across, "pJ per MAC")


def draw_front(axes: Axes, points: Sequence[FrontPoint], chosen: Evaluation) -> None:
    """The points by cycles, joined by steps, and the nest that was chosen."""
    ordered = sorted(points, key=lambda one: one.cycles)
    cycles = [one.cycles for one in ordered]
    energies = [chosen.per_mac(one.energy) for one in ordered]
    axes.step(cycles, energies, where="post", color=style.SHORT_TO_LONG[2])
    axes.plot(cycles, energies, color=style.SHORT_TO_LONG[2], marker="o", ms=4, ls="")
    if chosen.latency is not None:
        at = [chosen.latency.cycles], [chosen.per_mac(chosen.total)]
        axes.plot(*at, marker="D", ms=7, ls="", color=style.BOUND, label="the plan's")
        axes.legend(frameon=False, fontsize=9)
    _set_energy_axes(axes, max(energies), "cycles")
    axes.ticklabel_format(axis="x", style="plain", useOffset=False)
    axes.locator_params(axis="x", nbins=6)
