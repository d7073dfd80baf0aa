"""A loop sees how a buffer lies that was laid out for it after it was made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from memplan.chunking.buffers import displaced  # noqa: E402
from memplan.chunking.code import compiled, source  # noqa: E402
from memplan.chunking.region import (  # noqa: E402
    Region,
    chunked,
    loop_name,
)
from memplan.chunking.rules.flow import Slice  # noqa: E402
from memplan.chunking.timing import Machine, seconds  # noqa: E402
from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.program import Loop, Program  # noqa: E402

pytestmark = pytest.mark.torch


class Triangle(torch.nn.Module):
    """Products over the middle of two maps of channels: each channel is a matrix that
    lies neither by rows nor by columns."""

    def forward(self, x: Any) -> Any:
        left, right = x.neg() * 2, x.cos().exp()
        return left.permute(2, 0, 1) @ right.permute(2, 0, 1)


@pytest.fixture
def made() -> tuple[Program, Inference, Region, Region]:
    inference = Inference()
    exported = export(Triangle().eval(), (torch.randn(16, 16, 8),), {})
    program = lower(exported, inference)
    neg, mul, _, exp, turned, _, product = [op.name for op in program.ops]
    rows, across = Slice(0), Slice(1)
    last = Region({neg: rows, mul: rows, turned: across, product: across}, 16, 4)
    return program, inference, last, Region({exp: rows}, 16, 4)


def loops(program: Program) -> list[Loop]:
    return [step for step in program.ops if isinstance(step, Loop)]


def results(program: Program, x: Any) -> Any:
    return compiled(source(program, "test"), "test")((x,), {})[0]


def test_the_product_sees_the_new_order(made: Any) -> None:
    program, inference, last, first = made
    once = chunked(program, last, inference)
    twice = chunked(once, replace(first, fresh=True), inference)
    before, after = loops(once)[0], loops(twice)[-1]
    (whole,) = after.wholes()
    assert not before.body.metas[whole].contiguous
    assert after.body.metas[whole].contiguous
    assert after.body.metas[whole] == twice.metas[whole]
    machine = Machine(touched=float("inf"), copied=float("inf"))
    gathering = replace(machine, gathered=1e3)
    lost = [seconds(each, gathering) - seconds(each, machine) for each in (once, twice)]
    assert lost[0] > 0 == lost[1]
    x = torch.randn(16, 16, 8)
    torch.testing.assert_close(results(twice, x), Triangle()(x))


def test_a_result_over_what_dies_is_displaced(made: Any) -> None:
    program, inference, last, first = made
    over = chunked(chunked(program, last, inference), first, inference)
    own = chunked(
        chunked(program, last, inference), replace(first, fresh=True), inference
    )
    assert displaced(over, loop_name(first))
    assert not displaced(own, loop_name(first))
    x = torch.randn(16, 16, 8)
    torch.testing.assert_close(results(over, x), Triangle()(x))
