"""Problems whose least peaks are known without any of the methods."""

from __future__ import annotations

import pytest
from hard import Hard, hard_problems, unsolved_problems
from known import PUBLISHED

import memplan
from memplan.core.bounds import lower_bound
from memplan.core.problem import Gaps, Problem
from memplan.core.verify import verify, verify_offsets
from memplan.solving import auto, exact
from memplan.solving.bestfit import best_of_six
from memplan.solving.options import Options
from memplan.solving.solve import METHOD_NAMES
from memplan.trace.importers.minimalloc import read_minimalloc
from tests.solving.known import Known, every_own_problem, own

SMALL = [known for known in own() if known.path.stem != "cut-400"]


@every_own_problem
@pytest.mark.parametrize("method", sorted(set(METHOD_NAMES) - {"mip", "exact"}))
def test_no_method_promises_too_much(known: Known, method: str) -> None:
    plan = memplan.solve(read_minimalloc(known.path), method, time_limit=0.3)
    assert memplan.verify(plan) == []
    assert plan.lower_bound <= known.optimum <= plan.peak
    assert not plan.proved_optimal or plan.peak == known.optimum


@pytest.mark.parametrize("known", SMALL, ids=lambda known: known.path.stem)
def test_exact_proves_the_least_peak(known: Known) -> None:
    plan = memplan.solve(read_minimalloc(known.path), "exact")
    assert plan.proved_optimal
    assert plan.peak == known.optimum


# ---- hard problems are packed as they were cut


HARD = hard_problems()
# Those that take seconds wait for `make soak`.
SLOW = ("swept-310-17-0.01", "swept-310-17-0.0", "swept-200-12-0.0")
NODES = 500_000  # for which two cores take some seconds


def test_they_are_as_hard_as_they_say() -> None:
    """All of them tight, and none that best fit packs."""
    for name, problem, peak in HARD:
        assert 145 <= len(problem) <= 500, name
        assert lower_bound(problem) == peak, name
        assert problem.peak(best_of_six(problem)[0]) > 1.03 * peak, name


@pytest.mark.parametrize("nodes", [5000, pytest.param(60_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("hard", unsolved_problems(), ids=lambda hard: hard.name)
def test_what_is_not_solved_is_not_refused(hard: Hard, nodes: int) -> None:
    """It is known that they can be packed: a proof of the contrary would be wrong."""
    start, _ = best_of_six(hard.problem)
    options = Options(max_nodes=nodes, threads=2)
    found = exact.improve(hard.problem, start, options=options)
    assert found.lower_bound == hard.peak
    assert verify_offsets(hard.problem, found.offsets, 2 * hard.peak) == []


@pytest.mark.parametrize(
    "hard",
    [
        pytest.param(hard, id=hard.name, marks=[pytest.mark.soak] * (hard.name in SLOW))
        for hard in HARD
    ],
)
def test_they_are_packed_as_they_were_cut(hard: Hard) -> None:
    plan = auto.solve(hard.problem, Options(max_nodes=NODES, threads=2))
    assert (plan.peak, plan.status) == (hard.peak, "optimal")
    assert verify(plan) == []


@pytest.mark.parametrize("name", "ABCEF")
def test_published_ones_take_some_thousand_nodes(name: str) -> None:
    problem = published(name)
    start, _ = best_of_six(problem)
    options = Options(max_nodes=100_000, threads=2)
    found = exact.improve(problem, start, options=options)
    assert found.proved_optimal
    assert problem.peak(found.offsets) == lower_bound(problem)
    assert found.nodes < 50_000


def test_one_gap_is_no_obstacle() -> None:
    problem = published("A")
    i = int((problem.upper - problem.lower).argmax())
    third = int(problem.lower[i] + problem.upper[i]) // 3
    gaps = Gaps.of([i], [third], [third + 2])
    gapped = Problem.of(problem.lower, problem.upper, problem.size, gaps=gaps)
    plan = auto.solve(gapped, Options(max_nodes=100_000, threads=2))
    assert plan.peak == 1 << 20
    assert verify(plan) == []


def published(name: str) -> Problem:
    path = PUBLISHED / "minimalloc" / f"{name}.1048576.csv"
    if not path.exists():
        pytest.skip(f"no {path.name} here")
    return read_minimalloc(path)
