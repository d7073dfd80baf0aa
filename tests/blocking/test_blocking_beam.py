"""The paper's two searches: what they find, in which order, and when they stop."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_strategies import layers

from memplan.blocking.cost.objective import Codesign, Fixed, Objective
from memplan.blocking.machine.hierarchy_file import load_hierarchy
from memplan.blocking.nest.layer import DIMS, PAPER_LAYERS, Layer, fully_connected
from memplan.blocking.nest.orders import all_orders, divisors, level_orders
from memplan.blocking.search.beam import beam_search
from memplan.blocking.search.enumerate_nests import enumerate_nests
from memplan.blocking.search.exact import optimum
from memplan.blocking.search.incumbent import SearchProgress
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options
from memplan.errors import UsageError

CORE = {"C": 16, "K": 16}
SMALL = Layer("small", 14, 14, 32, 64, 3, 3)
OBJECTIVES: list[Objective] = [
    Codesign(),
    Codesign(budget=200),
    Codesign(count_fills=True),
    Fixed(load_hierarchy("diannao")),
    Fixed(load_hierarchy("xeon-e5645")),
]


def test_numbers_of_orders() -> None:
    """As the research behind this counted them, and the paper about."""
    assert len(level_orders("XYCK")) == 18
    assert sum(1 for _ in all_orders(dict.fromkeys("XYCK", 2) | {"F": 1})) == 4566
    assert list(all_orders({"X": 1, "Y": 1})) == [("X", "Y")]
    assert list(all_orders({"X": 2})) == []  # two of one are one
    assert list(all_orders({})) == [()]


@given(st.integers(1, 1 << 20))
def test_divisors(number: int) -> None:
    found = divisors(number).tolist()
    assert found == sorted(found)
    assert all(number % d == 0 for d in found)
    assert [number // d for d in reversed(found)] == found


@settings(max_examples=20, deadline=None)
@given(layers(macs=500), st.sampled_from(OBJECTIVES), st.integers(0, 9))
def test_the_beam_is_near_the_optimum(
    layer: Layer, objective: Objective, seed: int
) -> None:
    found = beam_search(layer, {}, objective, Options("beam", levels=2, seed=seed))
    assert found.complete
    assert found.energy == pytest.approx(objective.evaluate(found.nest), rel=1e-9)
    best = optimum(layer, {}, objective)
    assert best.proved
    assert best.energy * (1 - 1e-9) <= found.energy <= 1.08 * best.energy


# The beam keeps no stripes of the input; Conv3's optimum does.
@pytest.mark.parametrize(("name", "gap"), [("conv3", 0.022), ("fc2", 1e-9)])
def test_layers_of_the_paper(name: str, gap: float) -> None:
    layer = PAPER_LAYERS[name]
    found = beam_search(layer, CORE, Codesign())
    assert found.energy <= optimum(layer, CORE).energy * (1 + gap)


def test_enumeration_goes_through_each_order_once() -> None:
    layer = Layer("part", 4, 4, 32, 32, 3, 3)
    found = enumerate_nests(layer, CORE, Codesign())
    assert found.complete
    # Of the 4566 orders, 246 are their own mirror images.
    assert found.tried == 3 * 3 * 2 * 2 * (4566 + 246) // 2
    assert found.energy == pytest.approx(optimum(layer, CORE).energy, rel=0.08)


@settings(max_examples=15, deadline=None)
@given(layers(macs=40), st.sampled_from(OBJECTIVES))
def test_enumeration_goes_through_two_extents(
    layer: Layer, objective: Objective
) -> None:
    """So no string of one extent a dimension is better."""
    two = enumerate_nests(layer, {}, objective, Options("enumerate", time_limit=0.3))
    one = enumerate_nests(layer, {}, objective, Options("enumerate", levels=1))
    assert one.complete
    if two.complete:
        assert two.energy <= one.energy
    assert two.energy == pytest.approx(objective.evaluate(two.nest), rel=1e-9)


@pytest.mark.parametrize(
    "layer",
    [
        PAPER_LAYERS["pool"],
        PAPER_LAYERS["lrn"],
        fully_connected("fc", 48, 32, batch=6),
        Layer("batch", 2, 3, 4, 4, 3, 3, B=2),
        Layer("groups", 4, 4, 8, 8, 3, 3, G=4, stride=(2, 2)),
        Layer("one", 1, 1, 1, 1),
        Layer("tall", 1, 24, 4, 4, 1, 3),
    ],
    ids=lambda layer: layer.name,
)
def test_every_kind_of_layer(layer: Layer) -> None:
    # A batch of images has three times as many orders.
    for objective in OBJECTIVES[:1] if layer.name == "batch" else OBJECTIVES:
        found = beam_search(layer, {}, objective, Options("beam", levels=2))
        assert found.energy == pytest.approx(objective.evaluate(found.nest), rel=1e-9)
        assert found.nest.layer == layer
        dims = [loop.dim for loop in found.nest.loops]
        if layer.G > 1:
            assert dims[-1] == "G"  # where nothing is lost by it
        assert found.energy <= 1.08 * optimum(layer, {}, objective).energy


def test_groups_cost_as_often_as_there_are_groups() -> None:
    alone = Layer("one", 4, 4, 8, 8, 3, 3)
    four = Layer("four", 4, 4, 8, 8, 3, 3, G=4)
    first = beam_search(alone, {}, Codesign(), Options("beam", levels=2))
    second = beam_search(four, {}, Codesign(), Options("beam", levels=2))
    assert second.energy == pytest.approx(4 * first.energy, rel=1e-12)
    assert str(second.nest) == f"{first.nest} G4"


def test_the_same_seed_gives_the_same_nest() -> None:
    first = beam_search(SMALL, CORE, Codesign(), Options("beam", levels=2, seed=5))
    second = beam_search(SMALL, CORE, Codesign(), Options("beam", levels=2, seed=5))
    assert first.nest == second.nest
    assert first.tried == second.tried
    third = beam_search(SMALL, CORE, Codesign(), Options("beam", levels=2, seed=6))
    assert third.tried != first.tried


def test_more_levels_are_never_worse() -> None:
    energies = [
        beam_search(
            SMALL, CORE, Codesign(budget=1 << 14), Options("beam", levels=n)
        ).energy
        for n in (1, 2)
    ]
    assert energies == sorted(energies, reverse=True)


@pytest.mark.parametrize("method", ["beam", "enumerate"])
def test_the_end_of_the_time_returns_the_best_so_far(method: str) -> None:
    found = optimize(SMALL, CORE, Codesign(), Options(method, time_limit=0))
    assert not found.complete
    energy = Codesign().evaluate(found.nest, found.memories)
    assert found.energy == pytest.approx(energy, rel=1e-9)
    assert {loop.dim for loop in found.nest.loops} <= set(DIMS)


@pytest.mark.parametrize("search", [beam_search, enumerate_nests])
def test_ctrl_c_returns_the_best_so_far(search) -> None:  # type: ignore[no-untyped-def]
    seen: list[SearchProgress] = []

    def press(progress: SearchProgress) -> None:
        seen.append(progress)
        raise KeyboardInterrupt

    found = search(SMALL, CORE, Codesign(), progress=press)
    assert len(seen) == 1
    assert not found.complete
    assert found.tried == seen[0].evaluated
    assert found.energy == seen[0].energy < math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: beam_search(SMALL, {}, Codesign(), Options("beam", levels=0)),
            "0 levels to search",
        ),
        (
            lambda: beam_search(SMALL, {}, Codesign(), Options("beam", levels=9)),
            "take 1 to 8",
        ),
        (
            lambda: beam_search(SMALL, {}, Codesign(), Options("beam", time_limit=-1)),
            "makes no sense",
        ),
        (
            lambda: enumerate_nests(
                SMALL, {}, Codesign(), Options("enumerate", levels=5)
            ),
            "take 1 to 4",
        ),
        (
            lambda: enumerate_nests(
                SMALL, {}, Codesign(), Options("enumerate", time_limit=math.nan)
            ),
            "makes no sense",
        ),
    ],
)
def test_limits_that_make_no_sense(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=message):
        call()
