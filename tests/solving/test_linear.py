"""Binary choices within linear limits, against trying all of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.solving.linear import Choice, Rows, minimize

NUMBERS = st.integers(-20, 20).map(float)


def best_of_all(costs: list[float], rows: Rows) -> float | None:
    """The least cost of a choice that keeps to all limits; None without one."""
    found = [
        sum(c for c, x in zip(costs, choice, strict=True) if x)
        for choice in itertools.product((0, 1), repeat=len(costs))
        if all(
            sum(value * choice[i] for i, value in terms.items()) <= most
            for terms, most in rows.terms
        )
    ]
    return min(found, default=None)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[float], Rows]:
    count = draw(st.integers(1, 7))
    costs = draw(
        st.lists(st.integers(0, 30).map(float), min_size=count, max_size=count)
    )
    rows = Rows(count)
    for _ in range(draw(st.integers(0, 5))):
        terms = draw(st.dictionaries(st.integers(0, count - 1), NUMBERS))
        rows.add(terms, draw(NUMBERS))
    return costs, rows


@settings(max_examples=60)
@given(programs())
def test_no_choice_within_the_limits_costs_less(
    program: tuple[list[float], Rows],
) -> None:
    costs, rows = program
    found, least = minimize(costs, rows, 30.0), best_of_all(costs, rows)
    assert found.proved
    if least is None:
        assert found.chosen is None
        return
    assert found.chosen is not None
    assert found.cost == pytest.approx(least, rel=1e-3, abs=1e-3)
    for terms, most in rows.terms:
        assert sum(terms.get(i, 0.0) for i in found.chosen) <= most + 1e-6


def test_limits_that_nothing_breaks_need_no_choice() -> None:
    rows = Rows(2)
    rows.add({0: -1.0}, 0.0)
    assert minimize([1.0, 2.0], rows, 1.0) == Choice((), proved=True, bound=0.0)


def test_a_limit_that_no_choice_keeps_is_infeasible() -> None:
    rows = Rows(2)
    rows.add({0: -1.0, 1: 3.0}, -2.0)
    assert minimize([1.0, 2.0], rows, 1.0) == Choice(None, proved=True)


def test_without_time_there_is_no_proof() -> None:
    rows = Rows(60)
    rows.add({i: -float(7 * i % 23 + 1) for i in range(60)}, -150.0)
    rows.add({i: float(5 * i % 19 + 1) for i in range(60)}, 120.0)
    found = minimize([float(i % 7 + 1) for i in range(60)], rows, 0.0)
    assert not found.proved
