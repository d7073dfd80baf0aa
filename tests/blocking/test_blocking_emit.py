"""Nests for emitted code, and the code: compiled, run, equal to a direct one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from code_runs import (
    coded_nests,
    computed,
    needs_compiler,
    reference,
    run,
    tensors,
    windows,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nest_strategies import layers, nests

from memplan.blocking.cost.evaluation import best_evaluation
from memplan.blocking.cost.objective import Fixed
from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.machine.registers import (
    TARGETS,
    RegisterTile,
    Target,
    best_tile,
    cycles,
    fits,
    rows_for,
    target_of,
)
from memplan.blocking.nest.layer import PAPER_LAYERS, Layer, pooling
from memplan.blocking.nest.nest import Nest, parse_nest
from memplan.blocking.nest.precision import FORMATS
from memplan.blocking.run.cache import Layout, padded
from memplan.blocking.run.emit import emit, register_tile_of
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options, Space
from memplan.errors import UsageError
from tests.strategies import examples

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


def test_an_unknown_target() -> None:
    with pytest.raises(UsageError, match="sse9: not one of native, avx512, avx2, port"):
        target_of("sse9")


CODED = {
    "window": Layer("window", 28, 28, 32, 48, 3, 3),
    "wide": Layer("wide", 200, 9, 3, 24, 3, 3),
    "groups": Layer("groups", 14, 14, 16, 16, 3, 3, B=2, G=4),
}


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


def test_layers_without_weights_have_no_code() -> None:
    layer = pooling("pool", 8, 8, 4, (2, 2), 2)
    with pytest.raises(UsageError, match="pool has no weights"):
        optimize(layer, {}, XEON, search(layer))


CASES = {
    "whole": (
        Layer("whole", 8, 6, 4, 16, 3, 3),
        "Fw3 Fh3 C2 X8 Y3 K16 C4 Y6",
    ),
    "strides": (
        Layer("strides", 9, 5, 6, 8, 5, 3, stride=(2, 3)),
        "Fw5 Fh3 C3 X8 Y2 C6 X9 K8 Y5",
    ),
    "groups of a batch": (
        Layer("grouped", 7, 4, 3, 12, 3, 2, B=3, G=2),
        "C3 Fw3 Fh2 X7 B2 K12 G2 Y4 B3",
    ),
    "edges everywhere": (
        Layer("edges", 19, 7, 5, 77, 3, 3),
        "Fw2 C2 X6 Y4 K8 Fh3 C5 X19 Fw3 Y7 K77",
    ),
    "one output": (Layer("one", 1, 1, 1, 1), ""),
}


@needs_compiler
@settings(
    deadline=None,
    max_examples=5,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(coded_nests())
def test_both_ways_compute_what_a_plain_one_does(case: tuple[Nest, Target]) -> None:
    nest, target = case
    layer, layout = nest.layer, Layout.dense(nest.layer)
    image, kernel = tensors(layer, layout)
    right = reference(layer, windows(layer, layout, image), kernel)
    source = emit(layer, nest, target=target.name)
    with TemporaryDirectory() as folder:
        for written in computed(source, Path(folder), target.name, image, kernel):
            found = np.frombuffer(written, np.float32).reshape(2, *right.shape)
            np.testing.assert_array_equal(found[0], right)
            np.testing.assert_array_equal(found[1], right)


@needs_compiler
def test_blocks_of_the_product_and_padded_planes(tmp_path: Path) -> None:
    # Small caches cut the product along all three dimensions; planes of 4096 bytes
    # are padded.
    layer = Layer("cut", 32, 32, 10, 40, 3, 3)
    nest = parse_nest("Fw3 Fh3 C4 X16 Y5 K16 C10 X32 Y32 K40", layer)
    xeon = load_hierarchy("xeon-e5645")
    layout = padded(layer, Layout.dense(layer), xeon)
    assert layout.output_plane > 32 * 32
    source = emit(layer, nest, layout=layout, target="portable")
    assert "OUT_PLANE = 1072;" in source
    panel = int(source.split("ROWS = ")[1].split(";")[0])
    for name, value in (("DEPTH", 40), ("ROWS", 8 * panel), ("COLUMNS", 16)):
        before, after = source.split(f"BLOCK_{name} = ")
        end = after.index(",") if "," in after.split(";")[0] else after.index(";")
        source = f"{before}BLOCK_{name} = {value}{after[end:]}"
    done = run(source, tmp_path, target="portable")
    assert done.returncode == 0, done.stdout


@needs_compiler
@pytest.mark.parametrize("wrong", ["kernel + ((c0", "panels + m * depth"])
def test_a_wrong_result_is_found(wrong: str, tmp_path: Path) -> None:
    layer, string = CASES["whole"]
    source = emit(layer, parse_nest(string, layer), target="portable")
    assert source.count(wrong) == 1
    wrong_source = source.replace(wrong, wrong.replace(" + ", " + 4 + "))
    done = run(wrong_source, tmp_path, target="portable")
    assert done.returncode == 1
    assert "error 0 " in done.stdout  # of the other one


@pytest.mark.parametrize(
    ("unroll", "own"),
    [
        ({"X": 6, "K": 16}, True),
        ({"X": 3, "Y": 2, "K": 16}, True),
        ({"X": 7, "K": 16}, False),  # more than the registers there are
        ({"X": 6, "K": 12}, False),  # no whole vectors
        ({"C": 16, "K": 16}, False),
        ({}, False),
    ],
)
def test_a_datapath_that_fits_the_registers_is_the_tile(
    unroll: dict[str, int], own: bool
) -> None:
    layer, avx2 = Layer("layer", 84, 6, 16, 48), target_of("avx2")
    nest = parse_nest("C16 X84 Y6 K48", layer, unroll)
    tile = register_tile_of(layer, nest, avx2)
    assert ({"Y": 1, **unroll} == tile.unroll) == own
    assert own or tile == best_tile(layer, avx2)


@examples(25, nests(window_innermost=False, divisors=False), soak=60)
def test_every_nest_gives_a_whole_file(nest: Nest) -> None:
    if not nest.layer.kernel:
        with pytest.raises(UsageError, match="no weights"):
            emit(nest.layer, nest)
        return
    source = emit(nest.layer, nest)
    assert "@" not in source
    for opening, closing in ("{}", "()", "[]"):
        assert source.count(opening) == source.count(closing)
    assert max(map(len, source.splitlines())) < 140


def test_large_layers_are_checked_in_part() -> None:
    layer = PAPER_LAYERS["conv1"]
    source = emit(layer, parse_nest("Fw11 Fh11 C256 X256 Y256 K384", layer))
    assert "CHECK_EVERY = 195;" in source
    conv5 = PAPER_LAYERS["conv5"]
    assert "CHECK_EVERY = 1;" in emit(
        conv5, parse_nest("Fw3 Fh3 C256 X28 Y28 K512", conv5)
    )


def test_a_name_stays_in_its_comment() -> None:
    layer = Layer("a\nint x;\\ @K@", 4, 1, 1, 8)
    source = emit(layer, parse_nest("X4 K8", layer))
    assert source.startswith("// a?int x?? ?K?: a blocked convolution\n//")
