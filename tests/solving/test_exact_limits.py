"""Decisions, limits, interruptions, and what does not depend on threads."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from exact_oracle import stacked

from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan
from memplan.core.problem import Problem
from memplan.core.verify import verify, verify_offsets
from memplan.errors import InfeasibleError, NoPlanError, UsageError
from memplan.native import _dsa
from memplan.solving import exact
from memplan.solving.bestfit import best_of_six
from memplan.solving.exact import RULES, Tuning
from memplan.solving.methods import solve_problem
from memplan.solving.options import Options, Progress


def hard(count: int = 400, seed: int = 1) -> Problem:
    """A rectangle of time and bytes cut into pieces, which then are planed a little.

    They can be put together again, but how well is not known in a few seconds: with
    all of them whole, it would be.
    """
    rng = np.random.default_rng(seed)
    pieces = [(0, 1000, 0, 100_000)]
    while len(pieces) < count:
        areas = [(right - left) * (top - low) for left, right, low, top in pieces]
        left, right, low, top = pieces.pop(int(np.argmax(areas)))
        share = rng.uniform(0.25, 0.75)
        if rng.random() < 0.5:
            cut = left + round((right - left) * share)
            pieces += [(left, cut, low, top), (cut, right, low, top)]
        else:
            cut = low + round((top - low) * share)
            pieces += [(left, right, low, cut), (left, right, cut, top)]
    columns = np.array(pieces, dtype=np.int64)
    size = (columns[:, 3] - columns[:, 2]) * rng.uniform(0.7, 1, count)
    return Problem.of(columns[:, 0], columns[:, 1], size.astype(np.int64) + 1)


RING = Problem.of([0, 1, 2, 3, 4], [2, 3, 4, 5, 1], [1] * 5, length=5)


def ask(problem: Problem, capacity: int, **limits: int | float) -> Plan:
    options = Options(capacity=capacity, threads=2, **limits)  # type: ignore[arg-type]
    return solve_problem(problem, "exact", options)


def test_it_fits() -> None:
    assert ask(RING, 3).peak == 3
    assert ask(RING, 1000).peak <= 1000


def test_it_does_not_fit_though_the_live_bytes_do() -> None:
    assert lower_bound(RING) == 2
    with pytest.raises(InfeasibleError, match="proved"):
        ask(RING, 2)


def test_it_is_not_known() -> None:
    problem = hard()
    with pytest.raises(NoPlanError, match="unknown") as caught:
        ask(problem, lower_bound(problem), max_nodes=1000)
    assert not isinstance(caught.value, InfeasibleError)


def test_a_capacity_is_all_that_is_asked_for() -> None:
    problem = hard()
    worst = stacked(problem)
    capacity = lower_bound(problem) * 5 // 4
    options = Options(capacity=capacity, threads=2)
    found = exact.improve(problem, worst, options=options)
    peak = int((found.offsets + problem.size).max())
    assert lower_bound(problem) < peak <= capacity
    assert verify_offsets(problem, found.offsets, capacity) == []


def test_no_time_at_all() -> None:
    plan = exact.solve(hard(), Options(time_limit=0.0))
    assert verify(plan) == []
    assert plan.status == "feasible"
    assert plan.lower_bound == lower_bound(plan.problem)


@pytest.mark.parametrize("nodes", [0, 1, 50_000])
def test_few_nodes(nodes: int) -> None:
    """The limit is kept but for the last short run, and the plan verifies."""
    problem = hard()
    found = exact.improve(
        problem, stacked(problem), options=Options(max_nodes=nodes, threads=2)
    )
    assert nodes <= found.nodes <= nodes + 500_000
    peak = int((found.offsets + problem.size).max())
    assert verify_offsets(problem, found.offsets, peak) == []
    assert not found.proved_optimal


def test_any_number_of_threads_finds_the_same() -> None:
    problem = hard()
    plans = [
        exact.solve(problem, Options(max_nodes=200_000, threads=threads, seed=seed))
        for threads, seed in ((1, 0), (2, 0), (5, 1))
    ]
    first = plans[0]
    assert first.peak < problem.peak(best_of_six(problem)[0])
    for plan in plans[1:]:
        assert plan.offsets.tolist() == first.offsets.tolist()
        assert (plan.lower_bound, plan.provenance.note) == (
            first.lower_bound,
            first.provenance.note,
        )


def test_slices_do_not_matter_to_a_single_search() -> None:
    """Left and resumed as often as you like, it makes the same placements."""
    problem = hard(60)
    arrays = (problem.lower, problem.upper, problem.size, problem.alignment)
    capacity = lower_bound(problem) * 11 // 10
    found = []
    for piece in (1, 37, 100_000):
        search = _dsa.ExactSearch(*arrays, problem.fixed, capacity, ["AWT"])
        assert search.run(1 << 40, piece, 1, 60.0) == "fits"
        found.append((search.nodes, search.offsets().tolist()))
    assert found[0] == found[1] == found[2]


def test_progress_never_goes_back() -> None:
    seen: list[Progress] = []
    exact.solve(hard(), Options(max_nodes=500_000, threads=2, progress=seen.append))
    search = [p for p in seen if p.nodes > 100]
    assert len(search) > 2
    for before, after in pairwise(search):
        assert before.peak is not None and after.peak is not None
        assert after.peak <= before.peak
        assert after.lower_bound >= before.lower_bound
        assert after.nodes > before.nodes
        assert after.seconds >= before.seconds


def test_interrupted_it_keeps_what_it_has() -> None:
    """Ctrl-C, from another thread, while the kernel works."""
    problem = hard()
    timer = threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    plan = exact.solve(problem, Options(max_nodes=1 << 50, threads=2))
    timer.join()
    assert "interrupted" in plan.provenance.note
    assert verify(replace(plan)) == []
    assert plan.peak < int((stacked(problem) + problem.size).max())


def test_interrupted_by_whoever_watches() -> None:
    def stop(progress: Progress) -> None:
        if progress.nodes > 100:
            raise KeyboardInterrupt

    problem = hard()
    found = exact.improve(problem, stacked(problem), options=Options(progress=stop))
    assert found.interrupted and not found.proved_optimal
    peak = int((found.offsets + problem.size).max())
    assert verify_offsets(problem, found.offsets, peak) == []


def test_rules_can_be_left_out_by_name_and_unknown_ones_are_refused() -> None:
    problem = Problem.of([0, 1, 2], [2, 3, 4], [10, 20, 30])
    for rule in RULES:
        tuning = Tuning(without=(rule,))
        found = exact.improve(problem, stacked(problem), tuning=tuning)
        assert (found.lower_bound, found.proved_optimal) == (50, True)
    with pytest.raises(UsageError, match="no rule 'nonsense': take canonical"):
        Tuning(without=("nonsense",))
    with pytest.raises(UsageError, match="no order 'XYZ'"):
        Tuning(orders=("XYZ",))
