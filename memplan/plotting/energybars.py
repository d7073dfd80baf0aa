"""Energy of layers by memory level and tensor, as stacked bars.

As Figures 5 to 8 of the blocking paper: a bar for each tensor, and one for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from memplan.plotting import style

MAX_LAYERS = 60  # drawn; of more, those that take most energy
_WITH_TENSORS = 20  # layers: up to here every tensor has a bar
_NAME = 28  # characters of a layer's name, at most
_FEW = 8  # layers: up to here there is room for larger letters
_ACROSS, _LETTER = 10.6, 0.068  # inches for all names, and of one letter
_SPREAD = 20.0  # largest over least: from here on bars show parts, not pJ
_HATCH = "////"


@dataclass(frozen=True)
class EnergyBars:
    """One layer. parts: pJ per MAC by tensor, and by level of these, innermost first
    and main memory last; compulsory: of main memory's, what no blocking saves;
    total_pj: of the whole layer, which says how much it counts among many."""

    name: str
    parts: Mapping[str, Mapping[str, float]]
    compulsory: float
    mac_pj: float
    total_pj: float

    @property
    def per_mac(self) -> float:
        """pJ per MAC of all tensors and levels."""
        return sum(sum(levels.values()) for levels in self.parts.values())

    def of_level(self, level: str) -> float:
        """pJ per MAC of all tensors in one level."""
        return sum(levels.get(level, 0.0) for levels in self.parts.values())


def level_colours(levels: Sequence[str]) -> dict[str, str]:
    """A colour for each level, innermost first; the last, main memory, is warm."""
    shades = LinearSegmentedColormap.from_list("levels", style.SHORT_TO_LONG)
    count = len(levels) - 1
    places = np.linspace(0, 1, count) if count > 1 else [0.33]
    inner = {level: to_hex(shades(x)) for level, x in zip(levels, places, strict=False)}
    return inner | {levels[-1]: style.WRAPPED}


def levels_of(layers: Sequence[EnergyBars]) -> list[str]:
    """All levels, innermost first; main memory, which every layer has, last."""
    found: dict[str, None] = {}
    for layer in max(layers, key=lambda one: len(_levels(one))), *layers:
        found |= dict.fromkeys(_levels(layer)[:-1])
    return [*found, _levels(layers[0])[-1]]


def _levels(layer: EnergyBars) -> list[str]:
    return list(dict.fromkeys(key for part in layer.parts.values() for key in part))


def drawn_of(layers: Sequence[EnergyBars]) -> list[EnergyBars]:
    """Those that are drawn: of too many, the ones that take most energy."""
    if len(layers) <= MAX_LAYERS:
        return list(layers)
    least = sorted(one.total_pj for one in layers)[-MAX_LAYERS]
    return [one for one in layers if one.total_pj >= least][:MAX_LAYERS]


def draw_energy(axes: Axes, layers: Sequence[EnergyBars]) -> list[Patch | Line2D]:
    """Draw the bars, and return what a legend needs to explain them."""
    shown = drawn_of(layers)
    totals = [one.per_mac for one in shown]
    parted = max(totals) > _SPREAD * min(totals)
    tensors = len(shown) <= _WITH_TENSORS
    colours = level_colours(levels_of(layers))
    names: list[tuple[float, str]] = []
    for place, layer in enumerate(shown):
        scale = 1 / (layer.per_mac or 1.0) if parted else 1.0
        bars = list(layer.parts.items()) if tensors else []
        everything = {level: layer.of_level(level) for level in colours}
        width = 0.8 / (len(bars) + 1)
        for i, (name, levels) in enumerate([*bars, ("all", everything)]):
            x = place - 0.4 + width * (i + 0.5)
            names.append((x, name))
            _draw_bar(axes, x, width * 0.9, levels, colours, scale)
        _draw_compulsory(axes, x, width * 0.9, layer, scale)
        _draw_total(axes, x, layer, scale, len(shown))
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
        handles.append(_draw_mac(axes, shown))
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
    axes: Axes, x: float, width: float, layer: EnergyBars, scale: float
) -> None:
    """The top of the bar of all, where main memory is, is what no blocking saves."""
    height = layer.compulsory * scale
    bar = axes.bar(
        x,
        height,
        width,
        layer.per_mac * scale - height,
        facecolor="none",
        edgecolor="white",
        linewidth=0,
        hatch=_HATCH,
        zorder=3,
    )
    bar.patches[0].set_gid("compulsory")


def _draw_total(
    axes: Axes, x: float, layer: EnergyBars, scale: float, layers: int
) -> None:
    many = layers > _WITH_TENSORS
    text = axes.annotate(
        f"{layer.per_mac:#.3g}".rstrip("."),
        (x, layer.per_mac * scale),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        rotation=90 if many else 0,
    )
    text.set(fontsize=9 if layers <= _FEW else 7.5, color=style.INK)
    text.set(fontweight="bold", zorder=6)
    text.set_path_effects([patheffects.withStroke(linewidth=2.6, foreground="white")])


def room_for_names(shown: Sequence[EnergyBars]) -> float:
    """Inches that names need below the bars where they must stand upright; else 0."""
    longest = max(min(len(one.name), _NAME) for one in shown)
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
    axes: Axes, shown: Sequence[EnergyBars], top: float, parted: bool
) -> None:
    names = [style.shortened(one.name, _NAME) for one in shown]
    upright = bool(room_for_names(shown))
    axes.set_xticks(
        range(len(shown)),
        names,
        rotation=90 if upright else 0,
    )
    axes.tick_params(axis="x", length=0, labelsize=8 if upright else 9)
    axes.set_xlim(-0.5, len(shown) - 0.5)
    axes.set_ylim(0, top * (1.1 if len(shown) <= _WITH_TENSORS else 1.18))
    what = "part of the energy; above: pJ per MAC" if parted else "pJ per MAC"
    axes.set_ylabel(what, fontsize=10, color=style.INK)
    if parted:
        axes.yaxis.set_major_formatter(lambda part, _: f"{part:.0%}".replace("%", " %"))


def _draw_mac(axes: Axes, shown: Sequence[EnergyBars]) -> Line2D:
    line = axes.axhline(shown[0].mac_pj, color=style.BOUND, linewidth=1.2, zorder=4)
    line.set_linestyle((0, (6, 4)))
    line.set_label(f"the MAC itself, {shown[0].mac_pj:g} pJ")
    return line
