"""What a figure shows, as text."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def axes_of(figure: Figure) -> Axes:
    """The only ones."""
    (axes,) = figure.axes
    return axes


def texts(figure: Figure) -> list[str]:
    """Of the figure, its legend and its axes."""
    (legend,) = figure.legends
    found = [*figure.texts, *legend.get_texts()]
    for axes in figure.axes:
        found += axes.texts
    return [text.get_text() for text in found]


def words(figure: Figure) -> str:
    """The same as lines of one text."""
    return "\n".join(texts(figure))
