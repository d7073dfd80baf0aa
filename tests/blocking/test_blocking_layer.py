"""Layers and nests: their sizes, what they mean in text, and what is wrong with it."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nest_strategies import layers, nests
from nest_trace import shape

from memplan.blocking.nest.layer import (
    DIMS,
    MAX_SIZE,
    PAPER_LAYERS,
    Layer,
    Tensor,
    columns,
    elements,
    footprint,
    fully_connected,
    normalization,
    parse_layer,
    pooling,
)
from memplan.blocking.nest.nest import MAX_LOOPS, Loop, Nest, parse_nest, parse_unroll
from memplan.errors import InputError, MemplanError, UsageError

SMALL = st.integers(1, 12)


@given(SMALL, SMALL, SMALL)
def test_columns_are_those_under_any_window(n: int, window: int, stride: int) -> None:
    seen = {x * stride + f for x in range(n) for f in range(window)}
    assert columns(n, window, stride) == len(seen)


@given(layers())
def test_a_tensor_has_the_elements_of_its_axes(layer: Layer) -> None:
    assert elements(layer, Tensor.OUTPUT) == prod(shape(layer, Tensor.OUTPUT))
    assert elements(layer, Tensor.KERNEL) == prod(shape(layer, Tensor.KERNEL))
    whole = prod(shape(layer, Tensor.INPUT))
    assert elements(layer, Tensor.INPUT) <= whole  # a stride may skip some
    if layer.Fw >= layer.stride[0] and layer.Fh >= layer.stride[1]:
        assert elements(layer, Tensor.INPUT) == whole
    assert footprint(layer, Tensor.INPUT, dict.fromkeys(DIMS, 1)) == 1


@pytest.mark.parametrize(
    ("name", "macs"),
    [
        ("conv1", 256 * 256 * 256 * 384 * 11 * 11),
        ("conv2", 500 * 375 * 32 * 48 * 9 * 9),
        ("conv3", 32 * 32 * 108 * 200 * 4 * 4),
        ("conv4", 924844032),
        ("conv5", 924844032),
        ("fc1", 200 * 100),
        ("fc2", 4096 * 4096),
        ("pool", 56 * 56 * 128 * 2 * 2),
        ("lrn", 55 * 55 * 96 * 5),
    ],
)
def test_the_papers_layers(name: str, macs: int) -> None:
    layer = parse_layer(f" {name.upper()} ")
    assert layer is PAPER_LAYERS[name]
    assert layer.macs == macs
    has_weights = name not in ("pool", "lrn")
    assert (Tensor.KERNEL in layer.tensors) == has_weights


def test_other_layers_are_written_as_convolutions() -> None:
    assert fully_connected("f", 10, 20, 3).macs == 600
    assert elements(pooling("p", 4, 4, 8, (2, 2), 2), Tensor.INPUT) == 8 * 8 * 8
    assert elements(pooling("p", 4, 4, 8, (3, 3), 2), Tensor.INPUT) == 9 * 9 * 8
    lrn = normalization("n", 5, 5, 16, 3)
    assert elements(lrn, Tensor.INPUT) == 5 * 5 * (16 + 2)
    assert elements(lrn, Tensor.OUTPUT) == 5 * 5 * 16


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("size", [0, -1, MAX_SIZE + 1])
def test_a_size_out_of_range_is_named(dim: str, size: int) -> None:
    sizes = dict.fromkeys(DIMS, 1) | {dim: size}
    with pytest.raises(InputError, match=f"odd: {dim} is {size}, and must be in"):
        Layer("odd", **sizes)


def test_a_layer_cannot_be_too_large_to_count() -> None:
    with pytest.raises(InputError, match="more than 2\\^60"):
        Layer("odd", 1 << 20, 1 << 20, 1 << 20, 2)
    assert Layer("even", 1 << 20, 1 << 20, 1 << 20, 1).macs == 1 << 60


def test_layers_are_read_from_sizes() -> None:
    layer = parse_layer("108, 200, 32, 30, 4, 5, B8, G=2, s3")
    expected = Layer(layer.name, 32, 30, 108, 200, 4, 5, 8, 2, (3, 3))
    assert layer == expected
    assert parse_layer("2,3,4,5").macs == 2 * 3 * 4 * 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is no layer: give one of conv1"),
        ("1,2,3,4,x", "'x' is no size"),
        ("1,2,3,4,5,6,Q7", "'Q7' is no size, nor B, G or S"),
        ("1,2,3,٤", "'٤' is no size"),
        ("1,2,3", "has 3 sizes; 4 or 6"),
        ("1,2,3,4,5", "has 5 sizes; 4 or 6"),
        ("1,2,3,4,B2,b=3", "B, G and S may each be given once"),
    ],
    ids=lambda value: value[:30],
)
def test_what_is_no_layer_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_layer(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,2,3,4", "C is 0"),
        ("1,2,3,4,S0", "sx is 0"),
        ("999999,999999,999999,999999", "2\\^60"),
    ],
)
def test_sizes_out_of_range_are_named(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_layer(text)


@given(st.text() | st.text("0123456789,BGSx=+- "))
def test_any_text_is_a_layer_or_an_error(text: str) -> None:
    try:
        assert parse_layer(text).macs > 0
    except MemplanError as error:
        assert str(error)


LAYER = Layer("small", X=8, Y=4, C=4, K=6, Fw=3, Fh=3)
WHOLE = "Fw3 Fh3 X4 C2 K6 X8 Y4 C4"


def test_the_datapath_is_below_all_loops() -> None:
    nest = parse_nest("Fw3 Fh3 C4 X8 Y4 K8", LAYER, {"C": 2, "K": 4, "Y": 1})
    assert nest.unroll == {"C": 2, "K": 4}
    assert nest.layer == LAYER  # 6 kernels: two lanes idle half of the time
    assert str(nest) == "Fw3 Fh3 C4 X8 Y4 K6"
    assert nest.extents(0) == dict.fromkeys(DIMS, 1) | nest.unroll
    assert nest.utilisation == 6 / 8
    assert nest.loops[2] == Loop("C", 2, 4)


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Fw3 Q4", "token 2, 'Q4': a loop is one of X, Y, C"),
        ("X", "token 1, 'X': a loop is one of"),
        ("X٤", "token 1, 'X٤': a loop is one of"),
        ("X" + "9" * 5000, "token 1, 'X9+': a loop is one of"),
        ("X2 X16", "token 2, 'X16': small has X = 8, and no more"),
        ("C2 X0", "token 2, 'X0': an extent is at least 1"),
        ("X4 C2 X2", "token 3, 'X2': the loops inside it cover 4 of X already"),
        ("", "does not cover small: X ends at 1 of 8"),
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
        ("C0", "unrolling 'C0': give"),
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
