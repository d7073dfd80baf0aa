"""The timeline shows live bytes, steps and the peak of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from memplan.errors import InputError
from memplan.plotting.timeline import Failure, Run, memory, timeline
from tests.plotting.pictures import axes_of, words
from tests.reporting.asking import asking

TIMES = [0.0, 0.5, 1.0, 1.5, 2.0]
LIVE = [1 << 20, 2 << 20, 5 << 20, 2 << 20, 1 << 20]


def draw(
    times: npt.ArrayLike,
    live: npt.ArrayLike,
    marks_s: npt.ArrayLike = (),
    title: str = "",
    **more: Any,
) -> Figure:
    arrays = (np.asarray(each, dtype=float) for each in (times, live, marks_s))
    return timeline(Run(*arrays, **more), title)


def curve(figure: Figure) -> tuple[list[float], list[float]]:
    line = axes_of(figure).lines[0]
    return np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()


def test_the_curve_and_its_peak() -> None:
    figure = draw(TIMES, LIVE, title="run.parquet")
    assert curve(figure) == ([*TIMES, 2.0], [*LIVE, LIVE[-1]])
    text = words(figure)
    assert "peak 5.0 MiB at 1 s" in text
    assert "run.parquet" in text
    assert "5 allocations and frees" in text
    assert axes_of(figure).get_xlabel() == "time (s)"
    assert "step" not in text


def test_steps_are_marked_and_numbered() -> None:
    figure = draw(TIMES, LIVE, marks_s=[0.4, 1.2])
    (steps,) = [c for c in axes_of(figure).collections if c.get_gid() == "steps"]
    assert [path.get_extents().x0 for path in steps.get_paths()] == [0.4, 1.2]
    numbers = [t.get_text() for t in axes_of(figure).texts]
    assert {"step", "1", "2"} <= set(numbers)
    assert "a step begins" in words(figure)
    assert "2 steps" in words(figure)


@pytest.mark.parametrize(
    ("count", "first", "drawn", "legend"),
    [
        (25, 1, 25, "a step begins"),
        (26, 2, 13, "every 2nd step begins"),
        (100, 5, 20, "every 5th step begins"),
        (126, 10, 12, "every 10th step begins"),
        (4000, 200, 20, "every 200th step begins"),
    ],
)
def test_of_many_steps_every_kth_is_drawn(
    count: int, first: int, drawn: int, legend: str
) -> None:
    figure = draw(TIMES, LIVE, marks_s=np.linspace(0.0, 2.0, count))
    (steps,) = [c for c in axes_of(figure).collections if c.get_gid() == "steps"]
    assert len(steps.get_paths()) == drawn
    numbers = [t.get_text() for t in axes_of(figure).texts if t.get_text().isdigit()]
    assert numbers[0] == str(first)
    assert legend in words(figure)


def test_numbers_of_crowded_steps_do_not_overlap() -> None:
    figure = draw(TIMES, LIVE, marks_s=[1.0, 1.001, 1.002, 1.5])
    numbers = [t.get_text() for t in axes_of(figure).texts if t.get_text().isdigit()]
    assert numbers == ["1", "4"]


def test_marks_outside_the_run_are_left_out() -> None:
    figure = draw(TIMES, LIVE, marks_s=[-3.0, 1.0, 9.0])
    (steps,) = [c for c in axes_of(figure).collections if c.get_gid() == "steps"]
    assert len(steps.get_paths()) == 1


def test_live_bytes_are_split_where_persistent_ones_are_known() -> None:
    plain = draw(TIMES, LIVE)
    figure = draw(TIMES, LIVE, persistent=np.full(5, 2.0**20))
    areas = len(axes_of(figure).collections)
    assert areas == len(axes_of(plain).collections) + 1
    assert "transient" in words(figure)
    assert "persistent 1.0 MiB" in words(figure)


@pytest.mark.parametrize("where", [0, 2, 4])
def test_the_peak_is_named_inside_the_picture(where: int) -> None:
    live = [1.0] * 5
    live[where] = 2.0
    figure = draw(TIMES, live)
    (label,) = [t for t in axes_of(figure).texts if "peak" in t.get_text()]
    figure.canvas.draw()
    box, frame = label.get_window_extent(), axes_of(figure).get_window_extent()
    assert frame.x0 - 5 <= box.x0
    assert box.x1 <= frame.x1 + 5
    assert box.y1 <= frame.y1


def test_a_single_event_and_no_bytes_are_drawn() -> None:
    assert "1 allocation " in words(draw([3.0], [100]))
    assert "peak 0 B" in words(draw(TIMES, [0] * 5))


def test_without_events_there_is_nothing_to_draw() -> None:
    with pytest.raises(InputError, match="no events"):
        draw([], [])


def test_a_request_that_failed_is_marked() -> None:
    for when in (0.0, 1.5, 9.0):  # the last one behind all that was drawn
        failure = Failure(when, 1 << 30, "$a$_\x1b.py:3 f")
        figure = draw([0.0, 1.0, 2.0], [5, 9, 2], failure=failure)
        (mark,) = figure.findobj(lambda one: one.get_gid() == "failure")
        assert isinstance(mark, Line2D)
        assert np.asarray(mark.get_xdata())[0] == min(when, 2.0)
        assert np.asarray(mark.get_ydata())[0] == {0.0: 5, 1.5: 9, 9.0: 2}[when]
        said = [text.get_text() for text in axes_of(figure).texts]
        assert any(text.startswith("1.0 GiB could not be had\n$a$") for text in said)
        assert not any("\x1b" in text for text in said)
        figure.draw_without_rendering()


def test_the_picture_of_a_trace_marks_what_failed() -> None:
    figure = memory(asking(3, asked=1 << 40))
    said = [text.get_text() for text in axes_of(figure).texts]
    assert "1.0 TiB could not be had\ntrain.py:21 main" in said
    whole = memory(asking(3))
    assert not whole.findobj(lambda one: one.get_gid() == "failure")


def test_steps_after_a_long_start_have_room() -> None:
    times = np.concatenate([[0.0], 100.0 + np.arange(200) * 1e-3])
    live = np.arange(201) % 7 * 1024
    marks = [100.0495, 100.1495, 100.2]
    figure = draw(times, live, marks)
    assert curve(figure)[0][:3] == [0, 1, 2]
    (steps,) = [c for c in axes_of(figure).collections if c.get_gid() == "steps"]
    assert [path.get_extents().x0 for path in steps.get_paths()] == [51, 151]
    text = words(figure)
    assert "201 allocations and frees" in text
    assert "3 steps" in text  # the last one ends as the run does
    label = axes_of(figure).get_xlabel()
    assert label == "allocations and frees, of which half came within 100 ms"
