"""Axes of bytes, byte counts told apart, and curves thinned without loss."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memplan.plotting import style
from memplan.plotting.style import byte_ticks, shortened, thinned, told_apart


@given(st.integers(7, 1 << 62))
def test_ticks_are_a_few_powers_of_two_with_names_of_their_own(top: int) -> None:
    ticks, labels = byte_ticks(top)
    assert 4 <= len(ticks) <= 9
    assert ticks[0] == 0
    assert ticks[-1] <= top * 1.001
    step = ticks[1]
    assert np.log2(step) == int(np.log2(step))
    assert len(set(labels)) == len(labels)


@given(st.integers(0, 1 << 62), st.integers(0, 1 << 62))
def test_two_counts_look_the_same_only_if_they_are(one: int, other: int) -> None:
    first, second = told_apart(one, other)
    assert (first == second) == (one == other)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=300), st.integers(1, 20))
def test_thinning_keeps_the_ends_and_the_extremes(
    values: list[float], bins: int
) -> None:
    rng = np.random.default_rng(len(values))
    times = np.sort(rng.integers(0, 50, len(values)).astype(float))
    few, kept = thinned(times, np.array(values), bins)
    if len(values) > 4 * bins:
        assert len(few) <= 4 * bins
    assert set(zip(few, kept, strict=True)) <= set(zip(times, values, strict=True))
    assert (few[0], kept[0]) == (times[0], values[0])
    assert (few[-1], kept[-1]) == (times[-1], values[-1])
    assert kept.max() == max(values)
    assert kept.min() == min(values)
    assert (np.diff(few) >= 0).all()


def test_titles_are_one_line_of_drawable_characters() -> None:
    assert shortened("a\n b\tc") == "a b c"
    assert shortened("cost $5$") == "cost $5$"
    assert shortened("\x1b[31m\u202e") == r"\x1b[31m\u202e"
    assert shortened("\u65e5 caf\u00e9") == "? caf\u00e9"
    long = shortened("x" * 50 + "y" * 50, limit=21)
    assert long == "x" * 10 + "\u2026" + "y" * 10


def test_a_crest_is_above_the_curve_and_keeps_its_peak() -> None:
    rng = np.random.default_rng(1)
    times = np.sort(rng.uniform(0, 9, 50_000))
    values = rng.uniform(0, 1, 50_000)
    at, most = style.crest(times, values, 100)
    assert len(at) == 101
    assert most.max() == values.max()
    held = most[np.searchsorted(at, times, side="right") - 1]
    assert (held >= values).all()
    few = np.arange(9.0)
    assert style.crest(few, few, 100)[0] is few
    assert style.crest(np.zeros(999), np.arange(999.0), 9)[1].max() == 998
