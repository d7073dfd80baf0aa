"""Ctrl-C ends the search with the best found until then, if that fits."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import memplan  # noqa: E402
from memplan.chunking.options import BudgetError, ChunkOptions  # noqa: E402
from memplan.chunking.search import Search  # noqa: E402
from tests.chunking import models  # noqa: E402


def interrupted(
    monkeypatch: pytest.MonkeyPatch, *, after: int, found: bool = True
) -> None:
    """The search number `after` is cut short, with or without what it found."""
    honest = Search.run
    runs = 0

    def run(self: Search, budget: int, *rest: Any) -> Any:
        nonlocal runs
        runs += 1
        done = honest(self, budget, *rest)
        if runs < after:
            return done
        self.done = done if found else []
        self._trials.best = self.best if found else self.start
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "run", run)


ANY = ChunkOptions(max_slowdown=None)


def test_the_best_so_far_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = models.attention()
    interrupted(monkeypatch, after=1)
    plan = memplan.chunk(model, x, "30%", options=ANY).memplan
    assert plan.status == "chunked"
    assert "interrupted" in plan.reason
    assert plan.measured_bytes_after <= plan.budget_bytes


@pytest.mark.parametrize("budget", ["30%", "min"])
def test_nothing_so_far_is_no_result(
    monkeypatch: pytest.MonkeyPatch, budget: str
) -> None:
    model, x = models.attention()
    interrupted(monkeypatch, after=1, found=False)
    with pytest.raises(KeyboardInterrupt):
        memplan.chunk(model, x, budget, options=ANY)


def test_on_the_way_down_the_last_that_fitted_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = models.attention()
    interrupted(monkeypatch, after=2, found=False)
    plan = memplan.chunk(model, x, "min", options=ANY).memplan
    assert "interrupted" in plan.reason
    assert plan.measured_bytes_after <= plan.measured_bytes_before // 2


def test_no_time_to_search() -> None:
    model, x = models.attention()
    options = ChunkOptions(max_slowdown=None, time_limit=1e-9)
    with pytest.raises(BudgetError):
        memplan.chunk(model, x, "30%", options=options)
