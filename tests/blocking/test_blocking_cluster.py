"""Sweeps on a real Ray cluster of two processes, on this machine."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest

from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.nest.layer import PAPER_LAYERS, Layer
from memplan.blocking.search.result import Options
from memplan.blocking.search.spatial import Task
from memplan.errors import EnvironmentUnfitError, NoPlanError, UsageError
from memplan.sweep import sweep
from tests.conftest import RAYS_OWN_WARNINGS

ray: Any = pytest.importorskip("ray", reason="Ray is not installed")

CORE = {"C": 16, "K": 16}
SMALL = Layer("small", 14, 14, 32, 64, 3, 3)
TASKS = [
    Task(SMALL, CORE, Codesign()),
    Task(SMALL, CORE, Fixed(load_hierarchy("diannao"))),
    Task(PAPER_LAYERS["fc1"], CORE, Codesign(budget=4096), Options("divisors")),
]
pytestmark = RAYS_OWN_WARNINGS


def test_on_a_cluster_the_results_are_the_same(ray_address: str) -> None:
    seen: list[int] = []
    found = sweep(TASKS, address=ray_address, progress=lambda i, r: seen.append(i))
    assert sorted(seen) == [0, 1, 2]
    for one, other in zip(found, sweep(TASKS, processes=1), strict=True):
        assert replace(one, seconds=0) == replace(other, seconds=0)
    assert not ray.is_initialized()  # what it joined, it left


def test_a_task_that_fails_ends_the_sweep_with_its_error(ray_address: str) -> None:
    hasty = replace(TASKS[0], layer=PAPER_LAYERS["conv1"])
    hasty = replace(hasty, options=Options("divisors", time_limit=0.0))
    with pytest.raises(NoPlanError, match=r"^0.0 seconds are too few for a nest of"):
        sweep([hasty, hasty], address=ray_address)
    wrong = replace(TASKS[0], datapath={"Z": 2})
    with pytest.raises(UsageError, match=r"^unrolling 'Z' by 2"):
        sweep([TASKS[0], wrong], address=ray_address)


def test_a_cluster_that_is_joined_already_stays(ray_address: str) -> None:
    ray.init(ray_address, log_to_driver=False)
    try:
        (found,) = sweep(TASKS[:1], address=ray_address)
        assert found.proved
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_where_nobody_answers() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(EnvironmentUnfitError, match="no Ray cluster answers at"):
            sweep(TASKS, address=nobody)
    with pytest.raises(EnvironmentUnfitError, match="no Ray cluster answers at 'no'"):
        sweep(TASKS, address="no")
