"""Which bytes of an arena are in use: the native Ranges, compiled by themselves."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiled import compiled, session_folder
from tests.conftest import ROOT

NATIVE = ROOT / "memplan" / "native"
UNITS = 16
FAR = (1 << 64) - 1
_POINTER, _U64 = ctypes.c_void_p, ctypes.c_uint64
_SIGNATURES = {
    "make": (_POINTER, (_U64, _U64)),
    "destroy": (None, (_POINTER,)),
    "take": (ctypes.c_bool, (_POINTER, _U64, _U64)),
    "take_anywhere": (ctypes.c_int64, (_POINTER, _U64, _U64)),
    "give_back": (_U64, (_POINTER, _U64)),
    "size": (_U64, (_POINTER,)),
    "bytes_in_use": (_U64, (_POINTER,)),
    "count": (_U64, (_POINTER,)),
}


class Ranges:
    """The native one: of an arena of so many bytes."""

    def __init__(self, library: ctypes.CDLL, size: int, granularity: int) -> None:
        self._library = library
        self._self = library.ranges_make(size, granularity)

    def __del__(self) -> None:
        self._library.ranges_destroy(self._self)

    def __getattr__(self, name: str) -> Callable[..., int]:
        function = getattr(self._library, f"ranges_{name}")
        return lambda *arguments: function(self._self, *arguments)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = compiled(
        tmp_path_factory.mktemp("ranges") / "ranges.so",
        session_folder(tmp_path_factory),
        (NATIVE / "replay/ranges.cpp", Path(__file__).with_name("ranges_probe.cpp")),
        (f"-I{NATIVE}",),
    )
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, f"ranges_{name}")
        function.restype, function.argtypes = result, arguments
    return library


@pytest.fixture(params=[64, 512], ids=["cpu", "cuda"])
def unit(request: pytest.FixtureRequest) -> int:
    granularity: int = request.param
    return granularity


@pytest.fixture
def ranges(library: ctypes.CDLL, unit: int) -> Iterator[Ranges]:
    """Of 16 units, none in use."""
    made = Ranges(library, UNITS * unit, unit)
    yield made
    assert made.bytes_in_use() % unit == 0


@pytest.mark.parametrize("offset", [0, 1 << 12, FAR - 1000])
@pytest.mark.parametrize("size", [FAR, FAR - 600, 1 << 63, 1 << 62])
def test_sums_that_wrap_around_are_refused(
    ranges: Ranges, unit: int, offset: int, size: int
) -> None:
    assert not ranges.take(offset // unit * unit, size)
    assert not ranges.take(FAR // unit * unit, unit)
    assert ranges.take_anywhere(size, FAR) == -1
    assert ranges.count() == 0


def test_the_arena_is_rounded_up(library: ctypes.CDLL, unit: int) -> None:
    ranges = Ranges(library, unit + 1, unit)
    assert ranges.size() == 2 * unit
    assert ranges.take(unit, unit)
    assert not ranges.take(2 * unit, 1)
    nothing = Ranges(library, 0, unit)
    assert not nothing.take(0, 1)
    assert nothing.take_anywhere(1, FAR) == -1


def test_only_the_start_of_a_block_gives_it_back_and_once(
    ranges: Ranges, unit: int
) -> None:
    assert ranges.take(2 * unit, unit + 1)
    assert ranges.give_back(3 * unit) == ranges.give_back(0) == 0
    assert ranges.give_back(2 * unit) == 2 * unit
    assert ranges.give_back(2 * unit) == 0
    assert ranges.bytes_in_use() == ranges.count() == 0


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 20), st.integers(0, 40)),
        st.tuples(st.just("anywhere"), st.integers(0, 20), st.integers(0, 40)),
        st.tuples(st.just("give"), st.integers(0, 17), st.just(0)),
    ),
    max_size=60,
)


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(actions=ACTIONS)
def test_it_does_what_a_row_of_units_does(
    library: ctypes.CDLL, unit: int, actions: list[tuple[str, int, int]]
) -> None:
    """Sizes in half units; each unit of the row names the block it is part of."""
    ranges = Ranges(library, UNITS * unit, unit)
    row: list[int | None] = [None] * UNITS
    for action, place, halves in actions:
        size, count = halves * unit // 2, -(-halves // 2)
        if action == "give":
            assert ranges.give_back(place * unit) == row.count(place) * unit
            row = [None if name == place else name for name in row]
            continue
        if action == "take":
            free = count > 0 and row[place : place + count] == [None] * count
            assert ranges.take(place * unit, size) == free
            found = place if free else None
        else:
            found = best_fit(row[:place], count)
            answer = ranges.take_anywhere(size, place * unit)
            assert answer == (-1 if found is None else found * unit)
        if found is not None:
            row[found : found + count] = [found] * count
    assert ranges.bytes_in_use() == (UNITS - row.count(None)) * unit


def best_fit(row: list[int | None], count: int) -> int | None:
    holes, begin = [], 0
    for i, name in enumerate([*row, -1]):
        if name is not None:
            if i - begin >= count > 0:
                holes.append((i - begin, begin))
            begin = i + 1
    return min(holes)[1] if holes else None
