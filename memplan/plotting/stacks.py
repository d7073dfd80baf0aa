"""A network's layers in order, its stacks below them, and what caches these take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from memplan.errors import InputError
from memplan.plotting import style
from memplan.units import format_bytes

# What became of a layer: (key, colour of its box, of its label, what the legend says).
_FATES = (
    ("convolution", "#253494", "white", "convolution"),
    ("joined", "#2c7fb8", "white", "joined into a convolution"),
    ("stack", "#86cfa0", style.INK, "in a stack that runs"),
    ("placed", "#c7dff0", style.INK, "concatenated without a copy"),
    ("nothing", "#e9e9e6", style.MUTED, "nothing to compute"),
    ("torch", style.WRAPPED, "white", "left to torch"),
)
FATES = tuple(key for key, *_ in _FATES)
_COLORS = {key: (box, text) for key, box, text, _ in _FATES}

_STEP, _EMPTY, _USED = "#8c8c8c", "#e0e0dc", style.BOUND
_WIDTH, _MARGIN = 12.0, 0.55  # inches
_LABELLED = 26  # boxes in a row, at most, that have room for a label
_MOST_IN_ROW = 56
MOST_BARS = 14


@dataclass(frozen=True)
class DrawnLayer:
    """A layer: a label of few letters, and what became of it, one of FATES."""

    label: str
    fate: str


@dataclass(frozen=True)
class DrawnSequence:
    """Steps, each the layers in it by their numbers, and bytes of cache that a patch
    takes; words: what it does."""

    steps: Sequence[Sequence[int]]
    cache_bytes: int
    words: str = ""


@dataclass(frozen=True)
class DrawnNetwork:
    """Layers in order, and stacks, each of sequences; limit_bytes: a sequence's cache.

    facts: a line below the title.
    """

    layers: Sequence[DrawnLayer]
    stacks: Sequence[Sequence[DrawnSequence]] = field(default_factory=tuple)
    limit_bytes: int = 0
    facts: str = ""


def stacks(network: DrawnNetwork, title: str = "") -> Figure:
    """The picture of a network's stacks. Raises InputError if it has no layers."""
    if not network.layers:
        raise InputError("a network without layers has no picture")
    grid = _Grid(len(network.layers))
    bars = _bars(network)
    shown = bars[:MOST_BARS]
    below = 0.42 + 0.24 * len(shown) if shown else 0.0
    height = 0.95 + grid.height + below + 0.5
    with style.settled():
        figure = Figure(figsize=(_WIDTH, height), facecolor="white")
        left, wide = _MARGIN / _WIDTH, 1 - 2 * _MARGIN / _WIDTH
        box = (left, (0.5 + below) / height, wide, grid.height / height)
        _draw_layers(figure, box, network, grid)
        if shown:
            _draw_bars(figure, shown, len(bars), network)
        style.set_title(figure, left, title or "stacks", network.facts)
        _draw_legend(figure, left, network)
    return figure


class _Grid:
    """Where boxes are: rows from the top, all in inches."""

    def __init__(self, count: int) -> None:
        room = _WIDTH - 2 * _MARGIN
        # As many in a row as have room for labels, until the page would be too long.
        self.columns = min(max(count, 12), _LABELLED)
        if count > 9 * _LABELLED:
            self.columns = min(_MOST_IN_ROW, max(40, round(count**0.5 * 1.9)))
        self.pitch = room / self.columns
        self.rows = -(-count // self.columns)
        self.labelled = self.columns <= _LABELLED
        self.box = 0.30 if self.labelled else 0.18
        self.row = self.box + (0.48 if self.labelled else 0.36)
        self.height = self.rows * self.row

    def at(self, number: int) -> tuple[float, float]:
        """Left edge and top of a layer's place."""
        row, column = divmod(number, self.columns)
        return column * self.pitch, self.height - row * self.row


def _draw_layers(
    figure: Figure,
    box: tuple[float, float, float, float],
    network: DrawnNetwork,
    grid: _Grid,
) -> None:
    axes = figure.add_axes(box)
    axes.set_xlim(0, grid.columns * grid.pitch)
    axes.set_ylim(0, grid.height)
    axes.axis("off")
    gap = 0.06 * grid.pitch
    for number, layer in enumerate(network.layers):
        x, y = grid.at(number)
        color, ink = _COLORS[layer.fate]
        corner, wide = (x + gap / 2, y - grid.box), grid.pitch - gap
        axes.add_patch(Rectangle(corner, wide, grid.box, facecolor=color, linewidth=0))
        if grid.labelled:
            middle = x + grid.pitch / 2, y - grid.box / 2 - 0.01
            text = style.shortened(layer.label, 10)
            size = min(7.5, grid.pitch * 104 / max(len(text), 1))
            axes.text(*middle, text, ha="center", va="center", fontsize=size, color=ink)
    for number, stack in enumerate(network.stacks, 1):
        _draw_stack(axes, grid, number, stack, network.limit_bytes)


def _draw_stack(
    axes: Axes, grid: _Grid, number: int, stack: Sequence[DrawnSequence], limit: int
) -> None:
    """Below a stack's layers: steps, sequences with what they take of the cache, and
    the stack's number."""
    top, thin = grid.box + 0.05, 0.035 if grid.labelled else 0.03
    lower, bar = top + thin + 0.035, 0.07 if grid.labelled else 0.055
    for sequence in stack:
        for step in sequence.steps:
            for span in _spans(grid, step):
                _rectangle(axes, grid, span, (top, thin), _STEP)
        spans = _spans(grid, [layer for step in sequence.steps for layer in step])
        whole = sum(stop - start for start, stop in spans)
        full = min(sequence.cache_bytes / limit, 1.0) * whole if limit else 0.0
        for start, stop in spans:
            _rectangle(axes, grid, (start, stop), (lower, bar), _EMPTY)
            used = min(full, stop - start)
            full -= used
            if used:
                _rectangle(axes, grid, (start, stop), (lower, bar), _USED, used)
    members = [layer for each in stack for step in each.steps for layer in step]
    spans = _spans(grid, members)
    if len(stack) > 1:
        for span in spans:
            _rectangle(axes, grid, span, (lower + bar + 0.02, 0.012), style.INK)
    start, stop = spans[0]
    x, y = grid.at(start)
    middle = x + (stop - start) * grid.pitch / 2, y - lower - bar - 0.04
    text = axes.text(*middle, str(number), fontsize=7.0 if grid.labelled else 5.0)
    text.set(ha="center", va="top", color=style.MUTED)


def _spans(grid: _Grid, layers: Sequence[int]) -> list[tuple[int, int]]:
    """Layers as [start, stop) of those that stand side by side in one row."""
    found: list[tuple[int, int]] = []
    for layer in sorted(layers):
        beside = found and found[-1][1] == layer and layer % grid.columns
        if beside:
            found[-1] = found[-1][0], layer + 1
        else:
            found.append((layer, layer + 1))
    return found


def _rectangle(
    axes: Axes,
    grid: _Grid,
    span: tuple[int, int],
    below: tuple[float, float],
    color: str,
    part: float | None = None,
) -> None:
    """A bar below layers [start, stop): `below` is its distance from their top, and its
    height; part: how many of the layers it is long, if not all."""
    gap = 0.12 * grid.pitch
    (x, y), (distance, height) = grid.at(span[0]), below
    whole = (span[1] - span[0]) * grid.pitch - gap
    width = whole if part is None else whole * part / (span[1] - span[0])
    corner = x + gap / 2, y - distance - height
    axes.add_patch(Rectangle(corner, width, height, facecolor=color, linewidth=0))


def _bars(network: DrawnNetwork) -> list[tuple[str, DrawnSequence]]:
    """Sequences that take cache, with their stack's number, the fullest first."""
    found = [
        (f"stack {number}" + (f", {part}" if len(stack) > 1 else ""), sequence)
        for number, stack in enumerate(network.stacks, 1)
        for part, sequence in enumerate(stack, 1)
        if sequence.cache_bytes
    ]
    return sorted(found, key=lambda each: -each[1].cache_bytes)


def _draw_bars(
    figure: Figure,
    shown: Sequence[tuple[str, DrawnSequence]],
    count: int,
    network: DrawnNetwork,
) -> None:
    """Bars of the cache that sequences take, beside the limit."""
    height = figure.get_figheight()
    rows = len(shown) + 0.2
    left, low = (_MARGIN + 1.0) / _WIDTH, 0.62 / height
    axes = figure.add_axes((left, low, 0.42, 0.24 * rows / height))
    top = max([network.limit_bytes, *(each.cache_bytes for _, each in shown)])
    axes.set_xlim(0, top * 1.02)
    axes.set_ylim(rows - 0.6, -1.1)
    axes.axis("off")
    for row, (name, sequence) in enumerate(shown):
        over = sequence.cache_bytes > network.limit_bytes > 0
        axes.barh(row, top, height=0.55, color=style.PAPER)
        colour = style.WRAPPED if over else _USED
        axes.barh(row, sequence.cache_bytes, height=0.55, color=colour)
        left = axes.text(-0.012 * top, row, name, ha="right", va="center", fontsize=8)
        left.set_color(style.INK)
        words = format_bytes(sequence.cache_bytes)
        words += f"   {style.shortened(sequence.words, 70)}" if sequence.words else ""
        right = axes.text(top * 1.03, row, words, ha="left", va="center", fontsize=8)
        right.set_color(style.MUTED)
    if network.limit_bytes:
        ends = [-0.45, len(shown) - 0.55]
        at = [network.limit_bytes] * 2
        axes.plot(at, ends, color=style.INK, linewidth=1.0, linestyle=(0, (4, 2)))
    title = "cache that one patch of a sequence takes"
    if network.limit_bytes:
        title += f", of {format_bytes(network.limit_bytes)}"
    if count > len(shown):
        title += f": the {len(shown)} largest of {count:,}"
    axes.text(0, -0.85, title, fontsize=8.5, color=style.INK, fontweight="bold")


def _draw_legend(figure: Figure, left: float, network: DrawnNetwork) -> None:
    """Colours of boxes along the lower edge; what the bars below them are, on top."""
    used = {layer.fate for layer in network.layers}
    boxes = [
        Patch(facecolor=box, label=text) for key, box, _, text in _FATES if key in used
    ]
    style.set_legend(figure, left, boxes)
    if not network.stacks:
        return
    bars = [
        Patch(facecolor=_STEP, label="step"),
        Patch(facecolor=_EMPTY, label="sequence"),
    ]
    if any(each.cache_bytes for stack in network.stacks for each in stack):
        bars.append(Patch(facecolor=_USED, label="cache it takes"))
    top = 1 - 0.42 / figure.get_figheight()
    style.set_legend(figure, 1 - left + 0.014, bars, "upper right", top)
