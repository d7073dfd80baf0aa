"""Planes that share cache sets, and layouts that move them apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.nest.layer import Layer, Tensor
from memplan.blocking.nest.nest import parse_nest
from memplan.blocking.run.cache import FLOAT_BYTES, Layout, aliasing, padded, simulate

XEON = load_hierarchy("xeon-e5645")

# Planes of 32 x 32 floats are as long as a way of the first level.
ALIASED = Layer("32x32", 32, 32, 12, 40, 4, 4)
ALIASED_STRING = "Fw4 Fh4 C6 Y8 X32 K40 Y32 C12"


def test_planes_that_share_a_set_are_named_and_cured_by_padding() -> None:
    nest = parse_nest(ALIASED_STRING, ALIASED)
    crowded = simulate(ALIASED, nest, XEON)
    apart = simulate(ALIASED, nest, XEON, pad=True)
    assert [(a.tensor, a.stride, a.level, a.sets) for a in crowded.aliasing] == [
        (Tensor.OUTPUT, 4096, "L1", 1)
    ]
    assert str(crowded.aliasing[0]) == (
        "output: planes lie 4096 bytes apart, and begin all in one set of L1; pad the "
        "planes"
    )
    assert apart.aliasing == ()
    assert crowded.expected == apart.expected
    assert crowded.blocked[0].misses > 2 * crowded.expected[0]
    assert abs(apart.blocked[0].misses / apart.expected[0] - 1) < 0.25
    assert crowded.blocked[0].accesses == apart.blocked[0].accesses


@pytest.mark.parametrize(
    ("size", "planes", "named"),
    [
        ((28, 28), 64, set()),
        ((32, 32), 64, {("L1", 1)}),
        ((32, 32), 4, set()),  # four planes fit the ways
        ((16, 32), 64, {("L1", 2)}),
        ((64, 128), 64, {("L1", 1), ("L2", 1)}),
    ],
)
def test_which_planes_alias(
    size: tuple[int, int], planes: int, named: set[tuple[str, int]]
) -> None:
    layer = Layer("planes", size[0], size[1], 1, planes)
    found = aliasing(layer, Layout.dense(layer), XEON)
    assert {entry.tensor for entry in found} <= {Tensor.OUTPUT}
    assert {(entry.level, entry.sets) for entry in found} == named


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 100))
def test_padding_cures_at_the_price_of_less_than_a_way(
    wide: int, high: int, planes: int
) -> None:
    layer = Layer("planes", wide, high, planes, planes)
    dense = Layout.dense(layer)
    apart = padded(layer, dense, XEON)
    assert aliasing(layer, apart, XEON) == ()
    assert 0 <= apart.output_plane - dense.output_plane <= 4096 // FLOAT_BYTES
    crowded = {entry.tensor for entry in aliasing(layer, dense, XEON)}
    assert (apart.output_plane != dense.output_plane) == (Tensor.OUTPUT in crowded)
    assert (apart.input_plane != dense.input_plane) == (Tensor.INPUT in crowded)
