"""Emitted convolutions beside im2col with a matrix product, and torch's convolution.

`memplan blocking optimize --for-code` finds a nest around a register tile, and
`blocking emit` writes it as C++ with im2col and a product on tiles of the same
registers. All run on one thread, on planar tensors whose input holds its padding, with
kernels packed before. Every program compares its results with a direct convolution.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.nn import functional

from bench.runner import BenchError, Contender, Figures, Metric, Suite, timed
from memplan.blocking.cost.objective import Fixed
from memplan.blocking.machine.hierarchy import load_hierarchy
from memplan.blocking.nest.layer import Layer, parse_layer
from memplan.blocking.nest.precision import FORMATS
from memplan.blocking.run.cache import input_size
from memplan.blocking.run.emit import compiler_flags, emit
from memplan.blocking.search.optimize import optimize
from memplan.blocking.search.result import Options
from memplan.toolchain.compiler import compile_source, find_compiler

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
LINE = re.compile(r"(blocked|im2col\+GEMM) +error 0 +([0-9.]+) s", re.ASCII)
RUNS = 5  # of the program


def contenders(
    case: str, args: argparse.Namespace, folder: Path
) -> Sequence[Contender]:
    """The nest, the product beside it in the same program, and torch's two ways."""
    layer = parse_layer(case)
    hierarchy = load_hierarchy(args.caches)
    floats = Fixed(hierarchy.at(FORMATS["fp32"]))
    found = optimize(layer, {}, floats, Options(target=args.target))
    source = emit(layer, found.nest, hierarchy=hierarchy, target=args.target)
    compiler = find_compiler()
    if compiler is None:
        raise BenchError("no compiler")
    (folder / "conv.cpp").write_text(source, encoding="utf-8")
    files = ("conv.cpp", "-o", "conv")
    compile_source(compiler, (*compiler_flags(args.target), *files), folder)
    print(f"{case}: {found.nest}")

    def emitted(way: str) -> Figures:
        done = subprocess.run(
            [folder / "conv", str(RUNS)], capture_output=True, text=True, check=False
        )
        seconds = dict(LINE.findall(done.stdout))
        if done.returncode or len(seconds) != 2:
            raise BenchError(f"wrong: {done.stdout or done.stderr}")
        return {"cpu_seconds": float(seconds[way]), "macs": layer.macs}

    def of_torch(run: Callable[[], object]) -> Figures:
        return {"cpu_seconds": min(timed(run)()["cpu_seconds"] for _ in range(RUNS))}

    ways = {
        name: torch.inference_mode()(call) for name, call in torch_ways(layer).items()
    }
    return [
        Contender("blocked", lambda: emitted("blocked")),
        Contender("im2col+GEMM", lambda: emitted("im2col+GEMM")),
        *(Contender(name, lambda c=call: of_torch(c)) for name, call in ways.items()),
    ]


def torch_ways(layer: Layer) -> dict[str, Callable[[], torch.Tensor]]:
    """torch's convolution, and its im2col with its matrix product."""
    torch.set_num_threads(1)
    wide, high = input_size(layer)
    image = torch.randn(layer.B, layer.G * layer.C, high, wide)
    kernel = torch.randn(layer.G * layer.K, layer.C, layer.Fh, layer.Fw)
    steps, window = layer.stride[::-1], (layer.Fh, layer.Fw)
    flat = kernel.view(layer.G, layer.K, -1)

    def product() -> torch.Tensor:
        columns = image
        if not window == steps == (1, 1):
            columns = functional.unfold(image, window, stride=steps)
        depth = layer.C * layer.Fh * layer.Fw
        return flat @ columns.view(layer.B, layer.G, depth, -1)

    def convolution() -> torch.Tensor:
        return functional.conv2d(image, kernel, stride=steps, groups=layer.G)

    return {"unfold+@": product, "conv2d": convolution}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--caches", default="xeon-e5645", help="name or file")
    parser.add_argument("--target", default="native")


SUITE = Suite(
    summary="Emitted convolutions beside im2col and torch.",
    cases={text: text for text in (*RESNET_50, *OTHERS)},
    contenders=contenders,
    metrics=(Metric("cpu_seconds", "CPU ms", 1e3, 3),),
    packages=("torch",),
    add_arguments=add_arguments,
)
