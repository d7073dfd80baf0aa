"""Blocked convolutions in simulated caches, and as compiled programs.

    python scripts/bench_caches.py [--max-macs 2000000000] [--runs 5]

Prints references a second; misses of Conv1 to Conv5 against the model's, and against
im2col with a blocked matrix product, on the paper's Xeon E5645; and, where there is a
compiler, the median times of the emitted programs. Conv1 and Conv2 are larger than
--max-macs: their first iterations are simulated, of which the last level holds all, so
that the model expects too much there.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from bench.blocking_caches import MACHINE, NESTS

from memplan.blocking.machine.hierarchy import Hierarchy
from memplan.blocking.machine.hierarchy_file import load_hierarchy
from memplan.blocking.nest.layer import PAPER_LAYERS
from memplan.blocking.nest.nest import parse_nest
from memplan.blocking.run.cache import MAX_MACS, simulate, simulator_of
from memplan.blocking.run.emit import emit

COMPILED = ("conv4", "conv5")
REFERENCES = 1 << 22


def speed(machine: Hierarchy) -> None:
    """References a second of patterns that hit the first level, and one that misses."""
    drawn = np.random.default_rng(0)
    first = machine.caches[0].nbytes
    patterns = {
        "one line": np.zeros(REFERENCES, dtype=np.int64),
        "elements in a row": 4 * np.arange(REFERENCES, dtype=np.int64),
        "anywhere in the first level": drawn.integers(0, first, REFERENCES),
        "anywhere in eight of it": drawn.integers(0, 8 * first, REFERENCES),
    }
    writes = drawn.random(REFERENCES) < 0.3
    print("references, 30 % of them writes        M/s")
    for name, addresses in patterns.items():
        best = 0.0
        for _ in range(3):
            simulator = simulator_of(machine)
            begin = time.perf_counter()
            simulator.access(addresses, writes)
            best = max(best, REFERENCES / (time.perf_counter() - begin) / 1e6)
        print(f"  {name:<34}{best:8.0f}")


def caches(machine: Hierarchy, max_macs: int) -> None:
    """Misses by level: of the model, simulated, and of the matrix product."""
    print("\nlayer  share  level      model  simulated  ratio       GEMM  GEMM/blocked")
    for name, string in NESTS.items():
        layer = PAPER_LAYERS[name]
        nest = parse_nest(string, layer)
        for pad in (False, True):
            found = simulate(layer, nest, machine, pad=pad, max_macs=max_macs)
            assert found.gemm is not None
            for expected, own, other in zip(
                found.expected, found.blocked, found.gemm, strict=True
            ):
                print(
                    f"{name:<7}{found.share:5.1%}  {own.name:<5}{expected:11.0f}"
                    f"{own.misses:11d}{own.misses / expected:7.3f}"
                    f"{other.misses:11d}{other.misses / own.misses:14.2f}"
                )
            if not found.aliasing:
                break
            for alias in found.aliasing:
                print(f"  {alias}")


def compiled(compiler: str, runs: int) -> None:
    """Builds and runs the emitted programs, which check their results."""
    print(f"\n{compiler} -O3 -march=native, one thread, least of {runs}")
    for name in COMPILED:
        layer = PAPER_LAYERS[name]
        with tempfile.TemporaryDirectory() as folder:
            source, program = Path(folder, "conv.cpp"), Path(folder, "conv")
            source.write_text(emit(layer, parse_nest(NESTS[name], layer)), "utf-8")
            flags = ["-std=c++20", "-O3", "-march=native"]
            subprocess.run([compiler, *flags, source, "-o", program], check=True)
            print(f"{name}: {NESTS[name]}", flush=True)
            subprocess.run([program, str(runs)], check=True)


def main() -> None:
    """Prints everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-macs", type=int, default=MAX_MACS)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    machine = load_hierarchy(MACHINE)
    speed(machine)
    caches(machine, arguments.max_macs)
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is not None:
        compiled(compiler, arguments.runs)


if __name__ == "__main__":
    main()
