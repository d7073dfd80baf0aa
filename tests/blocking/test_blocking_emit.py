"""Emitted C++: compiled, run, and equal to a direct convolution to the last bit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from nest_strategies import nests

from memplan.blocking.machine.hierarchy_file import load_hierarchy
from memplan.blocking.nest.layer import PAPER_LAYERS, Layer, fully_connected
from memplan.blocking.nest.nest import Nest, parse_nest
from memplan.blocking.run.emit import emit
from memplan.blocking.run.layout import Layout, padded
from memplan.errors import UsageError

COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]
needs_compiler = pytest.mark.skipif(not COMPILERS, reason="needs g++ or clang++")


def run(source: str, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Compiled without a warning by every compiler there is; what the last one did."""
    (folder / "conv.cpp").write_text(source, encoding="utf-8")
    for compiler in COMPILERS:
        command = [compiler, "-std=c++17", "-O3", "-Wall", "-Wextra", "-Werror"]
        command += [*flags, "conv.cpp", "-o", "conv"]
        subprocess.run(command, cwd=folder, check=True)
        done = subprocess.run(
            [folder / "conv", "1"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            break
    return done


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
        Layer("edges", 11, 7, 5, 13, 3, 3),
        "Fw2 C2 X6 Y4 K8 Fh3 C5 X11 Fw3 Y7 K13",
    ),
    "windows outside": (
        Layer("outside", 6, 6, 3, 20, 4, 3),
        "X4 Y4 K16 C2 Fh2 X6 Fw4 Y6 K20 C3 Fh3",
    ),
    "fully connected": (
        fully_connected("fc", 50, 21, batch=5),
        "C16 B2 K16 C50 B5 K21",
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
def test_blocks_of_the_product_and_padded_planes(tmp_path: Path) -> None:
    # Small caches cut the product along all three dimensions; planes of 4096 bytes
    # are padded.
    layer = Layer("cut", 32, 32, 10, 20, 3, 3)
    nest = parse_nest("Fw3 Fh3 C4 X16 Y5 K16 C10 X32 Y32 K20", layer)
    xeon = load_hierarchy("xeon-e5645")
    layout = padded(layer, Layout.dense(layer), xeon)
    assert layout.output_plane > 32 * 32
    source = emit(layer, nest, layout=layout)
    assert "OUT_PLANE = 1072;" in source
    for name, value in (("DEPTH", 40), ("ROWS", 48), ("COLUMNS", 16)):
        before, after = source.split(f"BLOCK_{name} = ")
        end = after.index(",") if "," in after.split(";")[0] else after.index(";")
        source = f"{before}BLOCK_{name} = {value}{after[end:]}"
    done = run(source, tmp_path)
    assert done.returncode == 0, done.stdout


@needs_compiler
@pytest.mark.parametrize("wrong", ["kernel + ((c0", "panels + m * depth"])
def test_a_wrong_result_is_found(wrong: str, tmp_path: Path) -> None:
    layer, string = CASES["whole"]
    source = emit(layer, parse_nest(string, layer))
    assert source.count(wrong) == 1
    done = run(source.replace(wrong, wrong.replace(" + ", " + 8 + ")), tmp_path)
    assert done.returncode == 1
    assert "error 0 " in done.stdout  # of the other one


def test_loops_are_those_of_the_nest() -> None:
    layer = Layer("small", 10, 4, 6, 16, 3, 1)
    source = emit(layer, parse_nest("C2 Fw3 Y2 X8 K16 X10 C6 Y4", layer))
    assert "// Loops, innermost first: C2 Fw3 Y2 X8 K16 X10 C6 Y4" in source
    blocked = source[source.index("void blocked(") :]
    heads = [
        line.strip()
        for line in blocked[: blocked.index("\n}\n")].splitlines()
        if "for (" in line
    ]
    assert heads == [
        "for (Index y0 = 0; y0 < Y; y0 += 2) {",
        "for (Index c0 = 0; c0 < C; c0 += 2) {",
        "for (Index x0 = 0; x0 < X; x0 += 8) {",
        "for (Index k0 = 0; k0 < K; k0 += 8) {",
        "for (Index x1 = x0; x1 < x0_to; x1 += 4) {",
        "for (Index y1 = y0; y1 < y0_to; y1 += 1) {",
    ]
    # What a register tile always covers whole is a constant there.
    assert "for (Index fw0 = 0; fw0 < FW; fw0 += 1) {" in source
    assert "for (Index c0 = part.c; c0 < part.c_to; c0 += 1) {" in source


@settings(deadline=None, max_examples=60)
@given(nests(window_innermost=False, divisors=False))
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


def test_a_nest_of_another_layer() -> None:
    layer, string = CASES["whole"]
    with pytest.raises(UsageError, match="of whole, not of Conv5"):
        emit(PAPER_LAYERS["conv5"], parse_nest(string, layer))
