"""A model and its chunks are timed in turns, by what this thread computed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from memplan.chunking import measure  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("takes", "pairs"), [(0.001, 25), (0.012, 7), (0.3, 5), (2.0, 3)]
)
def test_short_runs_are_timed_more_often(
    monkeypatch: pytest.MonkeyPatch, takes: float, pairs: int
) -> None:
    worked = 0.0
    order = []

    def run(number: int, part: float) -> Callable[[], None]:
        def body() -> None:
            nonlocal worked
            order.append(number)
            worked += part * takes

        return body

    monkeypatch.setattr("memplan.graph.measure.clock", lambda: lambda: worked)
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: worked))
    found = measure.paired(run(0, 1.0), run(1, 1.25))
    assert found.samples == pairs
    assert found.ratio == pytest.approx(1.25)
    assert order == [0, 1] * (pairs + 1)


def test_one_thread_is_timed_by_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else the machine does is in the time alone, which several threads go by."""
    from memplan.graph import measure as graph_measure

    now = SimpleNamespace(thread_time=lambda: 1.0, perf_counter=lambda: 2.0)
    monkeypatch.setattr(graph_measure, "time", now)
    for threads, shown in ((1, 1.0), (2, 2.0)):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=threads: n)
        assert graph_measure.clock()() == shown
