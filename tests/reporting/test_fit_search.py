"""The largest value that fits, against trying every one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import UsageError
from memplan.reporting.fit import MARGIN, Measured, Search


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

    def measure(value: int) -> tuple[int, bool]:
        calls.append(value)
        return size(value), True

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
    found = Search(lambda value: (value * 10, value < 38), 1, 512).run(1000)
    assert found.best == Measured(37, 370, True)
    assert found.beyond is not None
    assert not found.beyond.fits


def test_memory_that_shrinks_is_called_unsteady() -> None:
    found = Search(lambda value: (500 - value, True), 1, 64).run(1000)
    assert found.best is not None
    assert found.best.value == 64
    assert not found.steady


def test_a_range_has_its_smallest_value_first() -> None:
    with pytest.raises(UsageError, match=r"9\.\.3: name the smallest value first"):
        Search(lambda value: (value, True), 9, 3)
