"""Trials: each is made once, and its program again where it was forgotten."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import memplan.chunking.trial  # noqa: E402
from memplan.chunking.code import source  # noqa: E402
from memplan.chunking.recompute import Base  # noqa: E402
from memplan.chunking.search import Search  # noqa: E402
from memplan.chunking.timing import Costs  # noqa: E402
from memplan.chunking.trial import Trial  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from memplan.graph.program import Loop, Program  # noqa: E402
from tests.chunking.test_exhaustive import attention, perceptron  # noqa: E402
from tests.chunking.test_windows import lowered  # noqa: E402

pytestmark = pytest.mark.torch


def excess(program: Program, budget: int) -> int:
    """Bytes above a budget, summed over the operators."""
    total = 0
    for step, live in zip(program.ops, profile(program).live, strict=True):
        if isinstance(step, Loop):
            outside = live - profile(step.body).peak
            total += excess(step.body, budget - outside)
        else:
            total += max(0, live - budget)
    return total


class Watched(Search):
    """Notes the code of each trial that it makes, in order."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.codes: dict[Trial, str] = {}

    def _made(self, *given: Any) -> Trial | None:
        made = super()._made(*given)
        if made is not None:
            self.codes.setdefault(made, source(made.program, "tried"))
        return made


def search(function: Any, *shape: int) -> Watched:
    program, inference = lowered(function, torch.randn(shape))
    return Watched(Base(program), inference, Costs())


@pytest.mark.parametrize(
    ("function", "shape"), [(attention, (2, 9, 6)), (perceptron, (2, 40, 6))]
)
def test_bytes_above_a_budget_and_forgotten_programs(
    function: Any, shape: tuple[int, ...]
) -> None:
    made = search(function, *shape)
    made.run(made.start.peak // 3)
    assert len(made.codes) > 5
    for each, code in made.codes.items():
        assert each.peak == profile(each.program).peak
        for share in (0.2, 0.5, 0.9, 1.1):
            budget = int(share * each.peak)
            assert each.excess(budget) == excess(each.program, budget)
        each.forget()
        assert source(each.program, "tried") == code


def test_what_is_forgotten_changes_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = search(attention, 2, 9, 6)
    expected = usual.run(usual.start.peak // 3)
    monkeypatch.setattr(memplan.chunking.trial, "PROGRAMS", 1)
    monkeypatch.setattr(memplan.chunking.trial, "LEVELS", 1)
    small = search(attention, 2, 9, 6)
    found = small.run(small.start.peak // 3)
    assert [each.digest for each in found] == [each.digest for each in expected]


def test_a_second_budget_makes_only_what_is_new() -> None:
    made = search(attention, 2, 9, 6)
    budget = made.start.peak // 3
    made.run(budget)
    before = len(made.codes)
    made.run(budget)
    assert len(made.codes) == before
