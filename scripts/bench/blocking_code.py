"""Emitted code beside im2col with a matrix product, and beside torch's convolution.

All on one thread, by turns in each round; the least processor time of all rounds
counts. Tensors are planar, the input holds its padding, and kernels are packed before.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.blocking_page import Page
from memplan.blocking.cost.objective import Fixed
from memplan.blocking.machine.hierarchy_file import load_hierarchy
from memplan.blocking.machine.registers import target_of
from memplan.blocking.nest.layer import Layer, parse_layer
from memplan.blocking.nest.precision import FORMATS
from memplan.blocking.run.emit import compiler_flags, emit
from memplan.blocking.run.layout import input_size
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options, Result
from memplan.toolchain.compiler import NoCompilerError, compile_source, find_compiler

# Every convolution of ResNet-50 once, C,K,X,Y and then window and stride.
RESNET_50 = (
    *("3,64,112,112,7,7,S2", "64,64,56,56", "64,64,56,56,3,3", "64,256,56,56"),
    *("256,64,56,56", "256,128,56,56", "128,128,28,28,3,3,S2", "128,512,28,28"),
    *("256,512,28,28,1,1,S2", "512,128,28,28", "128,128,28,28,3,3", "512,256,28,28"),
    *("256,256,14,14,3,3,S2", "256,1024,14,14", "512,1024,14,14,1,1,S2"),
    *("1024,256,14,14", "256,256,14,14,3,3", "1024,512,14,14", "512,512,7,7,3,3,S2"),
    *("512,2048,7,7", "1024,2048,7,7,1,1,S2", "2048,512,7,7", "512,512,7,7,3,3"),
)
# What the tiles were not made for: other networks' layers, then sizes of no network.
OTHERS = (
    *("3,64,224,224,3,3", "3,96,55,55,11,11,S4", "48,128,27,27,5,5,G2"),
    *("96,208,14,14,3,3", "80,192,71,71,3,3", "128,32,28,28,3,3", "960,160,7,7"),
    *("40,240,19,19", "192,192,17,17,7,1", "1,1,56,56,3,3,G144", "512,1000,1,1,B8"),
    *("50,75,33,17,3,3,B2,S3", "13,37,101,23,2,5", "300,20,9,9"),
)
COLUMNS = (
    "layer | blocked | im2col+GEMM | ratio | unfold+@ | ratio | conv2d | ratio | "
    "energy | nest, innermost first"
)
_OTHER_WAYS = ("im2col+GEMM", "unfold+@", "conv2d")
_RUNS = 5  # of the program, a round
_LINE = re.compile(r"(blocked|im2col\+GEMM) +error 0 +([0-9.]+) s", re.ASCII)


@dataclass(frozen=True)
class Row:
    """A layer's nest, and the least seconds of each way to compute it, by name."""

    layer: Layer
    found: Result
    seconds: dict[str, float]

    def speed(self, way: str) -> float:
        """GMAC a second."""
        return self.layer.macs / self.seconds[way] / 1e9

    def ratio(self, way: str) -> float:
        """How many times as long as the nest it takes."""
        return self.seconds[way] / self.seconds["blocked"]


def measured(
    layers: Iterable[str], caches: str, target: str = "native", rounds: int = 5
) -> list[Row]:
    """A row for each layer; every program checks its results.

    caches: what nests are searched and the product is blocked for.
    Raises NoCompilerError, and RuntimeError where a result is wrong.
    """
    return [_row(parse_layer(text), caches, target, rounds) for text in layers]


def section(page: Page, caches: str = "xeon-e5645", rounds: int = 5) -> None:
    """What `memplan blocking optimize --for-code` finds, emitted and run."""
    page.say("## Nests that run: emitted code on one thread")
    page.say(
        "`memplan blocking optimize --for-code native` finds a nest around a register "
        "tile, `memplan blocking emit` writes it as C++, together with im2col and a "
        "matrix product on tiles of the same registers. GMAC/s of both, of torch's "
        "im2col and matrix product (`unfold`, `@`) and of its own convolution "
        f"(`conv2d`), {_machine()}; the least processor time of {rounds * _RUNS} runs "
        "each, by turns. Ratios are that way's time over the nest's: above 1 the nest "
        "is faster. All read and write planar tensors, and the input holds its "
        "padding; the emitted programs have their kernels packed before, and every "
        "result is compared with a direct convolution. A window of 1 x 1 with stride "
        "1 has no im2col. Energy is what the nest takes more than the best found "
        f"on the same tile, of floats, with the caches of {caches}. Vectors lie "
        "along the channels of the output, so that a layer with few of these in a "
        "group, a depthwise one above all, leaves lanes idle."
    )
    for title, layers in (
        ("ResNet-50's convolutions:", RESNET_50),
        ("Layers of other networks, and some of none:", OTHERS),
    ):
        rows = measured(layers, caches, rounds=rounds)
        page.say(title)
        page.table(COLUMNS, [cells(row) for row in rows])
        page.say(" ".join(summary(way, rows) for way in _OTHER_WAYS))


def cells(row: Row) -> list[str]:
    """The row, as text, under COLUMNS."""
    free = row.found.free_energy or row.found.energy
    found = [row.layer.name.replace(",", " "), f"{row.speed('blocked'):.1f}"]
    for way in _OTHER_WAYS:
        found += [f"{row.speed(way):.1f}", f"{row.ratio(way):.2f}"]
    energy = f"+{100 * (row.found.energy / free - 1):.2f} %"
    return [*found, energy, f"`{row.found.nest}`"]


def summary(way: str, rows: Sequence[Row]) -> str:
    """One sentence on all ratios to a way."""
    ratios = [row.ratio(way) for row in rows]
    return (
        f"{way}: geometric mean {statistics.geometric_mean(ratios):.2f}, least "
        f"{min(ratios):.2f}, at least 0.9 on {sum(r >= 0.9 for r in ratios)} and at "
        f"least 1 on {sum(r >= 1 for r in ratios)} of {len(ratios)}."
    )


def _machine() -> str:
    """The processor's vectors, and the compiler."""
    compiler = find_compiler()
    if compiler is None:
        raise NoCompilerError
    return f"{target_of('native').name}, {compiler.version.splitlines()[0]}"


def _row(layer: Layer, caches: str, target: str, rounds: int) -> Row:
    hierarchy = load_hierarchy(caches)
    floats = hierarchy.at(FORMATS["fp32"])
    found = optimize(layer, {}, Fixed(floats), Options(target=target))
    source = emit(layer, found.nest, hierarchy=hierarchy, target=target)
    ways = _torch_ways(layer)
    seconds: dict[str, float] = {}

    def note(way: str, least: float) -> None:
        seconds[way] = min(least, seconds.get(way, least))

    with tempfile.TemporaryDirectory() as folder:
        program = _compiled(source, Path(folder), target)
        for _ in range(rounds):
            for way, least in _run(program):
                note(way, least)
            for way, run in ways.items():
                note(way, min(_processor_time(run) for _ in range(_RUNS)))
    return Row(layer, found, seconds)


def _compiled(source: str, folder: Path, target: str) -> Path:
    compiler = find_compiler()
    if compiler is None:
        raise NoCompilerError
    (folder / "conv.cpp").write_text(source, encoding="utf-8")
    files = ("conv.cpp", "-o", "conv")
    compile_source(compiler, (*compiler_flags(target), *files), folder)
    return folder / "conv"


def _run(program: Path) -> list[tuple[str, float]]:
    done = subprocess.run(
        [program, str(_RUNS)], capture_output=True, text=True, check=False
    )
    found = _LINE.findall(done.stdout)
    if done.returncode or len(found) != 2:
        raise RuntimeError(f"wrong: {done.stdout or done.stderr}")
    return [(way, float(least)) for way, least in found]


def _processor_time(run: Callable[[], object]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


def _torch_ways(layer: Layer) -> dict[str, Callable[[], Any]]:
    """torch's convolution, and its im2col with its matrix product, called once."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    wide, high = input_size(layer)
    image = torch.randn(layer.B, layer.G * layer.C, high, wide)
    kernel = torch.randn(layer.G * layer.K, layer.C, layer.Fh, layer.Fw)
    steps = layer.stride[::-1]
    window = (layer.Fh, layer.Fw)
    flat = kernel.view(layer.G, layer.K, -1)
    as_it_is = window == steps == (1, 1)

    def product() -> torch.Tensor:
        columns = image
        if not as_it_is:
            columns = functional.unfold(image, window, stride=steps)
        depth = layer.C * layer.Fh * layer.Fw
        return flat @ columns.view(layer.B, layer.G, depth, -1)

    def convolution() -> torch.Tensor:
        return functional.conv2d(image, kernel, stride=steps, groups=layer.G)

    with torch.inference_mode():
        torch.testing.assert_close(
            product().view(layer.B, -1, layer.Y, layer.X),
            convolution(),
            rtol=1e-3,
            atol=1e-2,
        )
    return {
        "unfold+@": torch.inference_mode()(product),
        "conv2d": torch.inference_mode()(convolution),
    }
