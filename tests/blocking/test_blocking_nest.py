"""Strings of loops: what they mean, and what is wrong with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nest_strategies import nests

from memplan.blocking.nest.counts import count
from memplan.blocking.nest.layer import DIMS, Layer
from memplan.blocking.nest.nest import (
    MAX_LOOPS,
    Loop,
    Nest,
    nest_of,
    parse_nest,
    parse_unroll,
)
from memplan.errors import MemplanError, UsageError

LAYER = Layer("small", X=8, Y=4, C=4, K=6, Fw=3, Fh=3)
WHOLE = "Fw3 Fh3 X4 C2 K6 X8 Y4 C4"


def test_extents_are_cumulative_from_the_inside_out() -> None:
    nest = parse_nest(WHOLE, LAYER)
    assert nest.loops[2:4] == (Loop("X", 1, 4), Loop("C", 1, 2))
    assert nest.loops[5] == Loop("X", 4, 8)
    assert nest.extents(0) == dict.fromkeys(DIMS, 1)
    assert nest.extents(4) == {**nest.extents(0), "Fw": 3, "Fh": 3, "X": 4, "C": 2}
    assert nest.extents(8) == {dim: LAYER.size(dim) for dim in DIMS}


def test_loops_of_a_single_trip_are_dropped() -> None:
    nest = parse_nest("B1 X4 X4 " + WHOLE.replace("X4 ", "") + " G1 C4", LAYER)
    assert str(nest) == "X4 Fw3 Fh3 C2 K6 X8 Y4 C4"


def test_the_datapath_is_below_all_loops() -> None:
    nest = parse_nest("Fw3 Fh3 C4 X8 Y4 K8", LAYER, {"C": 2, "K": 4, "Y": 1})
    assert nest.unroll == {"C": 2, "K": 4}
    assert nest.layer == LAYER  # 6 kernels: two lanes idle half of the time
    assert str(nest) == "Fw3 Fh3 C4 X8 Y4 K6"
    assert nest.extents(0) == dict.fromkeys(DIMS, 1) | nest.unroll
    assert nest.utilisation == 6 / 8
    assert nest.loops[2] == Loop("C", 2, 4)


def test_the_last_tiles_may_be_smaller() -> None:
    nest = parse_nest("X3 X7 Y3 C3 C4 K6 X8 Y4 Fw3 Fh3", LAYER)
    assert nest.tiles("X", 7) == {7: 1, 1: 1}
    assert nest.tiles("X", 3) == {3: 2, 1: 2}
    assert nest.visits("X", 3) == 4
    assert nest.tiles("C", 1) == {1: 4}


@given(nests(window_innermost=False, divisors=False))
def test_tiles_cover_each_dimension_and_strings_read_back(nest: Nest) -> None:
    assert parse_nest(str(nest), nest.layer, nest.unroll) == nest
    for loop in nest.loops:
        for extent in (loop.inner, loop.outer):
            tiles = nest.tiles(loop.dim, extent)
            covered = sum(size * times for size, times in tiles.items())
            assert covered == nest.layer.size(loop.dim)
            assert max(tiles) == extent
            assert nest.visits(loop.dim, extent) == sum(tiles.values())


def test_a_nest_of_pairs() -> None:
    pairs = [("X", 8), ("Y", 4), ("C", 4), ("K", 6), ("Fw", 3), ("Fh", 3)]
    assert nest_of(LAYER, pairs, {}) == parse_nest("X8 Y4 C4 K6 Fw3 Fh3", LAYER)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Fw3 Q4", "token 2, 'Q4': a loop is one of X, Y, C"),
        ("X", "token 1, 'X': a loop is one of"),
        ("x4", "token 1, 'x4': a loop is one of"),
        ("X-4", "token 1, 'X-4': a loop is one of"),
        ("X4.0", "token 1, 'X4.0': a loop is one of"),
        ("X4,C2", "token 1, 'X4,C2': a loop is one of"),
        ("X٤", "token 1, 'X٤': a loop is one of"),
        ("X" + "9" * 5000, "token 1, 'X9+': a loop is one of"),
        ("X2 X16", "token 2, 'X16': small has X = 8, and no more"),
        ("B2", "token 1, 'B2': small has B = 1"),
        ("C2 X0", "token 2, 'X0': an extent is at least 1"),
        ("X4 C2 X2", "token 3, 'X2': the loops inside it cover 4 of X already"),
        ("", "does not cover small: X ends at 1 of 8"),
        (WHOLE.replace("Fh3", ""), "does not cover small: Fh ends at 1 of 3"),
        (WHOLE.removesuffix("C4"), "does not cover small: C ends at 2 of 4"),
        ("X1 " * (MAX_LOOPS + 1), "has 257 loops, more than 256"),
    ],
    ids=lambda value: value[:30],
)
def test_a_wrong_token_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_nest(text, LAYER)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("C1", "token 1, 'C1': the datapath's unrolling covers 2 of C already"),
        ("C3", "token 1, 'C3': the datapath does 2 of C at once, and 3 is no multiple"),
    ],
)
def test_a_token_against_the_unrolling_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_nest(text, LAYER, {"C": 2})


def test_what_a_layer_has_not_of_the_datapath_idles() -> None:
    few = Layer("few", 4, 4, 3, 200)
    wide, narrow = ({"C": lanes, "K": 16} for lanes in (16, 3))
    nests = [parse_nest("X4 Y4 K200", few, unroll) for unroll in (wide, narrow)]
    assert count(nests[0]) == count(nests[1])
    assert [nest.utilisation for nest in nests] == [3 / 16 * 200 / 208, 200 / 208]
    assert str(parse_nest("X4 Y4 K208 C16", few, wide)) == "X4 Y4 K200"


@given(st.text() | st.lists(st.sampled_from(WHOLE.split())).map(" ".join))
def test_any_text_is_a_nest_or_an_error(text: str) -> None:
    try:
        nest = parse_nest(text, LAYER)
    except UsageError as error:
        assert "token" in str(error) or "does not cover" in str(error)
    else:
        assert nest.extents(len(nest.loops)) == {d: LAYER.size(d) for d in DIMS}


def test_unrolling_is_read() -> None:
    assert parse_unroll("C16,K16") == {"C": 16, "K": 16}
    assert parse_unroll(" Fw3  X1,") == {"Fw": 3, "X": 1}
    assert parse_unroll("") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("C16 Q2", "unrolling 'Q2': give dimensions with a number"),
        ("C16K16", "unrolling 'C16K16': give"),
        ("C0", "unrolling 'C0': give"),
        ("C=4", "unrolling 'C=4': give"),
        ("C" + "9" * 5000, "unrolling 'C9+': give"),
        ("C2,K2,C4", "unrolling 'C4': C is given twice"),
    ],
    ids=lambda value: value[:30],
)
def test_a_wrong_part_of_an_unrolling_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_unroll(text)


@given(st.text("XYCKFwhBG0123456789, "))
def test_any_text_unrolls_or_is_an_error(text: str) -> None:
    try:
        assert all(dim in DIMS and n >= 1 for dim, n in parse_unroll(text).items())
    except MemplanError as error:
        assert str(error).startswith("unrolling")
