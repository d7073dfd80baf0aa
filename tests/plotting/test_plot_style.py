"""Axes of bytes, byte counts told apart, and curves thinned without loss."""

from __future__ import annotations

import numpy as np
import pytest
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


@pytest.mark.parametrize(
    ("top", "labels"),
    [
        (3, ["0", "1 B", "2 B", "3 B"]),
        (1023, ["0", "256 B", "512 B", "768 B"]),
        (3 << 29, ["0", "0.25 GiB", "0.5 GiB", "0.75 GiB", "1 GiB", "1.25 GiB"]),
    ],
)
def test_ticks_read_so(top: int, labels: list[str]) -> None:
    assert byte_ticks(top)[1][: len(labels)] == labels


@given(st.integers(0, 1 << 62), st.integers(0, 1 << 62))
def test_two_counts_look_the_same_only_if_they_are(one: int, other: int) -> None:
    first, second = told_apart(one, other)
    assert (first == second) == (one == other)


@pytest.mark.parametrize(
    ("one", "other", "texts"),
    [
        (1000, 999, ("1,000 B", "999 B")),
        (3 << 30, 2 << 30, ("3.0 GiB", "2.0 GiB")),
        (1417 << 20, 1408 << 20, ("1.384 GiB", "1.375 GiB")),
        ((1 << 40) + 1, 1 << 40, ("1,099,511,627,777 B", "1,099,511,627,776 B")),
        (5 << 20, 5 << 20, ("5.0 MiB", "5.0 MiB")),
    ],
)
def test_counts_read_so(one: int, other: int, texts: tuple[str, str]) -> None:
    assert told_apart(one, other) == texts


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
