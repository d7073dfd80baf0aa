"""ZigZag's least memory energy for a layer on private memories: JSON in, JSON out.

    python scripts/bench/zigzag_peer.py < question.json

It is given layer (sizes and stride), unroll (of C, K or G, at most two), registers
(bytes), levels (bytes and pJ per 16 bits, from the inside) and lpf_limit, and answers
with pj and seconds. Registers are free, and every memory is wide enough for what the
datapath does at once: ZigZag would shrink the datapath to a narrower one silently.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WIDE = 4096  # bits read or written at once
OPERANDS = {"input": "I1", "kernel": "I2", "output": "O"}
AXES = ("D1", "D2")
# Of a layer's dimensions, as ZigZag calls them.
NAMES = {"B": "B", "G": "G", "K": "K", "C": "C"}
NAMES |= {"Y": "OY", "X": "OX", "Fh": "FY", "Fw": "FX"}
PORTS = {
    "I1": [("read", "tl"), ("write", "fh")],
    "I2": [("read", "tl"), ("write", "fh")],
    "O": [("read", "tl"), ("read", "th"), ("write", "fh"), ("write", "fl")],
}


def memory(nbytes: int, pj: float, operands: list[str]) -> dict[str, Any]:
    """A memory for some operands, one port for each thing that passes through it."""
    ports = []
    for operand in operands:
        for way, place in PORTS[operand]:
            count = 1 + sum(port["type"] == way for port in ports)
            ports.append(
                {
                    "name": f"{way[0]}_port_{count}",
                    "type": way,
                    "bandwidth_min": 16,
                    "bandwidth_max": WIDE,
                    "allocation": [f"{operand}, {place}"],
                }
            )
    cost = pj * WIDE / 16
    return {
        "size": 8 * nbytes,
        "r_cost": cost,
        "w_cost": cost,
        "area": 0,
        "latency": 1,
        "operands": operands,
        "ports": ports,
        "served_dimensions": [],
    }


def accelerator(question: dict[str, Any]) -> dict[str, Any]:
    """Memories from the inside out: registers, the levels, and main memory."""
    memories = {}
    for tensor, operand in OPERANDS.items():
        nbytes = question["registers"][tensor]
        memories[f"register_{tensor}"] = memory(nbytes, 0.0, [operand])
    for depth, level in enumerate(question["levels"]):
        for tensor, operand in OPERANDS.items():
            own = level[tensor]
            found = memory(own["bytes"], own["pj"], [operand])
            memories[f"level_{depth}_{tensor}"] = found
    main = memory(1 << 34, question["dram_pj"], list(OPERANDS.values()))
    memories["main"] = main
    sizes = list(question["unroll"].values())
    axes = list(AXES[: len(sizes)])
    array = {"unit_energy": 0.0, "unit_area": 0.0, "dimensions": axes}
    for one in memories.values():
        one["served_dimensions"] = axes
    return {
        "name": "private memories",
        "memories": memories,
        "operational_array": {**array, "sizes": sizes},
    }


def workload(layer: dict[str, int], stride: list[int]) -> list[dict[str, Any]]:
    """One convolution; its input is what the window slides over, padded."""
    x, y = stride
    sizes = {NAMES[dim]: layer[dim] for dim in NAMES}
    return [
        {
            "id": 0,
            "name": "layer",
            "operator_type": "Conv",
            "equation": "O[b][g][k][oy][ox]+=W[g][k][c][fy][fx]*I[b][g][c][iy][ix]",
            "dimension_relations": [f"ix={x}*ox+1*fx", f"iy={y}*oy+1*fy"],
            "loop_dims": list(sizes),
            "loop_sizes": list(sizes.values()),
            "operand_precision": {"W": 16, "I": 16, "O": 16, "O_final": 16},
            "operand_source": {"I": 0, "W": 0},
        }
    ]


def main() -> None:
    question = json.load(sys.stdin)
    import yaml
    from zigzag.api import get_hardware_performance_zigzag

    logging.disable(logging.CRITICAL)
    unroll = question["unroll"]
    mapping = [
        {
            "name": "default",
            "spatial_mapping": {
                axis: [f"{NAMES[dim]}, {n}"]
                for axis, (dim, n) in zip(AXES, unroll.items(), strict=False)
            },
            "memory_operand_links": {"O": "O", "W": "I2", "I": "I1"},
        }
    ]
    parts = {
        "accelerator": accelerator(question),
        "mapping": mapping,
        "workload": workload(question["layer"], question["stride"]),
    }
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name, part in parts.items():
            files[name] = f"{folder}/{name}.yaml"
            # The order of memories matters to ZigZag.
            Path(files[name]).write_text(yaml.safe_dump(part, sort_keys=False))
        begin = time.perf_counter()
        energy, *_ = get_hardware_performance_zigzag(
            **files,
            opt="energy",
            dump_folder=folder,
            lpf_limit=question["lpf_limit"],
            loma_show_progress_bar=False,
        )
        seconds = time.perf_counter() - begin
    print(json.dumps({"pj": float(energy), "seconds": seconds}))


if __name__ == "__main__":
    main()
