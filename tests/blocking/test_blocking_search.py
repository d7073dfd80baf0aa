"""Any method by name, many at once, and the curve of energy against area."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_strategies import layers

from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.cost.placement import BufferMemory
from memplan.blocking.design.area_curve import area_curve
from memplan.blocking.machine.hierarchy import Level, load_hierarchy
from memplan.blocking.machine.technology import area_mm2
from memplan.blocking.nest.layer import PAPER_LAYERS, Layer, Tensor
from memplan.blocking.search import optimize as search
from memplan.blocking.search.exact import optimum
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import METHODS, Options
from memplan.blocking.search.spatial import Task
from memplan.errors import EnvironmentUnfitError, MemplanError, UsageError
from memplan.sweep import sweep

CORE = {"C": 16, "K": 16}
SMALL = Layer("small", 14, 14, 32, 64, 3, 3)
TINY = Layer("tiny", 1, 9, 16, 8, 1, 3)
DIANNAO = load_hierarchy("diannao")
TWO_LEVELS = replace(
    DIANNAO,
    levels=(
        Level("small", None, dict.fromkeys(Tensor, 64), {}),
        Level("middle", None, dict.fromkeys(Tensor, 80), {}),
    ),
)
OBJECTIVES: list[Objective] = [
    Codesign(),
    Codesign(budget=100),
    Codesign(budget=2000, count_fills=True),
    Fixed(DIANNAO),
    Fixed(TWO_LEVELS),
    Fixed(replace(TWO_LEVELS, count_fills=True)),
    Fixed(load_hierarchy("xeon-e5645")),
    Fixed(replace(DIANNAO, levels=(Level("l", 100, None, {}),))),
]


@settings(max_examples=15, deadline=None)
@given(layers(macs=300), st.sampled_from(OBJECTIVES))
def test_the_exact_method_is_never_worse(layer: Layer, objective: Objective) -> None:
    exact = optimize(layer, {}, objective, Options("divisors"))
    assert exact.proved
    assert exact.gap == 0
    assert exact.lower_bound == pytest.approx(exact.energy, rel=1e-9)
    assert exact.memories is not None
    counted = objective.evaluate(exact.nest, exact.memories)
    assert exact.energy == pytest.approx(counted, rel=1e-12)
    # The objective's own rule, which takes every buffer, does not do better, either.
    assert objective.evaluate(exact.nest) >= exact.energy * (1 - 1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_its_result_counted_anew(method: str) -> None:
    result = optimize(TINY, {}, Codesign(), Options(method=method))
    assert result.method == method
    by_rule = Codesign().evaluate(result.nest)
    assert result.seconds > 0
    # A memory is left out that costs more than it saves.
    assert result.energy <= by_rule * (1 + 1e-12)
    counted = Codesign().evaluate(result.nest, result.memories)
    assert result.energy == pytest.approx(counted, rel=1e-12)
    assert result.lower_bound is not None
    assert result.proved == (result.gap == 0)


def test_a_search_that_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: object, **options: object) -> object:
        return replace(optimum(SMALL, CORE), energy=1.0)

    monkeypatch.setattr(search, "optimum", wrong)
    with pytest.raises(MemplanError, match="divisors search says 1 pJ") as raised:
        optimize(SMALL, CORE, Codesign(), Options("divisors"))
    assert raised.value.exit_code == 70


def test_buffers_that_are_not_there() -> None:
    objective = Codesign()
    best = optimize(SMALL, CORE, objective)
    assert best.memories
    first = best.memories[0]
    assert isinstance(first, BufferMemory)
    larger = first.nbytes + 2
    pj = objective.curves[first.tensor](larger)
    for wrong, message in (
        (replace(first, nbytes=larger, pj=pj), "is no buffer of the nest"),
        (replace(first, pj=2 * first.pj), "is not priced by its size"),
    ):
        with pytest.raises(MemplanError, match=message):
            objective.evaluate(best.nest, [wrong, *best.memories[1:]])
    with pytest.raises(MemplanError, match="exceed 10"):
        Codesign(budget=10).evaluate(best.nest, best.memories)
    with pytest.raises(MemplanError, match="is in no level"):
        Fixed(TWO_LEVELS).evaluate(best.nest, best.memories)


def test_levels_that_hold_too_much() -> None:
    shared = replace(DIANNAO, levels=(Level("l", 100, None, {}),))
    best = optimize(SMALL, CORE, Fixed(replace(shared, levels=_level(1 << 20))))
    assert best.memories
    tight = max(one.nbytes for one in best.memories)
    with pytest.raises(MemplanError, match="more than it has room for"):
        Fixed(replace(shared, levels=_level(tight))).evaluate(best.nest, best.memories)


def _level(nbytes: int) -> tuple[Level, ...]:
    return (Level("l", nbytes, None, dict.fromkeys(Tensor, 1.0)),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "guess"}, "no method 'guess': take whole, divisors"),
        ({"time_limit": -1.0}, "time limit of -1.0"),
        ({"time_limit": math.inf}, "makes no sense"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        found = Options(**options)  # type: ignore[arg-type]
        optimize(SMALL, CORE, Codesign(), found)


ONE = Options(threads=1)  # how many nests several threads try depends on their pace
TASKS = [
    Task(SMALL, CORE, Codesign(), ONE),
    Task(SMALL, CORE, Fixed(DIANNAO), ONE),
    Task(
        PAPER_LAYERS["fc1"],
        CORE,
        Codesign(budget=4096),
        replace(ONE, method="divisors"),
    ),
]


def test_many_at_once_are_the_same_as_one_by_one() -> None:
    alone, together = [], []
    first = sweep(TASKS, processes=1, progress=lambda i, r: alone.append(i))
    second = sweep(TASKS, processes=2, progress=lambda i, r: together.append(i))
    assert alone == sorted(together) == [0, 1, 2]
    for one, other in zip(first, second, strict=True):
        assert replace(one, seconds=0) == replace(other, seconds=0)
    assert sweep([]) == []


def test_a_task_that_fails_ends_the_sweep() -> None:
    tasks = [TASKS[0], replace(TASKS[0], datapath={"Z": 2})]
    for processes in (1, 2):
        with pytest.raises(UsageError, match="unrolling 'Z' by 2"):
            sweep(tasks, processes=processes)


def test_processes_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="0 processes"):
        sweep(TASKS, processes=0)
    with pytest.raises(UsageError, match="give processes or a cluster"):
        sweep(TASKS, processes=2, address="auto")


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EnvironmentUnfitError, match=r"memplan\[ray\]"):
        sweep(TASKS, address="auto")


@pytest.mark.soak
def test_more_bytes_take_less_energy() -> None:
    layer, budgets = PAPER_LAYERS["conv4"], [40 << 10, 1 << 20, 8 << 20]
    curve = list(area_curve(layer, budgets, CORE))
    assert [point.budget for point in curve] == budgets
    assert all(point.sram_bytes <= point.budget for point in curve)
    energies = [point.energy_pj for point in curve]
    assert energies == sorted(energies, reverse=True)
    assert energies[1:] == pytest.approx([1.17010e9, 1.16327e9], rel=1e-5)
    assert all(point.area_mm2 == area_mm2(point.sram_bytes) for point in curve)
