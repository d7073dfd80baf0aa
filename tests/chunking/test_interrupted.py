"""Ctrl-C ends the search with the best found until then, if that fits."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import memplan  # noqa: E402
from memplan.chunking import workbench  # noqa: E402
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


def timings(monkeypatch: pytest.MonkeyPatch, ratios: list[float | None]) -> list[int]:
    """Timings give these ratios, one after the other; None: Ctrl-C."""
    done: list[int] = []

    def in_pairs(*_: Any) -> list[float]:
        ratio = ratios[len(done)]
        done.append(1)
        if ratio is None:
            raise KeyboardInterrupt
        return [ratio] * 5

    monkeypatch.setattr(workbench, "in_pairs", in_pairs)
    return done


def test_what_was_accepted_before_a_timing_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = models.attention()
    timings(monkeypatch, [0.5, 0.5, None])
    options = ChunkOptions(time_limit=1000.0)
    plan = memplan.chunk(model, x, "min", options=options).memplan
    assert plan.status == "chunked" and plan.slowdown == 0.5
    assert "interrupted" in plan.reason


def test_the_first_timing_that_is_interrupted_is_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = models.attention()
    timings(monkeypatch, [None])
    with pytest.raises(KeyboardInterrupt):
        memplan.chunk(model, x, "30%")


def test_the_search_ends_with_the_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was timed is too slow, and nothing else is looked for."""
    model, x = models.attention()
    done = timings(monkeypatch, [1.5, None])
    with pytest.raises(BudgetError, match=r"takes 1\.50 times as long"):
        memplan.chunk(model, x, "30%")
    assert len(done) == 2


def test_a_second_timing_that_is_interrupted_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = models.attention()
    timings(monkeypatch, [1.05, None])
    small = memplan.chunk(model, x, "30%")
    assert "interrupted" in small.memplan.reason
    timings(monkeypatch, [1.05, None])
    again = memplan.chunk(model, x, plan=small.memplan)
    assert again.memplan.reason == "the timing was interrupted"
