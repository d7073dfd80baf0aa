"""Nests for emitted code: what is inside, what it costs, and register tiles."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_strategies import layers

from memplan.blocking.cost.evaluation import best_evaluation
from memplan.blocking.cost.objective import Fixed
from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.machine.registers import (
    TARGETS,
    RegisterTile,
    best_tile,
    cycles,
    fits,
    rows_for,
    target_of,
)
from memplan.blocking.nest.layer import Layer, pooling
from memplan.blocking.nest.precision import FORMATS
from memplan.blocking.run.emit import register_tile_of
from memplan.blocking.search.optimize import inner_loops, optimize
from memplan.blocking.search.result import Options, Space
from memplan.errors import UsageError

XEON = Fixed(load_hierarchy("xeon-e5645"))
FLOATS = Fixed(XEON.hierarchy.at(FORMATS["fp32"]))
AVX512, AVX2, PORTABLE = (TARGETS[name] for name in ("avx512", "avx2", "portable"))


def search(layer: Layer, target: str = "avx2", **others: float) -> Options:
    limit = others.get("time_limit", 0.4)
    return Options(time_limit=limit, threads=1, target=target)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (Layer("56", 56, 56, 64, 64, 3, 3), RegisterTile(16, 2, 14)),
        (Layer("14", 14, 14, 256, 256, 3, 3), RegisterTile(16, 2, 14)),
        (Layer("7", 7, 7, 512, 512, 3, 3), RegisterTile(16, 2, 7, 2)),
        (Layer("few channels", 56, 56, 64, 16, 3, 3), RegisterTile(16, 1, 28)),
    ],
)
def test_tiles_leave_few_registers_empty(layer: Layer, expected: RegisterTile) -> None:
    assert best_tile(layer, AVX512) == expected


@settings(deadline=None)
@given(layers(10_000), st.sampled_from(sorted(TARGETS)))
def test_the_best_tile_fits(layer: Layer, name: str) -> None:
    target = TARGETS[name]
    tile = best_tile(layer, target)
    assert fits(tile, target)
    assert (tile.x <= layer.X, tile.y <= layer.Y) == (True, True)
    # No less than one instruction for two vectors of sums, at two a cycle.
    sums = layer.macs / target.lanes
    assert cycles(layer, tile, target) >= sums / 2
    assert fits(
        RegisterTile(tile.lanes, tile.vectors, rows_for(layer, target, 1)), target
    ) or (tile.vectors > 1)


def test_registers_without_multiply_add() -> None:
    assert fits(RegisterTile(8, 2, 6), AVX2)
    assert not fits(RegisterTile(8, 2, 7), AVX2)
    assert not fits(RegisterTile(4, 2, 6), AVX2)  # other vectors
    assert fits(RegisterTile(4, 2, 6), PORTABLE)
    # 13 sums, a vector of weights, an input: the product has no register.
    assert fits(RegisterTile(8, 1, 14), AVX2)
    assert not fits(RegisterTile(4, 1, 14), PORTABLE)


def test_an_unknown_target() -> None:
    with pytest.raises(UsageError, match="sse9: not one of native, avx512, avx2, port"):
        target_of("sse9")


CODED = {
    "window": Layer("window", 28, 28, 32, 48, 3, 3),
    "wide": Layer("wide", 200, 9, 3, 24, 3, 3),
    "groups": Layer("groups", 14, 14, 16, 16, 3, 3, B=2, G=4),
}


@pytest.mark.parametrize("name", CODED)
def test_nests_for_code_are_around_a_register_tile(name: str) -> None:
    layer = CODED[name]
    found = optimize(layer, {"C": 16}, XEON, search(layer))
    tile = best_tile(layer, AVX2)
    assert register_tile_of(layer, found.nest, AVX2) == tile
    kept = []
    for loop in found.nest.loops:
        if loop.dim not in ("Fw", "Fh", "C"):
            break
        kept.append(loop)
    covered = {loop.dim: loop.outer for loop in kept}
    assert [covered.get(d, 1) for d in ("Fw", "Fh")] == [layer.Fw, layer.Fh]
    steps = covered.get("C", 1) * layer.Fw * layer.Fh
    assert steps >= min(64, layer.C * layer.Fw * layer.Fh)
    # A row, or at least 64 columns of it, before anything else.
    following = found.nest.loops[len(kept)]
    if tile.x < layer.X:
        assert following.dim == "X"
        assert following.outer == layer.X or following.outer * layer.stride[0] >= 64


@pytest.mark.parametrize("machine", [XEON, FLOATS], ids=["int16", "fp32"])
@pytest.mark.parametrize("name", ["window", "groups"])
def test_its_price_is_to_the_best_nest_on_the_same_tile(
    name: str, machine: Fixed
) -> None:
    layer = CODED[name]
    found = optimize(layer, {}, machine, search(layer))
    assert found.free_energy is not None
    assert found.free_energy <= found.energy
    assert found.space is Space.WHOLE
    assert found.lower_bound is not None
    assert found.lower_bound <= found.free_energy * (1 + 1e-9)
    # A nest pasted into evaluate takes the same energy.
    again = best_evaluation(layer, found.nest, machine)
    assert again.total == pytest.approx(found.energy, rel=1e-12)
    assert machine.evaluate(found.nest, found.memories) == pytest.approx(found.energy)


def test_inner_loops_have_enough_steps_and_whole_lines() -> None:
    layer = Layer("layer", 112, 10, 64, 64, 3, 3, stride=(2, 2))
    tile = RegisterTile(16, 2, 14)
    found = inner_loops(layer, tile)
    assert found == [
        {"Fw": 3, "Fh": 3, "C": 8, "X": 42},
        {"Fw": 3, "Fh": 3, "C": 32, "X": 42},
    ]
    # A row that is not much longer is not cut.
    assert inner_loops(Layer("layer", 100, 10, 7, 64), tile) == [
        {"Fw": 1, "Fh": 1, "C": 7, "X": 100}
    ]


def test_layers_without_weights_have_no_code() -> None:
    layer = pooling("pool", 8, 8, 4, (2, 2), 2)
    with pytest.raises(UsageError, match="pool has no weights"):
        optimize(layer, {}, XEON, search(layer))
