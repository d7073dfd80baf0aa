"""Least energy against what memories may take up, as in the paper's Figure 7."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from memplan.plotting import style
from memplan.units import format_bytes


@dataclass(frozen=True)
class AreaPoint:
    """The least energy, pJ per MAC, with memories of at most `budget` bytes; those it
    takes, and the area of the chip."""

    budget: int
    sram_bytes: int
    area_mm2: float
    per_mac: float


def draw_curve(
    by_bytes: Axes, by_area: Axes, points: Sequence[AreaPoint], mac_pj: float
) -> None:
    """Energy over the budget's bytes, and over the area that it takes."""
    energies = [point.per_mac for point in points]
    for axes, x in (
        (by_bytes, [point.budget for point in points]),
        (by_area, [point.area_mm2 for point in points]),
    ):
        axes.plot(x, energies, color=style.SHORT_TO_LONG[2], marker="o", ms=4)
        axes.set_ylim(0, max(*energies, mac_pj) * 1.08)
        axes.grid(axis="y", color=style.PAPER, zorder=0)
        axes.set_axisbelow(True)
        line = axes.axhline(mac_pj, color=style.BOUND, linewidth=1.2)
        line.set_linestyle((0, (6, 4)))
        axes.set_ylabel("pJ per MAC", fontsize=10, color=style.INK)
    sizes = [point.budget for point in points]
    if min(sizes) > 0:  # no budget at all has no place on a logarithmic axis
        by_bytes.set_xscale("log", base=2)
    every = -(-len(sizes) // 8)
    labels = [format_bytes(size).replace(".0 ", " ") for size in sizes[::every]]
    by_bytes.set_xticks(sizes[::every], labels)
    by_bytes.minorticks_off()
    by_bytes.set_xlabel("budget for memories", fontsize=10, color=style.INK)
    by_area.set_xlabel("area of memories and datapath (mm²)", fontsize=10)
    by_area.set_xlim(left=0)
