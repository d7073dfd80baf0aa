"""A plan found before is used again, for the same model and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import memplan  # noqa: E402
from memplan.chunking.options import BudgetError, ChunkOptions  # noqa: E402
from memplan.chunking.rules.flow import Slice  # noqa: E402
from memplan.errors import InputError  # noqa: E402
from memplan.graph.check import relative_error  # noqa: E402
from tests.chunking import models  # noqa: E402

ANY = ChunkOptions(max_slowdown=None)  # no test depends on time


@pytest.fixture
def plan(attention: Any) -> Any:
    return attention[2].memplan


def test_from_its_file(plan: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    memplan.write_chunk_plan(plan, path)
    model, x = models.attention()
    small = memplan.chunk(model, x, plan=path, options=ANY)
    assert small.memplan.parts == plan.parts
    assert small.memplan.regions == plan.regions
    assert small.memplan.measured_bytes_after == plan.measured_bytes_after
    with torch.no_grad():
        assert relative_error(model(x), small(x)) <= 1e-5


@pytest.mark.parametrize("other", ["model", "shape", "dtype"])
def test_of_something_else_is_refused(plan: Any, other: str) -> None:
    model, x = models.attention(tokens=64 if other == "shape" else 128)
    if other == "model":
        model = models.Attention(heads=4).eval()
    if other == "dtype":
        model, x = model.double(), x.double()
    with pytest.raises(InputError, match="made for another model, for other shapes"):
        memplan.chunk(model, x, plan=plan)


def with_slices(plan: Any, slices: dict[str, Slice], **fields: Any) -> Any:
    (part,) = plan.parts
    region = replace(part.regions[0], slices=slices, **fields)
    return replace(plan, parts=(replace(part, regions=(region,)),))


@pytest.mark.parametrize(
    ("slices", "fields"),
    [
        ({"nothing": Slice(0)}, {}),
        ({"softmax": Slice(3)}, {}),
        ({"softmax": Slice(9)}, {}),
        ({"softmax": Slice(2)}, {"extent": 10_000}),
        ({"softmax": Slice(2, before=7)}, {}),
        ({"add": Slice(0)}, {}),
    ],
)
def test_that_makes_no_sense_is_refused(
    plan: Any, slices: dict[str, Slice], fields: dict[str, Any]
) -> None:
    model, x = models.attention()
    with pytest.raises((InputError, BudgetError)):
        memplan.chunk(model, x, plan=with_slices(plan, slices, **fields))


def test_that_needs_more_than_its_budget_is_refused(plan: Any) -> None:
    model, x = models.attention()
    tight = replace(plan, budget_bytes=plan.measured_bytes_after - 1)
    with pytest.raises(BudgetError, match="above its budget") as raised:
        memplan.chunk(model, x, plan=tight)
    assert raised.value.floor == plan.measured_bytes_after


def test_that_is_too_slow_is_refused(plan: Any) -> None:
    model, x = models.attention()
    said = r"the plan fits its budget, but takes \d+\.\d\d times as long, above 0"
    with pytest.raises(BudgetError, match=said) as raised:
        memplan.chunk(model, x, plan=plan, options=ChunkOptions(max_slowdown=1e-9))
    closest = raised.value.closest
    assert closest.memplan.slowdown > 1e-9
    assert closest.memplan.measured_bytes_after == raised.value.floor
    with torch.no_grad():
        assert relative_error(model(x), closest(x)) <= 1e-5
