"""Table 3, between its rows and columns and beyond them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.blocking.machine.energy import (
    DRAM_ABOVE,
    DRAM_PJ,
    KIB,
    PAPER_WORDS,
    TABLE_3,
    WORDS,
    Curve,
    paper_curves,
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


def test_between_columns_energy_goes_with_the_logarithm_of_the_word() -> None:
    # 2^6.5 bits lie halfway between 64 and 128; 91 are the nearest integer.
    between = table_3(91)(1024)
    assert between == pytest.approx((1.20 * 0.93) ** 0.5, rel=2e-3)


@pytest.mark.parametrize("word", [0, -64])
def test_a_word_has_bits(word: int) -> None:
    with pytest.raises(UsageError, match=f"a word of {word} bits"):
        table_3(word)


def test_a_word_may_be_absurdly_long() -> None:
    assert table_3(10**400)(1024) == table_3(512)(1024)


def test_each_tensor_has_its_own_word() -> None:
    curves = paper_curves()
    assert curves == {tensor: table_3(bits) for tensor, bits in PAPER_WORDS.items()}


def test_a_curve_of_ones_own() -> None:
    curve = Curve((10.0, 1000.0), (1.0, 100.0), dram_above=500, dram_pj=7.0)
    assert [curve(n) for n in (1, 10, 100, 501)] == pytest.approx([1, 1, 10, 7])
    assert curve.on_chip(2000) == pytest.approx(100)
