"""The memory of a training step against the share of its forward pass made again."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from memplan.plotting.style import (
    INK,
    SHORT_TO_LONG,
    bare_axes,
    name_axes,
    set_byte_axis,
    set_title,
    settled,
)
from memplan.units import format_bytes, format_share

_SIZE = (8.0, 4.8)  # inches
_BOX = (0.11, 0.14, 0.85, 0.68)


def plot_budget(points: Sequence[tuple[int, float]], name: str) -> Figure:
    """A figure of choices: peak bytes, and the share of the forward pass made again.

    points: from the recorded peak down to the least, one or more.
    """
    with settled():
        figure = Figure(figsize=_SIZE)
        axes = bare_axes(figure, _BOX)
        shares = [100 * share for _, share in points]
        peaks = [peak for peak, _ in points]
        colour = SHORT_TO_LONG[2]
        # Between two choices the one that takes less memory is there, and no other.
        axes.step(shares, peaks, where="post", color=colour, linewidth=1.4)
        axes.plot(shares, peaks, "o", color=colour, markersize=5)
        set_byte_axis(axes, max(peaks))
        axes.set_xlim(left=-0.02 * max(*shares, 1.0))
        name_axes(axes, "forward pass computed again, %", "peak of live tensors")
        least, share = format_bytes(peaks[-1]), format_share(points[-1][1])
        facts = (
            f"{format_bytes(peaks[0])} as recorded, {least} at the least with "
            f"{share} of the forward pass again"
        )
        set_title(figure, _BOX[0], name, facts)
        axes.grid(axis="y", color=INK, alpha=0.08)
        return figure
