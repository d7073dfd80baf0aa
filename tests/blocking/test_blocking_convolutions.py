"""Convolutions of any kind as layers: the same multiply-adds, inputs and outputs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.blocking.nest.layer import MAX_SIZE, Layer, Tensor, elements
from memplan.blocking.run.inventory import (
    Axis,
    Convolution,
    attention,
    matrix_product,
    product,
    recurrent,
)
from memplan.errors import InputError

axes = st.builds(
    Axis,
    outputs=st.integers(1, 12),
    window=st.integers(1, 5),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 5),
)


def inputs_read(axis: Axis) -> int:
    """Different inputs along one axis, one by one."""
    return len(
        {
            axis.stride * at + axis.dilation * tap
            for at in range(axis.outputs)
            for tap in range(axis.window)
        }
    )


def total(parts: tuple[tuple[Layer, int], ...], tensor: Tensor) -> int:
    return sum(elements(layer, tensor) * count for layer, count in parts)


@given(st.lists(axes, min_size=1, max_size=2), st.integers(1, 3), st.integers(1, 3))
def test_in_two_dimensions_nothing_is_read_twice(
    own: list[Axis], batch: int, groups: int
) -> None:
    whole = Convolution(batch, 2, 3, groups, tuple(own))
    found = whole.read()
    assert found.macs == whole.macs
    inputs = math.prod(map(inputs_read, own)) * batch * 2 * groups
    outputs = math.prod(axis.outputs for axis in own) * batch * 3 * groups
    assert total(found.parts, Tensor.INPUT) == inputs
    assert total(found.parts, Tensor.OUTPUT) == outputs
    weights = math.prod(axis.window for axis in own) * 2 * 3 * groups
    # Weights once a layer; there are more where the note says so.
    assert total(found.parts, Tensor.KERNEL) == weights * len(found.parts)
    assert (len(found.parts) > 1) == ("each of which fetches the weights" in found.note)


@given(st.lists(axes, min_size=3, max_size=4))
def test_more_dimensions_read_again_only_what_the_note_says(own: list[Axis]) -> None:
    whole = Convolution(2, 2, 3, 1, tuple(own))
    found = whole.read()
    assert found.macs == whole.macs
    inputs = math.prod(map(inputs_read, own)) * 2 * 2
    again = total(found.parts, Tensor.INPUT) > inputs
    assert again == ("counted as channels" in found.note)
    assert total(found.parts, Tensor.OUTPUT) == 6 * math.prod(a.outputs for a in own)


def transposed(inputs: int, window: int, stride: int, dilation: int, more: int) -> Axis:
    outputs = max((inputs - 1) * stride + (window - 1) * dilation + 1 + more, 1)
    return Axis(outputs, window, stride, dilation, inputs)


back = st.builds(
    transposed,
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 2),
    st.integers(-4, 2),
)


@given(st.lists(back, min_size=1, max_size=3), st.integers(1, 3))
def test_transposed_ones_have_their_multiplications(
    own: list[Axis], groups: int
) -> None:
    whole = Convolution(2, 2, 3, groups, tuple(own), transposed=True)
    found = whole.read()
    assert found.macs == whole.macs
    one_layer = found.parts[0][1] == 1 == len(found.parts)
    if one_layer and not found.note:  # then it moves what the operation moves
        inputs = math.prod(axis.inputs for axis in own) * 2 * 2 * groups
        assert total(found.parts, Tensor.INPUT) >= inputs


@pytest.mark.parametrize(
    ("axis", "parts"),
    [
        # As wide as the stride: no two inputs meet.
        (Axis(8, 2, 2, 1, 4), ((Layer("", 4, 1, 5, 7 * 2), 1),)),
        # A picture of one pixel.
        (Axis(4, 4, 1, 1, 1), ((Layer("", 1, 1, 5, 7 * 4), 1),)),
        # Two places within the stride, each reached by two of the four weights.
        (Axis(8, 4, 2, 1, 4), ((Layer("", 4, 1, 5, 7, 2), 2),)),
        # Of three weights one place gets two, the other one.
        (
            Axis(8, 3, 2, 1, 4),
            ((Layer("", 4, 1, 5, 7, 2), 1), (Layer("", 4, 1, 5, 7, 1), 1)),
        ),
        # The outputs are no multiple: products, added up.
        (Axis(9, 3, 2, 1, 4), ((Layer("", 4, 1, 5, 7 * 3), 1),)),
    ],
)
def test_transposed_forms(axis: Axis, parts: tuple[tuple[Layer, int], ...]) -> None:
    assert Convolution(1, 5, 7, 1, (axis,), transposed=True).read().parts == parts


def test_more_rows_than_a_dimension_has() -> None:
    many = product(3 * MAX_SIZE, 2, 2)
    assert many.macs == 12 * MAX_SIZE
    with pytest.raises(InputError):
        product(MAX_SIZE + 7, 2, 2)  # 1,048,583 is prime
    with pytest.raises(InputError):
        product(0, 2, 2)


def test_attention_and_recurrent_layers() -> None:
    # 8 heads of queries share 2 of keys; 5 queries, 6 keys, width 4, values' 3.
    found = attention((1, 8, 5, 4), (1, 2, 6, 4), (1, 2, 6, 3))
    assert found.parts == ((product(20, 4, 6, 2), 1), (product(20, 6, 3, 2), 1))
    steps = recurrent(4, 10, 3, 16, 8)
    assert steps.parts == ((product(30, 16, 32), 1), (product(3, 8, 32), 10))


def test_products_that_share_an_operand_are_one() -> None:
    assert matrix_product((5, 2, 3), (3, 7)) == product(10, 3, 7)
    assert matrix_product((2, 3), (5, 3, 7)) == product(2, 3, 35)
    assert matrix_product((5, 2, 3), (5, 3, 7)) == product(2, 3, 7, 5)
    assert matrix_product((4, 1, 2, 3), (1, 6, 3, 7)) == product(8, 3, 42)
