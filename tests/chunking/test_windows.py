"""The parts of its operands that an iteration takes, where they end before it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from memplan.chunking.code import compiled, source  # noqa: E402
from memplan.chunking.region import NotLoopableError, Region, chunked  # noqa: E402
from memplan.chunking.rules.flow import Slice  # noqa: E402
from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference, meta_of  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.program import Op, Program, Ref  # noqa: E402

pytestmark = pytest.mark.torch
F = torch.nn.functional
aten = torch.ops.aten


class Of(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def lowered(function: Callable[[Any], Any], x: Any) -> tuple[Program, Inference]:
    inference = Inference()
    return lower(export(Of(function).eval(), (x,), {}), inference), inference


def widened(x: Any) -> Any:
    return F.conv_transpose1d(x, torch.ones(2, 3, 3))


def widened_twice(x: Any) -> Any:
    return F.conv1d(F.conv1d(x, torch.ones(2, 2, 2), padding=1), torch.ones(2, 2, 1))


def widened_by_padding(x: Any) -> Any:
    strided = F.conv1d(x, torch.ones(2, 2, 2), stride=2)
    return F.conv1d(strided, torch.ones(2, 2, 3), padding=2)


@pytest.mark.parametrize(
    ("function", "before"),
    [(widened, [0]), (widened_twice, [0, 0]), (widened_by_padding, [2, 0])],
)
@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_a_result_may_be_wider_than_what_it_is_made_of(
    function: Callable[[Any], Any], before: list[int], step: int
) -> None:
    x = torch.randn(1, 2, 8)
    program, inference = lowered(function, x)
    expected = function(x)
    made = [op.name for op in program.ops if op.key.startswith("aten.conv")]
    slices = {
        name: Slice(2, before=halo) for name, halo in zip(made, before, strict=True)
    }
    region = Region(slices, expected.shape[2], step)
    text = source(chunked(program, region, inference), "wider")
    weights = {
        name: torch.ones(program.metas[name].shape) for name in program.constants
    }
    (found,) = compiled(text, "wider")([x], weights)
    assert torch.allclose(found, expected, atol=1e-5), text


def test_a_triangle_is_not_cut_both_ways() -> None:
    """Its diagonal would follow two loops."""
    x = torch.randn(2, 6, 5)
    program, inference = lowered(lambda x: torch.triu(x, 1), x)
    name = program.ops[-1].name
    for other, fits in (({0}, True), ({1}, True), ({2}, False)):
        (dim,) = other
        inner = Region({f"{name}_i": Slice(dim)}, x.shape[dim], 1)
        rows = Region({name: Slice(1 if dim != 1 else 0)}, 6 if dim != 1 else 2, 1)
        nest = Region(rows.slices, rows.extent, 1, inner=(inner,))
        if not fits:
            with pytest.raises(NotLoopableError, match="cannot be sliced along 2"):
                chunked(program, nest, inference)
            continue
        text = source(chunked(program, nest, inference), "triangle")
        (found,) = compiled(text, "triangle")([x], {})
        assert torch.equal(found, torch.triu(x, 1)), text


def test_an_input_stays_where_a_reshape_of_the_last_iteration_is_a_view() -> None:
    """Of several columns it is a copy, which is written over."""
    x = torch.randn(5, 3).t()
    kept, inference = x.clone(), Inference()
    program = Program(["x"], {}, [], (Ref("y"),), {"x": meta_of(x)}, {"x": "x"})
    for op in (
        Op("row", aten.reshape.default, (Ref("x"), [15])),
        Op("y", aten.relu.default, (Ref("row"),)),
    ):
        inference.add(program, op)
        program.ops.append(op)
    region = Region({"row": Slice(0), "y": Slice(0)}, 15, 10, granule=5)
    text = source(chunked(program, region, inference), "last")
    (found,) = compiled(text, "last")([x], {})
    assert "relu_" in text
    assert torch.equal(x, kept), text
    assert torch.equal(found, torch.relu(kept.reshape(15)))
