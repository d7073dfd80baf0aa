"""ZigZag asked for its best mapping, on the memories that memplan is given."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from memplan.blocking.machine.energy import DRAM_PJ, MAC_PJ, paper_curves
from memplan.blocking.machine.hierarchy import Hierarchy, Level
from memplan.blocking.nest.layer import DIMS, Layer, Tensor

PEER = Path(__file__).parent / "zigzag_peer.py"
UNROLL = {"K": 16, "C": 16}
MEMORIES = {  # KiB of input, kernel and output, level by level
    "2/32/2": ((2, 32, 2),),
    "2/8/2 + 128/256/64": ((2, 8, 2), (128, 256, 64)),
}
REGISTERS = {"input": 32, "kernel": 512, "output": 32}  # bytes; of the datapath
LPF_LIMIT = 6  # ZigZag's own default: prime factors that LOMA orders


@dataclass(frozen=True)
class Answer:
    """ZigZag's least memory energy, its seconds, and its loops, innermost first, as
    pairs of dimension and trips."""

    pj: float
    seconds: float
    loops: tuple[tuple[str, float], ...]


def private(levels: tuple[tuple[int, ...], ...]) -> Hierarchy:
    """Free registers, and memories of so many KiB, priced by Table 3; filling costs."""
    curves = paper_curves()
    free = dict.fromkeys(Tensor, 1e-9)  # 0 is no price
    made = [Level("registers", None, {t: REGISTERS[t.value] for t in Tensor}, free)]
    for depth, sizes in enumerate(levels):
        own = {t: kib << 10 for t, kib in zip(Tensor, sizes, strict=True)}
        made.append(Level(f"L{depth}", None, own, {t: curves[t](own[t]) for t in own}))
    return Hierarchy("bench", "", "", tuple(made), curves, DRAM_PJ, MAC_PJ, True)


def question(
    layer: Layer, unroll: Mapping[str, int], hierarchy: Hierarchy, lpf_limit: int
) -> dict[str, object]:
    """What the peer is asked.

    Sizes are rounded up to the datapath, for ZigZag's tiles divide them. Where a
    window of one strides, ZigZag would fetch the columns between; it is asked for the
    layer without them, which is the same work.
    """
    sized = layer.padded(unroll)
    windows = (layer.Fw, layer.Fh)
    stride = [
        step if window > 1 else 1
        for step, window in zip(layer.stride, windows, strict=True)
    ]
    return {
        "layer": {dim: sized.size(dim) for dim in DIMS},
        "stride": stride,
        "unroll": dict(unroll),
        "registers": REGISTERS,
        "dram_pj": hierarchy.dram_pj,
        "lpf_limit": lpf_limit,
        "levels": [
            {
                t.value: {"bytes": level.capacity(t), "pj": hierarchy.price(depth, t)}
                for t in Tensor
            }
            for depth, level in enumerate(hierarchy.levels)
            if depth > 0
        ],
    }


def ask_zigzag(
    python: str,
    layer: Layer,
    unroll: Mapping[str, int],
    hierarchy: Hierarchy,
    lpf_limit: int = LPF_LIMIT,
) -> Answer:
    """Its least energy and its seconds. Raises RuntimeError where it does not run."""
    done = subprocess.run(
        [python, str(PEER)],
        input=json.dumps(question(layer, unroll, hierarchy, lpf_limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError((done.stderr.strip() or "no answer").splitlines()[-1])
    answer = json.loads(lines[-1])
    loops = tuple((dim, trips) for dim, trips in answer["loops"])
    return Answer(answer["pj"], answer["seconds"], loops)


def stringed(loops: tuple[tuple[str, float], ...], unroll: Mapping[str, int]) -> str:
    """ZigZag's loops as a nest's string: extents are cumulative."""
    reached = dict(unroll)
    tokens = []
    for dim, trips in loops:
        reached[dim] = round(reached.get(dim, 1) * trips)
        tokens.append(f"{dim}{reached[dim]}")
    return " ".join(tokens)
