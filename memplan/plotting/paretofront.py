"""Energy against cycles: nests of which none beats another in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from memplan.plotting import style


@dataclass(frozen=True)
class TimedPoint:
    """A nest's cycles, and its energy in pJ per MAC."""

    cycles: float
    per_mac: float


def draw_front(
    axes: Axes, points: Sequence[TimedPoint], chosen: TimedPoint | None
) -> None:
    """The points by cycles, joined by steps, and the nest that was chosen."""
    ordered = sorted(points, key=lambda one: one.cycles)
    cycles = [one.cycles for one in ordered]
    energies = [one.per_mac for one in ordered]
    axes.step(cycles, energies, where="post", color=style.SHORT_TO_LONG[2])
    axes.plot(cycles, energies, color=style.SHORT_TO_LONG[2], marker="o", ms=4, ls="")
    if chosen is not None:
        axes.plot(
            [chosen.cycles],
            [chosen.per_mac],
            marker="D",
            ms=7,
            ls="",
            color=style.BOUND,
            label="the plan's",
        )
        axes.legend(frameon=False, fontsize=9)
    axes.grid(axis="y", color=style.PAPER, zorder=0)
    axes.set_axisbelow(True)
    axes.set_ylim(0, max(energies) * 1.08)
    axes.set_ylabel("pJ per MAC", fontsize=10, color=style.INK)
    axes.set_xlabel("cycles", fontsize=10, color=style.INK)
    axes.ticklabel_format(axis="x", style="plain", useOffset=False)
    axes.locator_params(axis="x", nbins=6)
