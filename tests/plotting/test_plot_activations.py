"""The picture of activations shows both curves, the loops and the budget."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from memplan.plotting.activations import Activations, activations
from tests.plotting.pictures import texts

MIB = 1 << 20
BEFORE = Activations([MIB, 9 * MIB, 2 * MIB], "softmax, model.py:7")
AFTER = Activations([MIB, 2 * MIB, 3 * MIB], "add, model.py:9", [(0, 2, 16)])


def lines(axes: Axes) -> list[list[float]]:
    return [np.asarray(line.get_ydata()).tolist() for line in axes.lines]


def test_both_curves_and_their_peaks() -> None:
    figure = activations(BEFORE, AFTER, 4 * MIB, "Model")
    (axes,) = figure.axes
    assert lines(axes)[:2] == [
        [MIB, 9 * MIB, 2 * MIB, 2 * MIB],
        [MIB, 2 * MIB, 3 * MIB, 3 * MIB],
    ]
    assert [4 * MIB, 4 * MIB] in lines(axes)
    said = texts(figure)
    assert "Model" in said
    assert "9.0 MiB at softmax, model.py:7" in said
    assert "3.0 MiB at add, model.py:9" in said
    assert {"as it was", "in chunks", "budget", "a loop, its operators once"} <= {*said}
    assert any("66.7 % saved" in text for text in said)


def test_loops_say_how_often_they_run() -> None:
    nested = Activations([MIB] * 9, "", [(1, 8, 16), (2, 5, 4), (8, 9, 2)])
    said = texts(activations(BEFORE, nested, 0))
    assert "×16 ×4" in said
    assert "×2" in said
    assert "budget" not in said


def test_no_loops_are_no_words_about_loops() -> None:
    plain = Activations([MIB, MIB])
    assert "a loop, its operators once" not in texts(activations(BEFORE, plain, MIB))
