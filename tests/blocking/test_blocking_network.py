"""Several layers on one hierarchy, given or designed for them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.blocking.cost.objective import Codesign, Fixed
from memplan.blocking.design import network_design
from memplan.blocking.design.design_moves import NestPool, descended, private_hierarchy
from memplan.blocking.design.network import (
    NETWORKS,
    LayerEnergy,
    NetworkEnergy,
    distinct,
)
from memplan.blocking.design.network_design import NetworkDesign, design_network
from memplan.blocking.design.network_mappings import design_mapped_network
from memplan.blocking.machine.energy import paper_curves
from memplan.blocking.machine.hierarchy import Hierarchy, load_hierarchy
from memplan.blocking.nest.array import Array
from memplan.blocking.nest.layer import Layer, Tensor, fully_connected, pooling
from memplan.blocking.search.mappings import usual
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options, Space
from memplan.blocking.search.spatial import Task
from memplan.errors import NoPlanError, UsageError
from memplan.sweep import sweep

CORE = {"C": 16, "K": 16}
LAYERS = (
    Layer("first", 28, 28, 16, 32, 3, 3),
    Layer("second", 14, 14, 32, 64, 3, 3),
    Layer("again", 14, 14, 32, 64, 3, 3),
    fully_connected("last", 256, 64),
)
DIANNAO = load_hierarchy("diannao")
DIVISORS = Options("divisors")


def test_layers_of_one_shape_are_one() -> None:
    assert [(one.name, n) for one, n in distinct(LAYERS)] == [
        ("first", 1),
        ("second", 2),
        ("last", 1),
    ]
    assert [n for _, n in distinct(LAYERS, [1, 2, 3, 4])] == [1, 5, 4]
    assert sum(n for _, n in distinct(NETWORKS["vgg-d"])) == 16


@pytest.mark.parametrize(
    ("layers", "counts"), [([], None), (LAYERS, [1]), (LAYERS[:1], [0])]
)
def test_counts_that_do_not_fit(layers: list[Layer], counts: list[int] | None) -> None:
    with pytest.raises(UsageError, match="how often"):
        distinct(layers, counts)


def on(hierarchy: Hierarchy) -> NetworkEnergy:
    """All layers, optimized for the hierarchy."""
    counted = distinct(LAYERS)
    tasks = [Task(layer, CORE, Fixed(hierarchy), DIVISORS) for layer, _ in counted]
    found = sweep(tasks, processes=1)
    return NetworkEnergy(
        hierarchy,
        tuple(
            LayerEnergy(layer, count, result)
            for (layer, count), result in zip(counted, found, strict=True)
        ),
    )


@pytest.mark.parametrize("levels", [1, 2])
def test_a_designed_network(levels: int) -> None:
    budget = 48 << 10
    seen: list[float] = []
    design = design_network(
        LAYERS,
        CORE,
        budget,
        levels=levels,
        options=DIVISORS,
        progress=lambda e, s: seen.append(e),
    )
    assert design.complete
    assert all(one.result.proved for one in design.network.layers)
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == design.network.energy <= design.common.energy
    assert design.considered >= 10
    assert sum(map(sum, design.sizes.values())) <= budget
    assert all(len(own) <= levels for own in design.sizes.values())
    assert design.lower_bound is not None and design.gap is not None
    assert 0 <= design.gap == design.network.energy / design.lower_bound - 1
    # The same again, from the sizes alone.
    hierarchy = private_hierarchy(design.sizes, Codesign())
    again = on(hierarchy)
    assert again.energy == pytest.approx(design.network.energy, rel=1e-9)
    # DianNao has less memory, in parts that are not made for these layers.
    assert design.network.energy < on(DIANNAO).energy


def test_a_last_pass_over_all_nests() -> None:
    layers, budget = [Layer("even", 8, 8, 16, 16, 3, 3)], 4 << 10
    layers.append(Layer("odd", 9, 7, 6, 20, 3, 3))
    first = design_network(layers, CORE, budget, levels=1, options=DIVISORS)
    found = design_network(layers, CORE, budget, levels=1)
    assert found.complete
    assert found.sizes == first.sizes
    assert found.network.energy <= first.network.energy * (1 + 1e-12)
    assert {one.result.space for one in found.network.layers} == {Space.WHOLE}
    assert found.gap is not None
    assert found.gap >= -1e-9
    for one in found.network.layers:
        machine = Fixed(found.network.hierarchy)
        energy = machine.evaluate(one.result.nest, one.result.memories)
        assert energy == pytest.approx(one.result.energy, rel=1e-12)


@pytest.mark.soak
@settings(max_examples=4, deadline=None)
@given(
    st.lists(
        st.lists(st.integers(4, 3000), min_size=1, max_size=2, unique=True),
        min_size=3,
        max_size=3,
    ),
    st.booleans(),
)
def test_no_memories_take_less_than_the_bound(
    sizes: list[list[int]], fills: bool
) -> None:
    layers = [LAYERS[1], Layer("odd", 5, 7, 6, 10, 3, 2), fully_connected("fc", 30, 8)]
    unroll, counts = {"C": 2, "K": 2}, [1, 2, 3]
    objective = Codesign(count_fills=fills)
    any_ = {t: tuple(sorted(own)) for t, own in zip(Tensor, sizes, strict=True)}
    budget = max(sum(map(sum, any_.values())), 960)
    design = design_network(
        layers, unroll, budget, counts=counts, objective=objective, options=DIVISORS
    )
    machine = Fixed(private_hierarchy(any_, objective))
    energy = sum(
        count * optimize(layer, unroll, machine, Options("divisors")).energy
        for layer, count in zip(layers, counts, strict=True)
    )
    assert design.lower_bound is not None
    assert design.lower_bound <= min(energy, design.network.energy) * (1 + 1e-12)


def test_no_bound_where_memories_may_be_larger_than_a_chip_holds() -> None:
    small = [LAYERS[1]]
    assert (
        design_network(small, CORE, 16 << 20, levels=1, options=DIVISORS).gap
        is not None
    )
    assert design_network(small, CORE, 17 << 20, levels=1, options=DIVISORS).gap is None


def test_the_end_of_the_time_returns_the_best_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock that counts how often it is looked at."""
    looks = itertools.count()
    monkeypatch.setattr(network_design.time, "monotonic", lambda: float(next(looks)))

    def design(options: Options) -> NetworkDesign:
        return design_network(LAYERS[:2], CORE, 48 << 10, levels=1, options=options)

    whole = design(DIVISORS)
    assert whole.complete
    found = design(Options("divisors", time_limit=0.8 * whole.seconds))
    assert not found.complete
    assert found.network.energy <= found.common.energy


def test_ctrl_c_before_there_is_anything() -> None:
    def press(energy: float, seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        design_network(LAYERS, CORE, 48 << 10, progress=press)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 100}, "need at least 960"),
        ({"budget": 1 << 20, "levels": 4}, "take 1 to 3"),
        ({"budget": 960, "levels": 0}, "0 levels of memory"),
        ({"budget": 1 << 20, "counts": [1]}, "how often"),
    ],
)
def test_budgets_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        design_network(LAYERS, CORE, **options)


def test_curves_have_to_agree_on_main_memory() -> None:
    curves = paper_curves()
    curves[Tensor.INPUT] = replace(curves[Tensor.INPUT], dram_pj=100.0)
    design = dict.fromkeys(Tensor, (64,))
    with pytest.raises(UsageError, match="several energies"):
        private_hierarchy(design, Codesign(curves))


def test_a_time_that_is_too_short_for_anything() -> None:
    with pytest.raises(NoPlanError, match="too short to compare"):
        design_network(LAYERS, CORE, 1 << 20, options=Options(time_limit=0.0))


@pytest.mark.soak
def test_mappings_are_chosen_on_memories_designed_for_them() -> None:
    layers = [Layer("one", 8, 8, 3, 8, 3, 3), fully_connected("two", 24, 10, 4)]
    array, budget = Array((4, 4)), 2048
    known = design_network(
        layers, lambda layer: usual(layer, array), budget, levels=1, options=DIVISORS
    ).network
    found = design_mapped_network(layers, array, budget, levels=1)
    assert found.complete
    assert found.network.nbytes <= budget
    assert found.network.energy <= known.energy
    machine = Fixed(found.network.hierarchy)
    for one in found.network.layers:
        assert one.result.mapping is not None
        assert one.result.mapping.array == array
        energy = machine.evaluate(one.result.nest, one.result.memories)
        assert energy == pytest.approx(one.result.energy, rel=1e-9)
    with pytest.raises(NoPlanError, match="too short to compare any designs"):
        design_mapped_network(layers, array, budget, options=Options(time_limit=0))


@pytest.mark.parametrize("fills", [False, True])
def test_descent_ends_below_its_start(fills: bool) -> None:
    machine, pools = Codesign(count_fills=fills), []
    for layer in (LAYERS[0], pooling("pool", 14, 14, 32, (2, 2), 2)):
        pools.append(NestPool(machine))
        for kib in (1, 8, 64):
            sizes = dict.fromkeys(Tensor, (64, kib << 10))
            memories = Fixed(private_hierarchy(sizes, machine))
            pools[-1].add(optimize(layer, {}, memories, DIVISORS).nest)
    start = dict.fromkeys(Tensor, (64, 1024))
    found = descended(pools, [1, 1], start, 1 << 14, 2)
    assert sum(map(sum, found.values())) <= 1 << 14
    assert all(len(own) <= 2 for own in found.values())
    before, after = (sum(p.best(d)[0] for p in pools) for d in (start, found))
    assert after < before
    assert descended(pools, [1, 1], found, 1 << 14, 2) == found
