"""Problems of our own whose least peaks are known without any of the methods."""

from __future__ import annotations

import pytest

import memplan
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
