"""Exact search: the least peak, proved; and what it says where it ends early."""

from __future__ import annotations

import signal
import threading
from itertools import pairwise

import numpy as np
import pytest
from exact_oracle import NEVER, brute_force, stacked
from hypothesis import strategies as st
from puzzles import puzzle

from memplan.arrays import Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan
from memplan.core.problem import Problem
from memplan.core.verify import verify, verify_offsets
from memplan.errors import InfeasibleError, NoPlanError
from memplan.native import _dsa
from memplan.solving import exact
from memplan.solving.bestfit import best_of_six
from memplan.solving.exact import ORDERS, Peaks
from memplan.solving.methods import solve_problem
from memplan.solving.options import Options, Progress
from memplan.solving.placing import spans
from tests.strategies import examples, problems

QUIET = Options(threads=1)
orders = st.sampled_from(ORDERS)


def peak_of(problem: Problem, offsets: Int64Array) -> int:
    """The peak of a plan that verifies."""
    peak = int((offsets + problem.size).max(initial=0))
    assert verify_offsets(problem, offsets, peak) == []
    return peak


def proved(problem: Problem) -> int:
    """The least peak, found from the worst plan there is."""
    found = exact.improve(problem, stacked(problem), QUIET)
    assert found.proved_optimal
    assert peak_of(problem, found.offsets) == found.lower_bound
    return found.lower_bound


def answer(problem: Problem, capacity: int, order: str) -> str:
    """The kernel's, in many short rounds: it is left and resumed all the time."""
    start, end = spans(problem)
    columns = (start, end, problem.padded, problem.alignment, problem.fixed)
    search = _dsa.ExactSearch(
        *columns, capacity, [order], problem.length or 0, beyond=problem.slack
    )
    said = search.run(1 << 40, 3, 1, 60.0)
    if said == "fits":
        assert peak_of(problem, search.offsets()) <= capacity
    return said


@examples(100, problems(max_size=7, fixed=True), soak=5000)
def test_equal_to_brute_force(problem: Problem) -> None:
    assert proved(problem) == brute_force(problem)


@examples(60, problems(max_size=7, fixed=True), soak=5000)
def test_every_ranking_decides_right(problem: Problem) -> None:
    """One byte less than the least peak is refused by the search alone."""
    if not len(problem):
        return
    least = brute_force(problem)
    for order in ORDERS:
        assert answer(problem, least, order) == "fits"
        assert answer(problem, least - 1, order) == "never"


@examples(40, st.integers(0, 1 << 32), st.booleans(), orders)
def test_what_can_be_packed_is_not_refused_on_long_clocks(
    seed: int, circle: bool, order: str
) -> None:
    """Of dozens of sections, at which the bounds look by blocks."""
    problem = puzzle(18, seed, height=40, length=80 if circle else None)
    assert answer(problem, 40, order) == "fits"
    assert answer(problem, 39, order) == "never"


# ---- what leaves the least peak as it was, or multiplies it


# ---- single problems


def test_sizes_beyond_32_bits() -> None:
    big = (1 << 38) - 1
    problem = Problem.of(
        [0, 1, 0, 2, 3], [2, 4, 1, 3, 5], [big, big - 2, 7, 5, big // 3]
    )
    assert proved(problem) == brute_force(problem)


def test_too_large_to_search() -> None:
    """More units than the search counts: what is known stays known."""
    big = (1 << 44) - 1
    problem = Problem.of([0, 1, 0], [2, 4, 1], [big, big - 2, 7])
    found = exact.improve(problem, stacked(problem), QUIET)
    assert found.too_large and not found.proved_optimal and found.nodes == 0
    assert found.offsets.tolist() == stacked(problem).tolist()
    assert found.lower_bound == lower_bound(problem)


def test_fixed_offsets_that_collide_leave_no_plan() -> None:
    problem = Problem.of([0, 0], [2, 2], [4, 4], fixed=[0, 2])
    assert brute_force(problem) == NEVER
    with pytest.raises(NoPlanError, match="fixed offsets"):
        exact.solve(problem)
    assert answer(problem, 100, "WAT") == "never"


def test_nothing_to_pack() -> None:
    plan = exact.solve(Problem.of([], [], []))
    assert (plan.peak, plan.status, len(plan.offsets)) == (0, "optimal", 0)


@examples(50, problems(fixed=True), st.integers(0, 5000))
def test_possible_peaks_ascend_without_a_gap(problem: Problem, least: int) -> None:
    peaks = Peaks(problem)
    index = peaks.index(least)
    assert peaks[0] == 0
    assert peaks[index] >= least > (peaks[index - 1] if index else -1)
    assert peaks[peaks.index(least + 1) - 1] <= least < peaks[peaks.index(least + 1)]


def test_the_padding_above_the_topmost_needs_no_room() -> None:
    problem = Problem.of([0, 0], [1, 1], [100, 100], alignment=64)
    for method in ("auto", "exact", "bestfit", "search", "mip"):
        assert solve_problem(problem, method, Options(capacity=228)).peak == 228


ONE = np.array([1], dtype=np.int64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"orders": []}, "no orders"),
        ({"orders": ["X"]}, "letters"),
        ({"orders": ["R"]}, "number"),
        ({"orders": ["R1x"]}, "number"),
        ({"capacity": -1}, "0 <= capacity"),
        ({"capacity": 1 << 43}, "capacity < 2"),
        ({"size": 0 * ONE}, "size"),
        ({"size": ONE << 43}, "size < 2"),
        ({"fixed": -2 * ONE}, "fixed"),
        ({"beyond": 2 * ONE}, "beyond"),
        ({"upper": 0 * ONE}, "lower < upper"),
        ({"alignment": 0 * ONE}, "alignment > 0"),
        ({"period": -1}, "period"),
        ({"lower": np.array([0, 0])}, "differ in length"),
        ({"fixed": np.array([0, 0])}, "differ in length"),
    ],
)
def test_searches_that_cannot_be(change: dict[str, object], message: str) -> None:
    columns = {"lower": 0 * ONE, "upper": ONE, "size": ONE, "alignment": ONE}
    arguments: dict[str, object] = columns | {
        "fixed": -ONE,
        "capacity": 1,
        "orders": ["WAT"],
    }
    assert _dsa.ExactSearch(**arguments).run(1, 1, 1, 1.0) == "fits"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        _dsa.ExactSearch(**arguments | change)  # type: ignore[arg-type]


# ---- capacities, limits and interruptions

RING = Problem.of([0, 1, 2, 3, 4], [2, 3, 4, 5, 1], [1] * 5, length=5)


def planed(count: int = 400) -> Problem:
    """A puzzle of which all pieces are a little smaller: how low it can be packed is
    not known in a few seconds."""
    whole = puzzle(count, 1, height=100_000)
    shares = np.random.default_rng(1).uniform(0.7, 1, count)
    size = (whole.size * shares).astype(np.int64) + 1
    return Problem.of(whole.lower, whole.upper, size)


HARD = planed()


def ask(problem: Problem, capacity: int, **limits: int) -> Plan:
    return solve_problem(problem, "exact", Options(capacity=capacity, **limits))  # type: ignore[arg-type]


def test_a_capacity_is_met_or_refused_or_it_is_not_known() -> None:
    """On a ring two buffers are alive at a time, but three bytes are needed."""
    assert lower_bound(RING) == 2
    assert exact.solve(RING, QUIET).status == "optimal"
    assert ask(RING, 3).peak == 3
    assert ask(RING, 1000).peak <= 1000
    with pytest.raises(InfeasibleError, match="proved"):
        ask(RING, 2)
    with pytest.raises(NoPlanError, match="unknown") as caught:
        ask(HARD, lower_bound(HARD), max_nodes=1000)
    assert not isinstance(caught.value, InfeasibleError)


def test_a_capacity_is_all_that_is_asked_for() -> None:
    capacity = lower_bound(HARD) * 5 // 4
    found = exact.improve(HARD, stacked(HARD), Options(capacity=capacity))
    assert lower_bound(HARD) < peak_of(HARD, found.offsets) <= capacity


def test_no_time_at_all() -> None:
    plan = exact.solve(HARD, Options(time_limit=0.0))
    assert verify(plan) == []
    assert plan.status == "feasible"
    assert plan.lower_bound == lower_bound(plan.problem)


@pytest.mark.parametrize("nodes", [0, 1, 50_000])
def test_few_nodes(nodes: int) -> None:
    """The limit is kept but for the last short run, and the plan verifies."""
    found = exact.improve(HARD, stacked(HARD), Options(max_nodes=nodes))
    assert nodes <= found.nodes <= nodes + 500_000
    assert peak_of(HARD, found.offsets) > found.lower_bound
    assert not found.proved_optimal


@pytest.mark.parametrize(
    "nodes", [10_000, pytest.param(500_000, marks=pytest.mark.soak)]
)
def test_threads_change_nothing_and_progress_never_goes_back(nodes: int) -> None:
    problem, seen = planed(330), list[Progress]()
    first, *others = (
        exact.solve(problem, Options(max_nodes=nodes, progress=watch, **how))  # type: ignore[arg-type]
        for watch, how in (
            (seen.append, {"threads": 1}),
            (None, {"threads": 2}),
            (None, {"threads": 5, "seed": 1}),
        )
    )
    assert first.peak < problem.peak(best_of_six(problem)[0])
    for plan in others:
        assert plan.offsets.tolist() == first.offsets.tolist()
        assert plan.lower_bound == first.lower_bound
        assert plan.provenance.note == first.provenance.note
    search = [p for p in seen if p.nodes > 100]
    assert search
    for before, after in pairwise(search):
        assert before.peak is not None and after.peak is not None
        assert after.peak <= before.peak
        assert after.lower_bound >= before.lower_bound
        assert after.nodes > before.nodes
        assert after.seconds >= before.seconds


def test_searches_that_give_way_to_others_still_count() -> None:
    """At more capacities than are searched at a time."""
    seen: list[Progress] = []
    options = Options(max_nodes=700_000, threads=1, progress=seen.append)
    plan = exact.solve(planed(220), options)
    nodes = [progress.nodes for progress in seen]
    assert nodes == sorted(nodes)
    assert plan.provenance.note == f"{nodes[-1]:,} nodes"
    assert nodes[-1] >= 700_000


def test_slices_do_not_matter_to_a_single_search() -> None:
    """Left and resumed as often as you like, it makes the same placements."""
    problem = planed(60)
    arrays = (problem.lower, problem.upper, problem.size, problem.alignment)
    capacity = lower_bound(problem) * 11 // 10
    found = []
    for piece in (1, 37, 100_000):
        search = _dsa.ExactSearch(*arrays, problem.fixed, capacity, ["AWT"])
        assert search.run(1 << 40, piece, 1, 60.0) == "fits"
        found.append((search.nodes, search.offsets().tolist()))
    assert found[0] == found[1] == found[2]


def test_interrupted_it_keeps_what_it_has() -> None:
    """Ctrl-C, from another thread, while the kernel works."""
    timer = threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    plan = exact.solve(HARD, Options(max_nodes=1 << 50, threads=2))
    timer.join()
    assert "interrupted" in plan.provenance.note
    assert verify(plan) == []


def test_interrupted_by_whoever_watches() -> None:
    def stop(progress: Progress) -> None:
        if progress.nodes > 100:
            raise KeyboardInterrupt

    found = exact.improve(HARD, stacked(HARD), Options(progress=stop))
    assert found.interrupted and not found.proved_optimal
    assert peak_of(HARD, found.offsets) > found.lower_bound
