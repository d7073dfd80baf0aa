"""Defects of memplan itself are named and counted, and the search goes on."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import memplan  # noqa: E402
from memplan.chunking.canonical import searchable  # noqa: E402
from memplan.chunking.code import compiled, failed_statement  # noqa: E402
from memplan.chunking.module import Chunk  # noqa: E402
from memplan.chunking.options import BudgetError  # noqa: E402
from memplan.chunking.plan import fingerprint  # noqa: E402
from memplan.chunking.planfile import to_json  # noqa: E402
from memplan.chunking.region import NotLoopableError, Region, chunked  # noqa: E402
from memplan.chunking.rules.flow import RULES, Flow, Slice  # noqa: E402
from memplan.graph.check import relative_error  # noqa: E402
from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.program import Op  # noqa: E402
from tests.chunking import models  # noqa: E402

ANY = memplan.ChunkOptions(max_slowdown=None)


def fails(*_: Any) -> Any:
    raise AttributeError("no shape")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (fails, "aten.gelu: AttributeError: no shape"),
        (lambda *_: Flow((None,)), "aten.gelu has another shape in the loop"),
        (
            lambda call, out: Flow((out,), torch.ops.aten.mm.default),
            "aten.gelu: ShapeError: aten.mm",
        ),
    ],
)
def test_a_wrong_rule_drops_its_regions(
    monkeypatch: pytest.MonkeyPatch, rule: Any, said: str
) -> None:
    monkeypatch.setitem(RULES, "aten.gelu", rule)
    model, x = models.mlp()
    with pytest.raises(BudgetError, match="internal errors dropped") as raised:
        memplan.chunk(model, x, "30%", options=ANY)
    errors = raised.value.closest.memplan.internal_errors
    (error,) = errors
    assert error.startswith(said)
    assert errors[error] > 0
    assert f"dropped {errors[error]} regions, as in {said}" in str(raised.value)


def test_code_that_does_not_run_is_an_internal_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Chunk, "__call__", fails)
    model, x = models.mlp()
    with pytest.raises(BudgetError, match="internal errors dropped") as raised:
        memplan.chunk(model, x, "50%", options=ANY)
    plan = raised.value.closest.memplan
    assert list(plan.internal_errors) == ["Sequential: AttributeError: no shape"]
    assert to_json(plan)["internal_errors"] == plan.internal_errors


def test_the_statement_that_failed_is_named() -> None:
    text = "def forward(inputs, weights):\n    a = inputs\n    return a + nowhere\n"
    with pytest.raises(NameError) as raised:
        compiled(text, "Model")([], {})
    assert failed_statement(raised.value, ["Model"]) == "return a + nowhere"
    assert failed_statement(raised.value, ["Other"]) == "Other"


def lowered(model: Any, *inputs: Any) -> tuple[Any, Inference]:
    inference = Inference()
    return lower(export(model.eval(), inputs, {}), inference), inference


class Square(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        y = x.exp()
        return y @ y


def test_what_a_member_needs_whole_is_not_made_in_slices() -> None:
    program, inference = lowered(Square(), torch.randn(8, 8))
    names = [step.name for step in program.ops]
    region = Region(dict.fromkeys(names, Slice(0)), 8, 2)
    with pytest.raises(NotLoopableError, match="exp is needed whole"):
        chunked(program, region, inference)
    small = memplan.chunk(Square().eval(), torch.randn(256, 256), "min", options=ANY)
    assert small.memplan.internal_errors == {}


def test_a_fingerprint_is_the_same_in_each_process() -> None:
    """A function is another object there, at another address."""
    norm = torch.nn.GroupNorm(2, 8)
    program = searchable(*lowered(norm, torch.randn(2, 8, 16)))
    before = fingerprint(program)
    own = [op for op in program.ops if isinstance(op.target, FunctionType)]
    assert len(own) == 2
    for op in own:
        assert isinstance(op, Op)
        op.target = FunctionType(op.target.__code__, {}, op.target.__name__)
    assert fingerprint(program) == before


def test_custom_operators_run_beside_loops() -> None:
    @torch.library.custom_op("testing::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.register_fake(torch.empty_like)

    class Custom(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.mlp, _ = models.mlp()

        def forward(self, x: Any) -> Any:
            return self.mlp(doubled(x))

    model, x = Custom().eval(), torch.randn(4, 64, 16)
    small = memplan.chunk(model, x, "60%", options=ANY)
    assert small.memplan.internal_errors == {}
    assert "torch.ops.testing.doubled.default(" in small.source()
    with torch.no_grad():
        assert relative_error(model(x), small(x)) <= 1e-5
