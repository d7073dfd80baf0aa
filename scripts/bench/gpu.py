"""Training on a GPU under torch's allocator, its expandable segments, and memplan.

Each network is recorded for a few steps and planned. A run is a process of its own
(scripts/gpu/train.py); peaks are of the whole run, calls those after the warm-up. All
must compute the same losses, and memplan may reserve no more than native and its arena.
The cases that do not fit their plan train with another batch size than was recorded,
or with another stream.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.runner import (
    MEMPLAN,
    ROOT,
    BenchError,
    Comparison,
    Contender,
    Figures,
    Metric,
    Suite,
    run_child,
)
from bench.steps import make_plan

PROGRAM = str(ROOT / "scripts" / "gpu" / "train.py")
SETTING = "PYTORCH_CUDA_ALLOC_CONF"
SAID = re.compile(r"^cuda (\{.*\})$", re.MULTILINE)
DIGEST = re.compile(r"^loss-sha256 (\w+)$", re.MULTILINE)
SECONDS = re.compile(r"^seconds/step median ([\d.]+)$", re.MULTILINE)
# Arguments to train with, and those of the recording.
CASES = {
    "resnet50": ("resnet50 --batch-size 64", "--seed 1 --steps 6"),
    "gpt2-medium": ("gpt2-medium --batch-size 8", "--seed 1 --steps 6"),
    "unet": ("unet --batch-size 16", "--seed 1 --steps 6"),
    "seq2seq": ("seq2seq --batch-size 64", "--seed 1 --steps 24"),
    "gpt2 as planned": ("gpt2", "--steps 6"),
    "gpt2, half the batch": ("gpt2 --batch-size 4", "--batch-size 8 --steps 6"),
    "gpt2, twice the batch": ("gpt2 --batch-size 16", "--batch-size 8 --steps 6"),
    "gpt2, another stream": ("gpt2 --side-stream 400", "--side-stream 0 --steps 6"),
}


def contenders(
    case: tuple[str, str], args: argparse.Namespace, folder: Path
) -> Sequence[Contender]:
    """Native, expandable segments, and the plan of a recording made now."""
    trained, recorded = (text.split() for text in case)
    own = [*trained, "--steps", str(args.steps), *args.arguments]
    again = [PROGRAM, *trained, *args.arguments, *recorded]
    options = ("--device", "cuda", "--steps", "all")
    plan = make_plan(again, folder, args.timeout, *options)
    arena = json.loads(plan.read_text(encoding="utf-8"))["peak"]
    digests: set[str] = set()

    def run(command: list[str], setting: str) -> Figures:
        env = {name: value for name, value in os.environ.items() if name != SETTING}
        env |= {SETTING: setting} if setting else {}
        done = run_child(command, env=env, timeout=args.timeout)
        found = [p.search(done.output) for p in (SAID, DIGEST, SECONDS)]
        if None in found:
            raise BenchError("the program does not say what it took")
        said, digest, seconds = (match.group(1) for match in found if match)
        digests.add(digest)
        entries = json.loads(said)
        calls = entries["num_device_alloc"] + entries["num_device_free"]
        figures = {name: entries[name] for name in ("reserved", "allocated", "driver")}
        equal = {"same_losses": float(len(digests) == 1), "arena": arena}
        return figures | equal | {"calls": calls, "step_seconds": float(seconds)}

    plain = [sys.executable, PROGRAM, *own]
    planned = [*MEMPLAN, "apply", "-q", str(plan), PROGRAM, *own]
    return [
        Contender("native", lambda: run(plain, "")),
        Contender("expandable", lambda: run(plain, "expandable_segments:True")),
        Contender("memplan", lambda: run(planned, "")),
    ]


def check(found: Comparison) -> None:
    """Raises BenchError for other losses, or more bytes than native and the arena."""
    if found.failed:
        raise BenchError("; ".join(f"{n}: {why}" for n, why in found.failed.items()))
    runs = [run for figures in found.figures.values() for run in figures]
    if not all(run["same_losses"] for run in runs):
        raise BenchError(f"{found.case}: losses differ")
    most = {
        name: max(run["reserved"] for run in figures)
        for name, figures in found.figures.items()
    }
    if most.get("memplan", 0) > most["native"] + runs[0]["arena"]:
        raise BenchError(f"{found.case}: memplan reserves more than it may")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--arguments", nargs=argparse.REMAINDER, default=[], help="of the program"
    )


GB = 1e-9
SUITE = Suite(
    summary="Training on a GPU under torch's allocator and memplan.",
    cases=CASES,
    contenders=contenders,
    metrics=(
        Metric("reserved", "reserved GB", GB, 2),
        Metric("allocated", "allocated GB", GB, 2, compared=False),
        Metric("driver", "driver GB", GB, 2, compared=False),
        Metric("calls", "calls", 1, 0, compared=False),
        Metric("step_seconds", "ms per step", 1e3, 1),
    ),
    packages=("torch",),
    check=check,
    add_arguments=add_arguments,
)
