"""A page in Markdown whose text is written by hand, and the paper's bars and curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from memplan.files import write_bytes
from memplan.plotting import style
from memplan.plotting.save import save

# A row per bar: its group, its name, and what it is made of, from below.
Bar = tuple[str, str, Mapping[str, float]]

_COLOURS = (*style.SHORT_TO_LONG, style.WRAPPED, style.BOUND, style.MUTED)
_BOX = (0.075, 0.25, 0.905, 0.6)
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def bars(
    rows: Sequence[Bar],
    title: str,
    facts: str,
    unit: str,
    *,
    log: bool = False,
    line: float | None = None,
) -> Figure:
    """Stacked bars in groups; on a logarithmic axis each should have one part.

    line: a height to compare with.
    """
    parts = list(dict.fromkeys(part for _, _, heights in rows for part in heights))
    colours = dict(zip(parts, _COLOURS, strict=False))
    with style.settled():
        figure = Figure(figsize=(12, 4.6), facecolor="white")
        axes = style.bare_axes(figure, _BOX)
        places: list[float] = []
        for i, (group, _, _) in enumerate(rows):
            apart = i > 0 and group != rows[i - 1][0]
            places.append((places[-1] + 1 + 0.8 * apart) if places else 0.0)
        for place, (_, _, heights) in zip(places, rows, strict=True):
            bottom = 0.0
            for part, height in heights.items():
                axes.bar(place, height, 0.84, bottom, color=colours[part], zorder=2)
                bottom += 0.0 if log else height
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(_power_of_ten))
            axes.yaxis.set_minor_formatter(NullFormatter())
            least = min(min(heights.values()) for _, _, heights in rows)
            axes.set_ylim(bottom=least / 2)
        if line is not None:
            axes.axhline(line, color=style.BOUND, linewidth=1.2, linestyle=(0, (6, 4)))
        axes.set_xticks(places, [name for _, name, _ in rows])
        axes.tick_params(axis="x", length=0, labelsize=8)
        for group in dict.fromkeys(group for group, _, _ in rows):
            own = [p for p, row in zip(places, rows, strict=True) if row[0] == group]
            middle = (own[0] + own[-1]) / 2
            at = axes.get_xaxis_transform()
            axes.text(middle, -0.16, group, transform=at, ha="center", fontsize=10)
        axes.set_xlim(places[0] - 0.8, places[-1] + 0.8)
        axes.set_ylabel(unit, fontsize=10, color=style.INK)
        style.set_title(figure, _BOX[0], title, facts)
        handles = [Patch(facecolor=colours[part], label=part) for part in parts]
        style.set_legend(figure, _BOX[0], handles)
    return figure


def curves(
    points: Mapping[str, Sequence[tuple[float, float]]], title: str, facts: str
) -> Figure:
    """Energy over area, both against DianNao's, one curve a layer."""
    with style.settled():
        figure = Figure(figsize=(12, 4.6), facecolor="white")
        axes = style.bare_axes(figure, _BOX)
        for (name, curve), colour in zip(points.items(), _COLOURS, strict=False):
            x, y = zip(*curve, strict=True)
            axes.plot(x, y, color=colour, marker="o", ms=4, label=name)
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.set_xlabel("area, DianNao's is 1", fontsize=10, color=style.INK)
        axes.set_ylabel("energy, DianNao's is 1", fontsize=10, color=style.INK)
        style.set_title(figure, _BOX[0], title, facts)
        axes.legend(frameon=False, fontsize=9)
    return figure


def _power_of_ten(height: float, _: object) -> str:
    """matplotlib's own are formulas, which names with dollar signs forbid."""
    return "10" + f"{math.log10(height):.0f}".translate(_RAISED)


class Page:
    """A page, and the pictures beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = path.read_text(encoding="utf-8").splitlines()

    def table(self, columns: str, rows: Sequence[str]) -> None:
        """Replace the page's table that has these columns, with | between its cells.

        The first column is text, the others are numbers. Where the page has no such
        table, print it.
        """
        rules = "---" + " | ---:" * columns.count("|")
        lines = [f"| {row} |" for row in (columns, rules, *rows)]
        if lines[0] not in self._lines:
            print(f"{self._path} has no such table:", *lines, sep="\n")
            return
        first = last = self._lines.index(lines[0])
        while last < len(self._lines) and self._lines[last].startswith("|"):
            last += 1
        self._lines[first:last] = lines

    def figure(self, name: str, drawn: Figure) -> None:
        """Write a picture as SVG."""
        save(drawn, self._path.with_name(f"blocking-{name}.svg"), force=True)

    def write(self) -> None:
        """Write the page with its new tables."""
        write_bytes(self._path, ("\n".join(self._lines) + "\n").encode())
