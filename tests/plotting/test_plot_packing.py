"""The packing picture shows every buffer, the levels, and what they mean."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colors
from matplotlib.collections import Collection
from matplotlib.figure import Figure

from memplan.core.bounds import live_bytes
from memplan.core.plan import Plan, Requests
from memplan.core.problem import Gaps, Problem
from memplan.errors import InputError, UsageError
from memplan.plotting.packing import CROWD, VECTOR, lifetime_classes, packing
from memplan.plotting.save import save
from memplan.units import format_bytes
from tests.plans import changed
from tests.plotting.pictures import axes_of, words

MakePlan = Callable[..., Plan]


def named(figure: Figure, gid: str) -> list[Collection]:
    return [c for c in axes_of(figure).collections if c.get_gid() == gid]


def boxes(figure: Figure) -> list[tuple[float, float, float, float]]:
    """(left, right, bottom, top) of every rectangle, sorted."""
    (collection,) = named(figure, "buffers")
    extents = [path.get_extents() for path in collection.get_paths()]
    return sorted((e.x0, e.x1, e.y0, e.y1) for e in extents)


def test_a_buffer_with_gaps_is_drawn_where_it_is_used() -> None:
    gaps = Gaps.of([0, 0], [2, 5], [4, 7], [0, 3], [0, 6])
    problem = Problem.of([0, 2], [9, 4], [10, 10], gaps=gaps)
    plan = Plan.of(problem, np.array([20, 20]), "bestfit")
    assert named(packing(plan), "tabs") == []
    assert boxes(packing(plan)) == [
        (0, 2, 20, 30),
        (2, 4, 20, 30),
        (4, 5, 20, 30),
        (5, 7, 23, 26),
        (7, 9, 20, 30),
    ]


def test_a_wrapped_buffer_is_two_rectangles_of_one_colour_with_tabs() -> None:
    problem = Problem.of([8, 3], [2, 6], [10, 20], length=10)
    figure = packing(Plan.of(problem, np.array([0, 10]), "exact"))
    assert axes_of(figure).get_ylim()[1] >= 30
    assert boxes(figure) == [(0, 2, 0, 10), (3, 6, 10, 30), (8, 10, 0, 10)]
    (collection,) = named(figure, "buffers")
    shades = {colors.to_hex(c) for c in collection.get_facecolor()}
    assert len(shades) == 2
    assert [len(c.get_paths()) for c in named(figure, "tabs")] == [1, 1]
    assert axes_of(figure).get_xlim() == (0, 10)


def test_a_buffer_that_ends_as_the_clock_wraps_has_no_second_rectangle() -> None:
    problem = Problem.of([8], [0], [10], length=10)
    figure = packing(Plan.of(problem, np.array([0]), "exact"))
    assert boxes(figure) == [(8, 10, 0, 10)]
    assert len(named(figure, "tabs")) == 1


def test_lifetimes_are_classed_by_their_part_of_the_clock() -> None:
    lower, upper = [0, 0, 0, 0, 0, 0, 0, 90], [9, 10, 99, 100, 499, 500, 1000, 5]
    problem = Problem.of(lower, upper, [1] * 8, length=1000)
    assert lifetime_classes(problem).tolist() == [0, 1, 1, 2, 2, 3, 3, 4]


def test_the_words_say_what_the_plan_is(step_plan: MakePlan) -> None:
    plan = changed(step_plan(10), proved_optimal=True)
    text = words(packing(plan))
    for part in ("net.parquet", "bestfit", "30 buffers", "proved optimal", "gap "):
        assert part in text
    assert f"arena\n{format_bytes(plan.peak)}" in text
    assert f"lower bound\n{format_bytes(plan.lower_bound)}" in text
    assert f"wraps around ({plan.problem.wraps.sum()})" in text
    assert "of the step (" in text


def test_the_clock_is_named(step_plan: MakePlan) -> None:
    one = Problem.of([0], [1], [8])
    plan = Plan.of(one, np.array([0]), "exact")
    assert axes_of(packing(plan)).get_xlabel() == "time (ticks)"
    periodic = step_plan(2)
    assert axes_of(packing(periodic)).get_xlabel() == "time in the step (ticks)"
    requests = Requests((0,), one.size, np.array([0]))
    recorded = packing(changed(plan, requests=requests))
    assert "one per allocation" in axes_of(recorded).get_xlabel()


def test_the_live_bytes_are_drawn_up_to_the_end(step_plan: MakePlan) -> None:
    plan = step_plan(10)
    (curve,) = [c for c in axes_of(packing(plan)).lines if c.get_gid() == "live"]
    moments, live = live_bytes(plan.problem)
    assert np.asarray(curve.get_xdata()).tolist() == [*moments, plan.problem.length]
    assert np.asarray(curve.get_ydata()).tolist() == [*live, live[-1]]
    lines = axes_of(packing(plan)).lines[1:]
    levels = {float(np.asarray(line.get_ydata())[0]) for line in lines}
    assert levels == {plan.peak, plan.lower_bound}


def test_sizes_stand_in_large_rectangles_only() -> None:
    problem = Problem.of([0, 0, 99], [100, 100, 100], [3 << 20, 1, 1 << 20])
    offsets = np.array([0, 3 << 20, 4 << 20])
    figure = packing(Plan.of(problem, offsets, "exact"))
    texts = [text.get_text() for text in axes_of(figure).texts]
    assert "3.0 MiB" in texts
    assert "1 B" not in texts
    assert "1.0 MiB" not in texts


def test_a_large_plan_is_pixels_in_a_small_file(
    step_plan: MakePlan, tmp_path: Path
) -> None:
    base = step_plan(20, wraps=False)
    copies, ticks = 70, int(base.problem.upper.max())
    shift = np.repeat(np.arange(copies) * ticks, len(base.problem))
    problem = Problem.of(
        np.tile(base.problem.lower, copies) + shift,
        np.tile(base.problem.upper, copies) + shift,
        np.tile(base.problem.size, copies),
        alignment=512,
    )
    plan = Plan.of(problem, np.tile(base.offsets, copies), "tiled")
    assert len(problem) == 4_200 > VECTOR
    assert len(boxes(packing(plan))) == 4_200
    for suffix in (".png", ".svg", ".pdf"):
        path = tmp_path / f"plan{suffix}"
        save(packing(plan), path)
        assert path.stat().st_size < 5_000_000
    assert b"<image" in (tmp_path / "plan.svg").read_bytes()


def test_a_crowd_is_painted_where_its_rectangles_lie() -> None:
    """Thin buffers as pixels at their places; what has room for an outline keeps it."""
    count = CROWD + 5
    lower = np.append(np.arange(count) * 10, 0)
    upper = np.append(lower[:-1] + 1, 10 * count)
    size = np.append(np.where(np.arange(count) % 2, 40, 4), 1000)
    offsets = np.append(np.where(np.arange(count) < count // 2, 1000, 5000), 0)
    problem = Problem.of(lower, upper, size)
    plan = Plan.of(problem, offsets, "made")
    figure = packing(plan)
    (large,) = boxes(figure)
    assert large == (0, 10 * count, 0, 1000)
    (image,) = (i for i in axes_of(figure).images if i.get_gid() == "crowd")
    shown = np.asarray(image.get_array())[..., 3] > 0
    height, _ = shown.shape
    low, high = axes_of(figure).get_ylim()
    rows = np.unique(np.nonzero(shown)[0]) * (high - low) / height + low
    assert ((abs(rows - 1000) < 60) | (abs(rows - 5000) < 60)).all()
    assert shown.any(axis=0).all()  # none of the columns is left out
    figure.draw_without_rendering()


def test_what_cannot_be_drawn_is_refused(step_plan: MakePlan, tmp_path: Path) -> None:
    empty = Plan.of(Problem.of([], [], []), np.empty(0, np.int64), "exact")
    with pytest.raises(InputError, match="no buffers"):
        packing(empty)
    with pytest.raises(UsageError, match=r"suffix \.gif; name a \.png, \.svg, \.pdf"):
        save(packing(step_plan(2)), tmp_path / "a.gif")
    assert list(tmp_path.iterdir()) == []


def test_plotting_does_not_import_pyplot() -> None:
    code = (
        "import sys; import memplan.plotting.packing, memplan.plotting.timeline;"
        "from memplan.core.plan import Plan; from memplan.core.problem import Problem;"
        "import numpy as np;"
        "plan = Plan.of(Problem.of([0], [1], [8]), np.array([0]), 'exact');"
        "figure = memplan.plotting.packing.packing(plan);"
        "figure.savefig(sys.stdout.buffer, format='svg');"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
