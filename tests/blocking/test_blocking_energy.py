"""Table 3, between its rows and columns and beyond them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.blocking.machine.energy import (
    DRAM_ABOVE,
    DRAM_PJ,
    KIB,
    TABLE_3,
    WORDS,
    table_3,
)
from memplan.errors import UsageError

SIZES = st.integers(1, DRAM_ABOVE)
BITS = st.integers(1, 2048)


@pytest.mark.parametrize("kib", TABLE_3)
def test_the_rows_are_met(kib: int) -> None:
    found = tuple(table_3(word)(kib * KIB) for word in WORDS)
    assert found == pytest.approx(TABLE_3[kib], rel=1e-12)


def test_beyond_the_rows() -> None:
    curve = table_3(256)
    assert curve(8 << 20) == pytest.approx(28.88 * 8**0.5)
    assert curve(16 << 20) == pytest.approx(28.88 * 4)
    assert curve((16 << 20) + 1) == DRAM_PJ
    assert curve.on_chip(64 << 20) == pytest.approx(28.88 * 8)
    assert curve(16) == curve(1) == curve(0) == pytest.approx(0.03)
    assert curve(32) == pytest.approx(0.06)
    assert curve(10**40) == DRAM_PJ
    assert curve.on_chip(10**40) == pytest.approx(28.88 * 1024)  # the last knot


@given(SIZES, SIZES, BITS)
def test_a_larger_memory_never_costs_less(a: int, b: int, word: int) -> None:
    small, large = sorted((a, b))
    assert table_3(word)(small) <= table_3(word)(large)


@given(SIZES, BITS, BITS)
def test_a_longer_word_never_costs_more(size: int, a: int, b: int) -> None:
    short, long = sorted((a, b))
    assert table_3(long)(size) <= table_3(short)(size) * (1 + 1e-12)


@given(st.floats(1, DRAM_ABOVE / 1.001), BITS)
def test_the_curve_has_no_jumps(size: float, word: int) -> None:
    # The steepest part is between two rows: less than the cube of the size.
    curve = table_3(word)
    assert curve(size * 1.001) <= curve(size) * 1.001**3


@given(st.integers(1, 64), SIZES)
def test_word_lengths_are_held_within_the_table(word: int, size: int) -> None:
    assert table_3(word)(size) == table_3(64)(size)
    assert table_3(512 * word)(size) == table_3(512)(size)


@pytest.mark.parametrize("word", [0, -64])
def test_a_word_has_bits(word: int) -> None:
    with pytest.raises(UsageError, match=f"a word of {word} bits"):
        table_3(word)
