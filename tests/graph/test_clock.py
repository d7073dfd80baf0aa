"""Runs are timed in turns, by what this thread computed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from memplan.graph import clock  # noqa: E402

pytestmark = pytest.mark.torch


class Runs:
    """Runs that take as long as they are told, in a clock of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, threads: int = 1) -> None:
        self.now, self.order = 0.0, list[int]()
        monkeypatch.setattr(clock, "clock", lambda: lambda: self.now)
        watch = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(clock, "time", watch)
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)

    def __call__(self, *takes: float) -> list[Callable[[], None]]:
        return [
            lambda i=i, each=each: self._run(i, each) for i, each in enumerate(takes)
        ]

    def _run(self, number: int, takes: float) -> None:
        self.order.append(number)
        self.now += takes


@pytest.mark.parametrize(
    ("takes", "threads", "rounds"),
    [(0.001, 1, 25), (0.02, 1, 15), (0.7, 1, 3), (0.7, 2, 5), (4.0, 1, 3)],
)
def test_short_runs_have_more_turns(
    takes: float, threads: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(monkeypatch, threads)
    times = clock.in_turns(
        runs(takes, 1.25 * takes), enough=rounds * takes * 2.2, least=(5, 3)
    )
    assert times == [
        pytest.approx([takes] * rounds),
        pytest.approx([1.25 * takes] * rounds),
    ]
    assert runs.order == [0, 1] * (rounds + 1)


def test_what_is_clearly_slower_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch)
    three = runs(0.012, 0.01, 0.02)
    assert clock.seconds(three, enough=0.0) == pytest.approx([0.012, 0.01, 0.02])
    # Once to begin with, and once more until what takes far longer is out.
    assert runs.order == [0, 1, 2] * 2 + [0, 1] * 2
    runs.order.clear()
    assert clock.seconds(runs(0.012, 0.02), ready=True) == pytest.approx([0.012, 0.02])
    assert runs.order == [0, 1]


@pytest.mark.parametrize(("threads", "rounds"), [(1, 2), (2, 3)])
def test_long_runs_of_one_thread_tell_more(
    threads: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(monkeypatch, threads)
    assert clock.seconds(runs(1.2, 1.0), enough=0.0) == pytest.approx([1.2, 1.0])
    assert runs.order == [0, 1] * (rounds + 1)


def test_one_thread_is_timed_by_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else the machine does is in the time alone, which several threads go by."""
    now = SimpleNamespace(thread_time=lambda: 1.0, perf_counter=lambda: 2.0)
    monkeypatch.setattr(clock, "time", now)
    for threads, shown in ((1, 1.0), (2, 2.0)):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=threads: n)
        assert clock.clock()() == shown


@pytest.mark.parametrize(
    ("after", "limit", "pairs"),
    [
        (0.07, 1.0, 3),  # clearly faster
        (0.2, 1.0, 3),  # clearly slower
        (0.099, 1.0, 5),  # hardly faster
        (0.101, 1.0, 5),
        (0.2, float("inf"), 3),  # nothing is too slow
    ],
)
def test_pairs_end_when_it_is_decided(
    after: float, limit: float, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(monkeypatch)
    scale = 3  # so that the first pairs take long enough
    ratios = clock.in_pairs(*runs(0.1 * scale, after * scale), limit=limit)
    assert ratios == pytest.approx([10 * after] * pairs)
    assert runs.order == [0, 1] * (pairs + 1)


def test_pairs_go_on_while_it_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch)
    before, _ = runs(0.2, 0.2)
    turns = iter([0.2] + [0.18, 0.24] * 40)

    def after() -> None:
        runs._run(1, next(turns))

    ratios = clock.in_pairs(before, after, limit=1.0)
    assert len(ratios) == 13  # that takes 5 s
    assert clock.interval(ratios) == pytest.approx((0.9, 1.2))
    assert len(clock.in_pairs(before, after, limit=1.0, most=9.0)) == 22


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=25))
def test_an_interval_is_around_the_median(values: list[float]) -> None:
    low, high = clock.interval(values)
    below = sum(value < low for value in values)
    above = sum(value > high for value in values)
    assert low <= statistics.median(values) <= high
    assert {low, high} <= set(values)
    # What lies outside on one side has at most half of 10 % of the probability.
    most = max(below, above)
    tail = sum(math.comb(len(values), each) for each in range(most + 1))
    assert most == 0 or tail / 2 ** len(values) <= 0.05


def test_an_interval_is_as_the_tables_have_it() -> None:
    # Sign test, 90 %, of 5, 8, 11, 13 and 20 values: ranks from either end.
    ranks = {4: 1, 5: 1, 8: 2, 11: 3, 13: 4, 20: 6, 25: 8}
    for count, rank in ranks.items():
        expected = float(rank - 1), float(count - rank)
        assert clock.interval([float(i) for i in range(count)]) == expected
