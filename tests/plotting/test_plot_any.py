"""`memplan.plot`, and what a notebook or a prompt shows of traces and plans."""

from __future__ import annotations

import re

import pytest
from matplotlib.figure import Figure

import memplan
from memplan.errors import InputError
from memplan.trace.trace import Columns, Trace
from tests.reporting.pages import hostile, loop


def test_a_trace_and_a_plan_are_drawn() -> None:
    trace = loop(steps=6)
    for source in (trace, memplan.solve(trace)):
        figure = memplan.plot(source, "a title")
        assert isinstance(figure, Figure)
        assert "a title" in [text.get_text() for text in figure.texts]


def test_what_is_neither_is_refused() -> None:
    with pytest.raises(TypeError, match="Trace, a Plan, or the path of one, not int"):
        memplan.plot(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="nothing to draw"):
        memplan.plot(Trace(Columns.of()))


def test_a_repr_is_short() -> None:
    trace = loop(steps=6)
    assert re.fullmatch(r"Trace\('train.py', \d+ events, 4 stacks, cpu\)", repr(trace))
    assert repr(memplan.solve(trace)).startswith("Plan('auto', ")
    assert len(repr(memplan.solve(trace))) < 120
    assert repr(Trace(Columns.of())) == "Trace(0 events, 0 stacks, cpu)"


def test_a_notebook_gets_a_table_of_text() -> None:
    trace = loop(steps=6)
    shown = trace._repr_html_()
    assert "<td style='text-align:left'>6</td>" in shown
    assert "none marked" in hostile()._repr_html_()
    assert "<script" not in hostile()._repr_html_()
    plan = memplan.solve(trace)
    assert "lower bound" in plan._repr_html_()
    assert "train.py" in plan._repr_html_()
