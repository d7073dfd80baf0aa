"""The cache simulator against plain Python, and against what the model expects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from cache_reference import PlainCaches, Reference, blocked, gemm, room
from hypothesis import given
from hypothesis import strategies as st
from nest_strategies import nests

from memplan.blocking.machine.hierarchy import Cache, Hierarchy, Level, load_hierarchy
from memplan.blocking.nest.layer import DIMS, PAPER_LAYERS, Layer, Tensor
from memplan.blocking.nest.nest import Nest, parse_nest
from memplan.blocking.run.cache import (
    FLOAT_BYTES,
    Layout,
    Simulation,
    aliasing,
    padded,
    register_tiled,
    sample,
    simulate,
    simulator_of,
)
from memplan.errors import UsageError
from memplan.native import _nest
from tests.strategies import examples

XEON = load_hierarchy("xeon-e5645")
TILE = {"X": 4, "K": 8}


def machine(*levels: tuple[int, int, int]) -> Hierarchy:
    """A hierarchy of caches of so many bytes, ways, and bytes of a line."""
    found = tuple(
        Level(f"L{depth}", nbytes, None, {}, Cache(nbytes, ways, line))
        for depth, (nbytes, ways, line) in enumerate(levels, 1)
    )
    return replace(XEON, name="machine", levels=found)


@st.composite
def geometries(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """One to three levels of few sets, whose number need not be a power of two."""
    found, line = [], 4
    for _ in range(draw(st.integers(1, 3))):
        line = max(line, draw(st.sampled_from([4, 16, 64])))
        ways = draw(st.integers(1, 4))
        found.append((line * ways * draw(st.integers(1, 7)), ways, line))
    return found


def plain(
    levels: list[tuple[int, int, int]], references: Iterable[Reference]
) -> list[tuple[int, ...]]:
    caches = PlainCaches(levels)
    for address, write in references:
        caches.access(0, address, write)
    return [tuple(counts) for counts in caches.counts]


@pytest.mark.parametrize(
    "levels",
    [
        [],
        [(0, 1, 64)],
        [(1024, 0, 64)],
        [(1000, 2, 64)],
        [(96, 1, 48)],
        [(128, 1, 2)],
        [(1024, 2, 64), (4096, 4, 32)],
    ],
)
def test_levels_that_cannot_be_built(levels: list[tuple[int, int, int]]) -> None:
    with pytest.raises(ValueError, match=r"need|line|whole"):
        _nest.CacheSim(levels)


def tensors(layer: Layer, layout: Layout) -> _nest.ConvTensors:
    return _nest.ConvTensors(
        [layer.size(dim) for dim in DIMS],
        list(layer.stride),
        FLOAT_BYTES,
        [layout.input_row, layout.input_plane],
        [layout.output_row, layout.output_plane],
        [4, 8],
    )


@examples(
    25,
    nests(window_innermost=False, divisors=False, macs=400),
    geometries(),
    st.integers(0, 3),
    st.integers(0, 40),
    soak=50,
)
def test_references_of_blocked_nests(
    nest: Nest, levels: list[tuple[int, int, int]], row: int, plane: int
) -> None:
    layer = replace(nest.layer, kernel=True)
    tiled = register_tiled(layer, replace(nest, layer=layer))
    layout = room(layer, row, plane)
    simulator = _nest.CacheSim(levels)
    loops = [(DIMS.index(loop.dim), loop.outer) for loop in tiled.loops]
    simulator.blocked(tensors(layer, layout), loops)
    assert simulator.counts() == plain(levels, blocked(layer, layout, tiled))


@examples(
    25,
    nests(window_innermost=False, divisors=False, macs=400),
    geometries(),
    st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 2)),
    st.integers(0, 3),
    soak=50,
)
def test_references_of_matrix_products(
    nest: Nest,
    levels: list[tuple[int, int, int]],
    blocks: tuple[int, int, int],
    row: int,
) -> None:
    layer = nest.layer
    layout = room(layer, row, 0)
    depth, rows, columns = blocks[0], 4 * blocks[1], 8 * blocks[2]
    simulator = _nest.CacheSim(levels)
    simulator.gemm(tensors(layer, layout), (depth, rows, columns))
    expected = plain(levels, gemm(layer, layout, (depth, rows, columns)))
    assert simulator.counts() == expected


def test_nests_and_blocks_that_do_not_fit() -> None:
    layer = Layer("small", 8, 4, 3, 16)
    simulator = _nest.CacheSim([(1024, 2, 64)])
    of = tensors(layer, Layout.dense(layer))
    for loops in (
        [(0, 8), (2, 3), (3, 16)],  # Y is missing
        [(0, 8), (1, 4), (2, 3), (2, 3), (3, 16)],  # C twice the same
        [(0, 8), (1, 4), (2, 3), (3, 12), (3, 16)],  # cuts the register tile
        [(0, 8), (1, 4), (2, 3), (3, 16), (8, 2)],
    ):
        with pytest.raises(ValueError, match=r"loop|tile"):
            simulator.blocked(of, loops)
    with pytest.raises(ValueError, match="register tiles"):
        simulator.gemm(of, (3, 6, 8))
    with pytest.raises(ValueError, match="overlap"):
        tensors(layer, replace(Layout.dense(layer), output_plane=31))


# A layer of the paper's kind, and a nest found for half of each cache's capacity.
LAYER = Layer("28x28", 28, 28, 64, 128, 3, 3)
STRING = "Fw3 Fh3 X28 Y7 K16 C64 Y14 K64 K128 Y28"


@pytest.fixture(scope="module")
def simulated() -> Simulation:
    return simulate(LAYER, parse_nest(STRING, LAYER, TILE), XEON)


def test_the_model_expects_what_is_simulated(simulated: Simulation) -> None:
    assert simulated.share == 1
    assert simulated.aliasing == ()
    for level, expected in zip(simulated.blocked, simulated.expected, strict=True):
        assert abs(level.misses / expected - 1) < 0.25, level.name


def test_a_sample_is_the_first_iterations_of_the_outermost_loops() -> None:
    layer = PAPER_LAYERS["conv5"]
    nest = register_tiled(
        layer, parse_nest("Fw3 Fh3 X28 C8 Y7 K32 Y28 C256 K512", layer, TILE)
    )
    part, inner = sample(layer, nest, layer.macs // 4)
    assert (part.K, part.C, part.Y) == (128, 256, 28)
    assert str(inner) == "Fw3 Fh3 X28 C8 Y7 K32 Y28 C256 K128"
    part, inner = sample(layer, nest, layer.macs // 17)
    assert (part.K, part.C, part.Y) == (32, 240, 28)
    assert str(inner) == "Fw3 Fh3 X28 C8 Y7 K32 Y28 C240"
    assert sample(layer, nest, layer.macs) == (layer, nest)


def test_a_sample_keeps_the_whole_layers_strides() -> None:
    layer = PAPER_LAYERS["conv1"]
    nest = parse_nest("Fw11 Fh11 X64 Y8 K64 C256 X256 Y256 K384", layer, TILE)
    found = simulate(layer, nest, XEON, max_macs=10**6)
    assert found.layer.macs <= 10**6
    assert found.share == found.layer.macs / layer.macs
    assert found.layout == Layout.dense(layer)
    assert Tensor.OUTPUT in {entry.tensor for entry in found.aliasing}


def test_edges_and_datapaths_are_rounded_up_to_register_tiles() -> None:
    layer = Layer("odd", 10, 5, 20, 13, 3, 3)
    nest = parse_nest("C16 X3 K7 Fw3 Fh3 X10 Y5 K13 C20", layer)
    tiled = register_tiled(layer, nest)
    assert str(tiled) == "C16 Fw3 Fh3 X10 Y5 K13 C20"
    unrolled = parse_nest("X10 Y5 Fw3 Fh3 C32", layer, {"C": 16, "K": 16})
    assert str(register_tiled(layer, unrolled)) == "C16 K13 X10 Y5 Fw3 Fh3 C20"


def test_what_cannot_be_simulated() -> None:
    pool = PAPER_LAYERS["pool"]
    nest = parse_nest("Fw2 Fh2 X56 Y56 G128", pool)
    with pytest.raises(UsageError, match="Pool has no weights"):
        simulate(pool, nest, XEON)
    other = parse_nest(STRING, LAYER)
    with pytest.raises(UsageError, match="of 28x28, not of Conv5"):
        simulate(PAPER_LAYERS["conv5"], other, XEON)
    with pytest.raises(UsageError, match="SRAM"):
        simulate(LAYER, other, load_hierarchy("diannao"))
    with pytest.raises(UsageError, match="machine: a line must be a power of two"):
        simulator_of(machine((96, 1, 48)))
    with pytest.raises(UsageError, match="machine: lines must not become smaller"):
        simulator_of(machine((1024, 2, 64), (4096, 4, 32)))
    with pytest.raises(UsageError, match="too large"):
        simulator_of(machine((1 << 40, 1, 64)))


# Planes of 32 x 32 floats are as long as a way of the first level.
ALIASED = Layer("32x32", 32, 32, 12, 40, 4, 4)
ALIASED_STRING = "Fw4 Fh4 C6 Y8 X32 K40 Y32 C12"


def test_planes_that_share_a_set_are_named_and_cured_by_padding() -> None:
    nest = parse_nest(ALIASED_STRING, ALIASED)
    crowded = simulate(ALIASED, nest, XEON)
    apart = simulate(ALIASED, nest, XEON, pad=True)
    assert [(a.tensor, a.stride, a.level, a.sets) for a in crowded.aliasing] == [
        (Tensor.OUTPUT, 4096, "L1", 1)
    ]
    assert str(crowded.aliasing[0]) == (
        "output: planes lie 4096 bytes apart, and begin all in one set of L1; pad the "
        "planes"
    )
    assert apart.aliasing == ()
    assert crowded.expected == apart.expected
    assert crowded.blocked[0].misses > 2 * crowded.expected[0]
    assert abs(apart.blocked[0].misses / apart.expected[0] - 1) < 0.25
    assert crowded.blocked[0].accesses == apart.blocked[0].accesses


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 100))
def test_padding_cures_at_the_price_of_less_than_a_way(
    wide: int, high: int, planes: int
) -> None:
    layer = Layer("planes", wide, high, planes, planes)
    dense = Layout.dense(layer)
    apart = padded(layer, dense, XEON)
    assert aliasing(layer, apart, XEON) == ()
    assert 0 <= apart.output_plane - dense.output_plane <= 4096 // FLOAT_BYTES
    crowded = {entry.tensor for entry in aliasing(layer, dense, XEON)}
    assert (apart.output_plane != dense.output_plane) == (Tensor.OUTPUT in crowded)
    assert (apart.input_plane != dense.input_plane) == (Tensor.INPUT in crowded)
