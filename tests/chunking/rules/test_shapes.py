"""Rules on shapes that hypothesis makes up, and on arguments that no rule expects."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import strategies as st

from memplan.chunking.rules.flow import Call, Meta, Slice
from memplan.chunking.rules.table import RULES, flow
from memplan.graph.program import Op, Ref
from tests.chunking.rules.families import FAMILIES
from tests.chunking.rules.rule_check import Sample, check
from tests.strategies import examples

pytestmark = pytest.mark.torch

aten = torch.ops.aten
sizes = st.lists(st.sampled_from([1, 1, 2, 3, 4, 6]), min_size=1, max_size=4)


def numbered(shape: list[int]) -> torch.Tensor:
    return torch.arange(prod(shape)).reshape(shape)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two shapes of as many elements: neighbours joined, ones put in or left out."""
    old, new = draw(sizes), []
    for size in old:
        if new and draw(st.booleans()):
            new[-1] *= size
        elif draw(st.booleans()) and size % 2 == 0:
            new += [2, size // 2]
        else:
            new.append(size)
        if draw(st.booleans()):
            new.append(1)
    return (new, old) if draw(st.booleans()) else (old, new)


@examples(12, reshapes(), st.booleans(), soak=30)
def test_reshapes(shapes: tuple[list[int], list[int]], strided: bool) -> None:
    old, new = shapes
    x = numbered([*old[::-1]]).permute(*range(len(old))[::-1])
    sample = Sample(aten.reshape.default, (x if strided else numbered(old), new))
    check(sample)
    leading = next((dim for dim, size in enumerate(new) if size > 1), None)
    if leading is not None:  # the first dimension can always be sliced
        assert leading in sample.possible()


@examples(12, st.data(), sizes, soak=30)
def test_chains_of_views(data: st.DataObject, shape: list[int]) -> None:
    """Any sequence of permute, expand, cat, unsqueeze and reshape, each alone."""
    x = numbered(shape)
    for _ in range(4):
        rank = x.dim()
        dim = data.draw(st.integers(0, rank - 1))
        order = data.draw(st.permutations(range(rank)))
        grown = [3 if size == 1 else size for size in x.shape]
        options = [
            Sample(aten.permute.default, (x, list(order)), {}, tuple(range(rank))),
            Sample(aten.expand.default, (x, [2, *grown]), {}, tuple(range(rank + 1))),
            Sample(
                aten.cat.default,
                ([x, x], dim),
                {},
                tuple(i for i in range(rank) if i != dim),
            ),
            Sample(aten.transpose.int, (x, dim, -1), {}, tuple(range(rank))),
        ]
        sample = data.draw(st.sampled_from(options))
        check(sample)
        result = sample.result
        wanted = tuple(dim for dim in sample.dims if result.shape[dim] > 1)
        assert sample.possible() == wanted
        x = result if result.dim() < 5 and result.numel() < 500 else x


@examples(12, st.data(), soak=30)
def test_convolutions(data: st.DataObject) -> None:
    kernel, stride, dilation = (data.draw(st.integers(1, 4)) for _ in range(3))
    padding = data.draw(st.integers(0, 4))
    reach = dilation * (kernel - 1)
    size = data.draw(st.integers(max(1, reach + 1 - 2 * padding), 20))
    x, weight = torch.randn(2, 3, size), torch.randn(4, 3, kernel)
    options = ([stride], [padding], [dilation])
    sample = Sample(aten.conv1d.default, (x, weight, None, *options), close=True)
    check(sample)
    places = sample.call.shape[2] > 1 and padding <= reach
    assert sample.possible() == ((0, 1, 2) if places else (0, 1))


def test_no_slice_makes_a_rule_fail() -> None:
    odd = [Fraction(1, 3), Fraction(7, 5), Fraction(0)]
    halos = [(0, 0), (1, 2), (-1, 3), (5, -2)]
    for family in FAMILIES:
        for sample in family():
            for dim in (-1, *range(len(sample.call.shape) + 1)):
                for ratio in odd:
                    for halo in halos:
                        made = flow(sample.call, Slice(dim, ratio, *halo))
                        assert made is None or (
                            len(made.needs) == len(sample.call.operands)
                        )


def test_what_is_not_known_yet_is_not_sliced() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    symbol = ShapeEnv().create_unbacked_symint()
    meta = Meta((4, 6), (6, 1), torch.float32, "cpu")
    op = Op("result", aten.view.default, (Ref("x"), [4, symbol]))
    assert flow(Call(op, (meta,), meta, "loop"), Slice(0)) is None
    symbolic = meta._replace(shape=(4, symbol))
    op = Op("result", aten.relu.default, (Ref("x"),))
    assert flow(Call(op, (symbolic,), symbolic, "loop"), Slice(0)) is None
    assert flow(Call(op, (meta,), meta, "loop"), Slice(0)) is not None


def test_an_operator_without_a_rule_is_not_sliced() -> None:
    sample = Sample(
        aten.tensordot.default, (torch.ones(3, 4), torch.ones(4, 5), [1], [0])
    )
    assert sample.call.op.key not in RULES
    assert sample.possible() == ()
