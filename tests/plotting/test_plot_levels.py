"""The picture of levels has a curve for each pass, up to its own peak."""

from __future__ import annotations

import pytest
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.figure import Figure

from memplan.core.plan import Plan
from memplan.core.problem import Problem
from memplan.plotting.levels import Drawn, levels
from memplan.solving.solve import solve

MIB = 1 << 20


def plan(*buffers: tuple[int, int, int]) -> Plan:
    starts, ends, sizes = zip(*buffers, strict=True) if buffers else ((), (), ())
    return solve(Problem.of(starts, ends, [each * MIB for each in sizes]))


def tops(figure: Figure) -> list[float]:
    """The highest point of each curve, in MiB."""
    found = figure.axes[0].collections
    curves = [each for each in found if isinstance(each, FillBetweenPolyCollection)]
    return [float(each.get_paths()[0].vertices[:, 1].max()) / MIB for each in curves]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_curve_for_each_pass(count: int) -> None:
    plans = [plan((0, 3, 4), (2, 5, 8 - i), (5, 9, 1)) for i in range(count)]
    drawn = [Drawn(f"pass {i}", each, each.peak) for i, each in enumerate(plans)]
    figure = levels(drawn, 16 * MIB, "Net")
    assert tops(figure) == [12 - i for i in range(count)]
    assert figure.axes[0].get_xlim() == (0, 1)
    assert figure.axes[0].get_ylim()[1] >= 16 * MIB
    (legend,) = figure.legends
    words = [each.get_text() for each in legend.get_texts()]
    assert words == ["the model", *(f"pass {i}, {12 - i}.0 MiB" for i in range(count))]
    figure.canvas.draw()
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width
    assert figure.texts[0].get_text() == "Net"


def test_an_arena_without_buffers() -> None:
    figure = levels([Drawn("one arena", plan(), 0)], 0)
    assert tops(figure) == [0]
