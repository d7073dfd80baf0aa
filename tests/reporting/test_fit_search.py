"""The largest value that fits, against trying every one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import UsageError
from memplan.reporting.fit import MARGIN, Measured, Plateau, Search


@given(
    least=st.integers(0, 10**6),
    base=st.integers(0, 10**6),
    slope=st.integers(0, 10**4),
    bend=st.integers(0, 50),
    high=st.integers(1, 400),
    limit=st.integers(1, 4 * 10**6),
)
def test_what_is_found_is_the_largest_that_fits(
    least: int, base: int, slope: int, bend: int, high: int, limit: int
) -> None:
    def size(value: int) -> int:
        return max(least, base + slope * value + bend * value * value)

    calls: list[int] = []

    def measure(value: int) -> Measured:
        calls.append(value)
        return Measured(value, size(value), True)

    found = Search(measure, 1, high).run(limit)
    fitting = [value for value in range(1, high + 1) if size(value) <= limit]
    if not fitting:
        assert found.best is None
        assert found.beyond == Measured(1, size(1), True)
        return
    assert found.best == Measured(fitting[-1], size(fitting[-1]), True)
    if fitting[-1] < high:
        assert found.beyond == Measured(fitting[-1] + 1, size(fitting[-1] + 1), True)
    else:
        assert found.beyond is None
    sure = [value for value in fitting if size(value) <= int(limit / (1 + MARGIN))]
    assert (found.sure.value if found.sure else None) == (sure[-1] if sure else None)
    assert len(calls) == len(set(calls)) <= 30
    assert found.steady


def test_a_device_that_ran_out_of_memory_says_so_whatever_it_held() -> None:
    found = Search(lambda n: Measured(n, n * 10, n < 38), 1, 512).run(1000)
    assert found.best == Measured(37, 370, True)
    assert found.beyond is not None
    assert not found.beyond.fits


def test_memory_that_shrinks_is_called_unsteady() -> None:
    found = Search(lambda n: Measured(n, 500 - n, True), 1, 64).run(1000)
    assert found.best is not None
    assert found.best.value == 64
    assert not found.steady
    assert found.fall == (Measured(1, 499, True), Measured(2, 498, True))
    assert found.plateau is None


def test_a_range_has_its_smallest_value_first() -> None:
    with pytest.raises(UsageError, match=r"9\.\.3: name the smallest value first"):
        Search(lambda n: Measured(n, n, True), 9, 3)


@given(
    start=st.integers(2, 5000),
    high=st.integers(3, 5000),
    base=st.integers(0, 10**6),
    slope=st.integers(1, 10**4),
    bend=st.integers(0, 50),
)
def test_a_plateau_is_noticed_and_its_start_found(
    start: int, high: int, base: int, slope: int, bend: int
) -> None:
    calls: list[int] = []

    def measure(value: int) -> Measured:
        calls.append(value)
        used = min(value, start)
        size = base + slope * used + bend * used * used
        return Measured(value, size, True, 3 * size)

    found = Search(measure, 1, high).run(10**12)
    assert len(calls) == len(set(calls)) <= 26
    assert found.best is not None
    if start >= high:
        assert found.plateau is None
        assert found.best.value == high
        return
    assert found.plateau == Plateau(start, found.best.bytes, True)
    assert found.best.value == high
    assert found.sure == found.best


def test_a_plateau_of_the_peak_alone_leaves_the_answer() -> None:
    """Something else makes the peak, or batches are cut in pieces."""
    found = Search(lambda n: Measured(n, min(n, 40), True, n), 1, 100).run(1000)
    assert found.plateau == Plateau(40, 40, False)
    assert found.best == Measured(100, 40, True, 100)
    # Allocators round sizes: neighbours with the same peak are no plateau.
    found = Search(lambda n: Measured(n, n // 20 * 20, True, n), 1, 99).run(1000)
    assert found.plateau is None


def test_a_flag_that_changes_nothing_has_its_plateau_from_the_first_value() -> None:
    found = Search(lambda n: Measured(n, 7, True, 9), 1, 64).run(1000)
    assert found.plateau == Plateau(1, 7, True)
    assert found.best == Measured(64, 7, True, 9)
    alone = Search(lambda n: Measured(n, 7, True, 9), 5, 5).run(1000)
    assert alone.plateau is None
    assert len(alone.measured) == 1


def incomplete(value: int) -> Measured:
    """As of a loop that leaves out what is less than a batch, of 200 samples."""
    size = 100 + value if value <= 200 else 50
    return Measured(value, size, True, size)


def test_the_answer_is_what_ran_before_the_peak_fell_to_the_plateau() -> None:
    found = Search(incomplete, 1, 4096).run(1000)
    assert found.plateau == Plateau(201, 50, True)
    assert found.best == Measured(200, 300, True, 300)
    assert not found.steady


def test_a_value_that_does_not_fit_is_below_no_answer() -> None:
    """The first values lead beyond a hill, which the search for the plateau finds."""

    def hill(value: int) -> Measured:
        size = 10 if value <= 150 else 3000 if value <= 200 else 5
        return Measured(value, size, True, size)

    found = Search(hill, 1, 4096).run(1000)
    assert found.best == Measured(150, 10, True, 10)
    assert found.beyond == Measured(151, 3000, True, 3000)
    assert found.sure == found.best
    assert found.plateau == Plateau(201, 5, True)
