"""The picture of stacks shows every layer, its fate, steps, sequences and cache."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from memplan.errors import InputError
from memplan.plotting import style
from memplan.plotting.stacks import (
    FATES,
    MOST_BARS,
    DrawnLayer,
    DrawnNetwork,
    DrawnSequence,
    stacks,
)

KIB = 1 << 10


def layers(count: int) -> list[DrawnLayer]:
    return [DrawnLayer("relu", FATES[i % len(FATES)]) for i in range(count)]


def boxes(figure: Figure, color: str) -> list[Rectangle]:
    return [
        patch
        for patch in figure.axes[0].patches
        if isinstance(patch, Rectangle) and to_hex(patch.get_facecolor()) == color
    ]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_every_layer_has_a_box_with_its_label() -> None:
    figure = stacks(DrawnNetwork(layers(12)), "Net")
    assert len(figure.axes[0].patches) == 12
    assert texts(figure).count("relu") == 12
    assert figure.texts[0].get_text() == "Net"
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(FATES)


@pytest.mark.parametrize("count", [1, 27, 707])
def test_boxes_stay_on_the_page_and_apart(count: int) -> None:
    figure = stacks(DrawnNetwork(layers(count)))
    axes = figure.axes[0]
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    drawn = [patch.get_bbox() for patch in axes.patches]
    assert len(drawn) == count
    assert all(left <= box.x0 < box.x1 <= right for box in drawn)
    assert all(low <= box.y0 < box.y1 <= high for box in drawn)
    assert len({(round(box.x0, 3), round(box.y0, 3)) for box in drawn}) == count
    assert max(figure.get_size_inches()) <= 13
    for box, other in itertools.pairwise(drawn):
        assert box.y0 > other.y0 or box.x1 <= other.x0


def test_steps_sequences_and_their_cache() -> None:
    first = DrawnSequence([[0, 1], [2, 3]], 30 * KIB, "max 3")
    second = DrawnSequence([[5]], 0)
    network = DrawnNetwork(layers(8), [[first, second], [second]], 40 * KIB)
    figure = stacks(network)
    assert len(boxes(figure, "#8c8c8c")) == 4  # steps
    whole, *_ = boxes(figure, "#e0e0dc")  # sequences
    (used,) = boxes(figure, style.BOUND)
    assert used.get_width() == pytest.approx(whole.get_width() * 30 / 40)
    said = texts(figure)
    assert {"1", "2", "stack 1, 1", "30.0 KiB   max 3"} <= set(said)
    assert "cache that one patch of a sequence takes, of 40.0 KiB" in said


def test_what_exceeds_the_limit_is_seen() -> None:
    over = DrawnSequence([[0]], 60 * KIB)
    figure = stacks(DrawnNetwork(layers(1), [[over]], 40 * KIB))
    _, bar = (to_hex(each.get_facecolor()) for each in figure.axes[1].patches)
    assert bar == style.WRAPPED


def test_only_the_largest_bars_are_drawn() -> None:
    many = [[DrawnSequence([[i]], (i + 1) * KIB)] for i in range(40)]
    said = texts(stacks(DrawnNetwork(layers(40), many, 64 * KIB)))
    assert sum(text.startswith("stack ") for text in said) == MOST_BARS
    assert "stack 40" in said and "stack 1" not in said
    assert any(f"the {MOST_BARS} largest of 40" in text for text in said)


def test_a_stack_that_goes_on_in_the_next_row() -> None:
    long = DrawnSequence([list(range(20, 40))], KIB)
    figure = stacks(DrawnNetwork(layers(60), [[long]], 2 * KIB))
    assert len(boxes(figure, "#e0e0dc")) == 2
    assert texts(figure).count("1") == 1


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match="without layers"):
        stacks(DrawnNetwork([]))
