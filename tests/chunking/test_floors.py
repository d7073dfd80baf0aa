"""Regions and goals without which the search would end above a program's floor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from memplan.chunking.descent import Descent  # noqa: E402
from memplan.chunking.options import Effort  # noqa: E402
from memplan.chunking.recompute import Base  # noqa: E402
from memplan.chunking.search import Search  # noqa: E402
from memplan.chunking.timing import Costs  # noqa: E402
from memplan.chunking.trial import Trial  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from memplan.graph.program import Program  # noqa: E402
from tests.chunking.test_exhaustive import (  # noqa: E402
    THOROUGH,
    attention,
    descent,
    lowest,
    perceptron,
)
from tests.chunking.test_windows import lowered  # noqa: E402

pytestmark = pytest.mark.torch


def program_of(function: Callable[[Any], Any], *shape: int) -> tuple[Program, Any]:
    return lowered(function, torch.randn(shape))


def test_a_loop_ends_with_the_part_of_a_value_that_is_used() -> None:
    program, inference = program_of(lambda x: x.double().tanh()[..., 0], 3, 7, 6)
    assert lowest(program, inference, Effort()) < profile(program).peak // 3


def test_a_loop_begins_with_a_view_of_what_it_writes_over() -> None:
    def shifted(x: Any) -> Any:
        both = torch.stack([x, x])
        return both.select_scatter(both.select(2, 0), 2, 1)

    program, inference = program_of(shifted, 5, 6)
    assert profile(program).peak == 480
    assert lowest(program, inference, Effort()) == 312


def test_small_gains_are_searched_for_as_well() -> None:
    def both(x: Any) -> Any:
        return torch.stack([x, x]), x[..., ::2].softmax(0)

    program, inference = program_of(both, 2, 4, 4, 5, 3)
    assert lowest(program, inference, THOROUGH) == 5136


def test_the_best_of_a_search_is_the_lowest_that_it_made() -> None:
    peaks: list[int] = []

    class Watched(Search):
        def _made(self, *given: Any) -> Trial | None:
            made = super()._made(*given)
            peaks.extend([] if made is None else [made.peak])
            return made

    program, inference = program_of(attention, 2, 5, 6)
    search = Watched(Base(program), inference, Costs())
    assert not search.run(search.start.peak // 2)
    assert search.best.peak == min(peaks) < search.start.peak


def test_what_is_lowest_keeps_to_a_budget_that_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Descent, "fast_within", lambda *_: (None, False))
    program, inference = program_of(perceptron, 2, 40, 6)
    least = descent(program, inference, Effort()).lowest().peak
    found, fast = descent(program, inference, Effort()).found_within(least)
    assert found.peak == least and fast
    refused = descent(program, inference, Effort())
    assert refused.found_within(least - 1) == (None, False)
    assert refused.nearest.peak == least
