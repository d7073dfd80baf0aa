"""Record the samples in traces/: one small trace of each example program.

Writes the traces and manifest.json beside them: which script, with which arguments
and versions, and each file's SHA-256.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import tempfile
from pathlib import Path

import torch
from bench.runner import MEMPLAN, ROOT, run_child

import memplan

SCRIPT = "scripts/program.py"
PROGRAMS = {
    "train_resnet50": ["resnet50", "--train", "--steps", "5"],
    "train_googlenet": ["googlenet", "--train", "--steps", "5"],
    "train_gpt2": ["gpt2", "--train", "--steps", "5"],
    "infer_resnet50": ["resnet50", "--infer", "--steps", "6"],
}


def record(name: str, arguments: list[str], folder: Path) -> dict[str, object]:
    """Record one program into `folder`, and describe the trace."""
    target = folder / f"{name}.parquet"
    # Recorded beside and moved: a failure must not leave half of the old and the new.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        fresh = Path(scratch) / target.name
        run_child([*MEMPLAN, "record", "-q", "-o", str(fresh), SCRIPT, *arguments])
        fresh.replace(target)
    plan = memplan.solve(memplan.read_trace(target))
    return {
        "file": target.name,
        "origin": "recorded by this project on a CPU",
        "script": SCRIPT,
        "arguments": arguments,
        "memplan": memplan.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "sha256": hashlib.sha256(target.read_bytes()).hexdigest(),
        "buffers": len(plan.problem),
        "lower_bound": plan.lower_bound,
    }


def main() -> None:
    """Record all samples, or those named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "traces")
    options = parser.parse_args()
    options.output.mkdir(exist_ok=True)
    entries = []
    for name, arguments in PROGRAMS.items():
        entries.append(record(name, arguments, options.output))
        print(f"{entries[-1]['file']}: {entries[-1]['buffers']} buffers", flush=True)
    manifest = {"schema": "memplan.trace-manifest", "version": 1, "traces": entries}
    text = json.dumps(manifest, indent=2) + "\n"
    (options.output / "manifest.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
