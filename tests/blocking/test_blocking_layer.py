"""Layers: their sizes, what they touch, and how they are written."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nest_strategies import layers
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


def test_a_tile_has_a_halo_of_its_window() -> None:
    layer = Layer("l", 8, 8, 4, 8, 3, 3, B=2, G=2, stride=(2, 1))
    tile = {"X": 4, "Y": 2, "C": 2, "K": 5, "Fw": 3, "Fh": 2, "B": 2, "G": 1}
    assert footprint(layer, Tensor.INPUT, tile) == (3 * 2 + 3) * (1 + 2) * 2 * 2
    assert footprint(layer, Tensor.KERNEL, tile) == 2 * 5 * 3 * 2
    assert footprint(layer, Tensor.OUTPUT, tile) == 4 * 2 * 5 * 2


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


def test_sizes_are_padded_to_what_is_unrolled() -> None:
    padded = PAPER_LAYERS["conv3"].padded({"C": 16, "K": 16, "X": 32})
    assert (padded.C, padded.K, padded.X, padded.Y) == (112, 208, 32, 32)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("size", [0, -1, MAX_SIZE + 1])
def test_a_size_out_of_range_is_named(dim: str, size: int) -> None:
    sizes = dict.fromkeys(DIMS, 1) | {dim: size}
    with pytest.raises(InputError, match=f"odd: {dim} is {size}, and must be in"):
        Layer("odd", **sizes)


@pytest.mark.parametrize("stride", [(0, 1), (1, 0), (1, MAX_SIZE + 1)])
def test_a_stride_out_of_range_is_named(stride: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=r"odd: s[xy] is"):
        Layer("odd", 1, 1, 1, 1, stride=stride)


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
        ("conv6", "'conv6' is no layer"),
        ("B8", "'B8' is no layer"),
        ("1,2,3,4,x", "'x' is no size"),
        ("1,2,3,4,5.0,6", "'5.0' is no size"),
        ("1,2,3,4,5,6,Q7", "'Q7' is no size, nor B, G or S"),
        ("1,2,,4", "'' is no size"),
        ("1,2,3,٤", "'٤' is no size"),
        ("1,2,3," + "9" * 5000, "is no size"),
        ("1,2,3,4,B" + "9" * 5000, "is no size"),
        ("1,2,3", "has 3 sizes; 4 or 6"),
        ("1,2,3,4,5", "has 5 sizes; 4 or 6"),
        ("1,2,3,4,5,6,7", "has 7 sizes; 4 or 6"),
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
        ("1,-2,3,4", "K is -2"),
        ("1,2,3,4,S0", "sx is 0"),
        ("1,2,3,99999999", "Y is 99999999"),
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
