"""Emitted C++: compiled, run, and equal to a direct convolution to the last bit."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from code_runs import (
    RUNNING,
    coded_nests,
    computed,
    needs_compiler,
    reference,
    run,
    tensors,
    windows,
)
from hypothesis import HealthCheck, given, settings
from nest_strategies import nests

from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.machine.registers import (
    RegisterTile,
    Target,
    best_tile,
    target_of,
)
from memplan.blocking.nest.layer import PAPER_LAYERS, Layer
from memplan.blocking.nest.nest import Nest, parse_nest
from memplan.blocking.run.cache import Layout, padded
from memplan.blocking.run.emit import emit, register_tile_of
from memplan.errors import UsageError
from tests.strategies import examples

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
@pytest.mark.parametrize("name", CASES)
def test_results_are_exact(name: str, tmp_path: Path) -> None:
    layer, string = CASES[name]
    done = run(emit(layer, parse_nest(string, layer)), tmp_path)
    assert done.returncode == 0, done.stdout
    blocked, product = done.stdout.splitlines()
    assert blocked.startswith("blocked     error 0 ")
    assert product.startswith("im2col+GEMM error 0 ")


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


@pytest.mark.soak
@needs_compiler
def test_code_for_wide_vectors_is_right_on_narrow_ones(tmp_path: Path) -> None:
    layer, string = CASES["edges everywhere"]
    source = emit(layer, parse_nest(string, layer), target="avx512")
    assert run(source, tmp_path, target="portable").returncode == 0


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
def test_rows_apart_and_a_window_of_one(tmp_path: Path) -> None:
    # The product reads such an input as it is, but for rows that lie apart.
    row, layer = 40, Layer("pixels", 32, 5, 6, 20)
    layout = Layout(row, 5 * row + 16, row, 5 * row + 32)
    nest = parse_nest("C6 X32 K20 Y5", layer)
    assert run(emit(layer, nest, layout=layout), tmp_path).returncode == 0


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


def test_loops_are_those_of_the_nest() -> None:
    layer = Layer("small", 30, 4, 6, 64, 3, 1)
    nest = parse_nest("C2 Fw3 X30 Y2 K64 C6 Y4", layer, {"X": 6, "K": 16})
    source = emit(layer, nest, target="avx2")
    assert "// Loops, innermost first: C2 Fw3 X30 Y2 K64 C6 Y4" in source
    assert "in registers: 6 columns x 1 row x 2 vectors of 8 channels" in source
    blocked = source[source.index("void blocked(") :]
    heads = [
        line.strip()
        for line in blocked[: blocked.index("\n}\n")].splitlines()
        if "for (" in line
    ]
    assert heads == [
        "for (Index y0 = 0; y0 < Y; y0 += 2) {",
        "for (Index c0 = 0; c0 < C; c0 += 2) {",
        "for (Index k0 = 0; k0 < K; k0 += 16) {",
        "for (Index y1 = y0; y1 < y0_to; y1 += 1) {",
        "for (Index x0 = 0; x0 < X; x0 += 6) {",
    ]
    # What a register tile always covers whole is a constant there.
    assert "for (Index fw0 = 0; fw0 < FW; fw0 += 1) {" in source
    assert "for (Index c0 = part.c; c0 < part.c_to; c0 += 1) {" in source


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


def test_a_datapath_of_more_channels_than_there_are() -> None:
    layer = Layer("few", 5, 6, 16, 17)
    nest = parse_nest("C16 X5 Y6", layer, {"X": 5, "K": 64})
    wide = target_of("avx512")
    assert register_tile_of(layer, nest, wide) == RegisterTile(16, 2, 5)
    assert "VECTORS = 2, TX = 5" in emit(layer, nest, target="avx512")


def test_more_positions_than_a_dimension_may_have() -> None:
    layer = Layer("large", 2048, 2048, 3, 8, 3, 3)
    source = emit(layer, parse_nest("Fw3 Fh3 C3 X2048 Y2048 K8", layer))
    assert "CHECK_EVERY = 1;" in source


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


def test_the_widest_vectors_are_native() -> None:
    assert target_of("native").name == RUNNING[0]
