"""ZigZag's least memory energy for a layer on private memories: JSON in, JSON out.

    python scripts/bench/zigzag_peer.py < question.json

It is given layer (sizes), unroll (of C and K), registers (bytes), levels (bytes and pJ
per 16 bits, from the inside) and lpf_limit, and answers with pj and seconds. Registers
are free, and every memory is wide enough for what the datapath does at once: ZigZag
would shrink the datapath to a narrower one without a word.
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
        "served_dimensions": ["D1", "D2"],
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
    sizes = [question["unroll"]["K"], question["unroll"]["C"]]
    array = {"unit_energy": 0.0, "unit_area": 0.0, "dimensions": ["D1", "D2"]}
    return {
        "name": "private memories",
        "memories": memories,
        "operational_array": {**array, "sizes": sizes},
    }


def workload(layer: dict[str, int]) -> list[dict[str, Any]]:
    """One convolution; its input is what the window slides over, padded."""
    dims = {"B": 1, "K": "K", "C": "C", "OY": "Y", "OX": "X", "FY": "Fh", "FX": "Fw"}
    return [
        {
            "id": 0,
            "name": "layer",
            "operator_type": "Conv",
            "equation": "O[b][k][oy][ox]+=W[k][c][fy][fx]*I[b][c][iy][ix]",
            "dimension_relations": ["ix=1*ox+1*fx", "iy=1*oy+1*fy"],
            "loop_dims": list(dims),
            "loop_sizes": [
                layer[d] if isinstance(d, str) else d for d in dims.values()
            ],
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
                "D1": [f"K, {unroll['K']}"],
                "D2": [f"C, {unroll['C']}"],
            },
            "memory_operand_links": {"O": "O", "W": "I2", "I": "I1"},
        }
    ]
    parts = {
        "accelerator": accelerator(question),
        "mapping": mapping,
        "workload": workload(question["layer"]),
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
