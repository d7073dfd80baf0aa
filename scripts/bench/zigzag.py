"""memplan's nests beside ZigZag's best mappings, on the same private memories.

`--zigzag PYTHON` names an interpreter with zigzag-dse 3.9.1; ZigZag runs in a process
of its own (bench/zigzag_peer.py). Memories are priced by the blocking paper's Table 3
for 16 bits, and filling costs what reading does. ZigZag reads a partial sum before its
first write, and memplan does not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.emitted import RESNET_50
from bench.runner import BenchError, Contender, Figures, Metric, Suite, timed
from memplan.blocking.cost.objective import Fixed
from memplan.blocking.machine.energy import DRAM_PJ, MAC_PJ, paper_curves
from memplan.blocking.machine.hierarchy import Hierarchy, Level
from memplan.blocking.nest.layer import DIMS, Layer, Tensor, parse_layer
from memplan.blocking.search.optimize import optimize

PEER = Path(__file__).parent / "zigzag_peer.py"
MEMORIES = {  # KiB of input, kernel and output, level by level
    "2/32/2": ((2, 32, 2),),
    "2/8/2 + 128/256/64": ((2, 8, 2), (128, 256, 64)),
}
REGISTERS = {"input": 32, "kernel": 512, "output": 32}  # bytes; of the datapath
LPF_LIMIT = 6  # ZigZag's own default: prime factors that LOMA orders
CHANNELS, GROUPS = {"K": 16, "C": 16}, {"G": 8}
MOBILENET = (  # the depthwise layers of MobileNetV3-Large
    *("1,1,112,112,3,3,G16", "1,1,56,56,3,3,G64,S2", "1,1,56,56,3,3,G72"),
    *("1,1,28,28,5,5,G72,S2", "1,1,28,28,5,5,G120", "1,1,14,14,3,3,G240,S2"),
    *("1,1,14,14,3,3,G200", "1,1,14,14,3,3,G184", "1,1,14,14,3,3,G480"),
    *("1,1,14,14,3,3,G672", "1,1,7,7,5,5,G672,S2", "1,1,7,7,5,5,G960"),
)
GPT2 = ("768,3072,1,1,B1024", "3072,768,1,1,B1024", "768,3072,1,1", "3072,768,1,1")
CASES = {
    f"{layer} on {memories}": (layer, GROUPS if layer in MOBILENET else CHANNELS, sizes)
    for memories, sizes in MEMORIES.items()
    for layer in (*RESNET_50, *MOBILENET, *GPT2)
}


def private(levels: tuple[tuple[int, ...], ...]) -> Hierarchy:
    """Free registers, and memories of so many KiB for each tensor."""
    curves = paper_curves()
    free = dict.fromkeys(Tensor, 1e-9)  # 0 is no price
    made = [Level("registers", None, {t: REGISTERS[t.value] for t in Tensor}, free)]
    for depth, sizes in enumerate(levels):
        own = {t: kib << 10 for t, kib in zip(Tensor, sizes, strict=True)}
        made.append(Level(f"L{depth}", None, own, {t: curves[t](own[t]) for t in own}))
    return Hierarchy("bench", "", "", tuple(made), curves, DRAM_PJ, MAC_PJ, True)


def question(
    layer: Layer, unroll: Mapping[str, int], hierarchy: Hierarchy
) -> dict[str, object]:
    """What the peer is asked.

    Sizes are rounded up to the datapath, because ZigZag's tiles divide them. Where a
    window of one strides, ZigZag would fetch the columns between; it is asked for the
    layer without them, which is the same work.
    """
    sized = layer.padded(unroll)
    windows = zip(layer.stride, (layer.Fw, layer.Fh), strict=True)
    return {
        "layer": {dim: sized.size(dim) for dim in DIMS},
        "stride": [step if window > 1 else 1 for step, window in windows],
        "unroll": dict(unroll),
        "registers": REGISTERS,
        "dram_pj": hierarchy.dram_pj,
        "lpf_limit": LPF_LIMIT,
        "levels": [
            {
                t.value: {"bytes": level.capacity(t), "pj": hierarchy.price(depth, t)}
                for t in Tensor
            }
            for depth, level in enumerate(hierarchy.levels)
            if depth > 0
        ],
    }


def contenders(
    case: tuple[str, dict[str, int], tuple[tuple[int, ...], ...]],
    args: argparse.Namespace,
    folder: Path,
) -> Sequence[Contender]:
    """ZigZag, and memplan."""
    text, unroll, sizes = case
    layer, hierarchy = parse_layer(text), private(sizes)

    def theirs() -> Figures:
        done = subprocess.run(
            [args.zigzag, str(PEER)],
            input=json.dumps(question(layer, unroll, hierarchy)),
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise BenchError((done.stderr.strip() or "no answer").splitlines()[-1])
        answer = json.loads(lines[-1])
        return {"pj": answer["pj"] / layer.macs, "seconds": answer["seconds"]}

    def ours() -> Figures:
        found = []
        run = timed(lambda: found.append(optimize(layer, unroll, Fixed(hierarchy))))
        figures = {"pj": 0.0, "bound": 0.0, **run()}
        figures["pj"] = found[-1].energy / layer.macs
        figures["bound"] = (found[-1].lower_bound or 0) / layer.macs
        return figures

    return [Contender("ZigZag", theirs), Contender("memplan", ours)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--zigzag", default=sys.executable, metavar="PYTHON")


SUITE = Suite(
    summary="Nests beside ZigZag's mappings.",
    cases=CASES,
    contenders=contenders,
    metrics=(
        Metric("pj", "pJ/MAC", 1, 3),
        Metric("bound", "bound", 1, 3, compared=False),
        Metric("seconds", "s", 1, 3),
    ),
    packages=("zigzag-dse",),
    add_arguments=add_arguments,
)
