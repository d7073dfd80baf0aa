"""Programs under `memplan apply`, torch's default allocator, jemalloc and tcmalloc.

Each program is recorded and planned once. A run is a process of its own, which logs its
steps (step_log.py). memplan must print the same losses as the default, to the last
bit. Another allocator aligns blocks otherwise, and operators choose their kernels by
that: where its losses differ, its figures are of other kernels, and a note says so.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path

from bench.runner import (
    MEMPLAN,
    ROOT,
    BenchError,
    Contender,
    Figures,
    Metric,
    Suite,
)
from bench.steps import make_plan, measure_steps

PROGRAM = str(ROOT / "scripts" / "program.py")
PRELOADED = {"jemalloc": "jemalloc", "tcmalloc": "tcmalloc_minimal"}


@dataclass(frozen=True)
class Program:
    """Arguments of `program.py`, and those for a tiny model.

    steps: of a measured run; recorded: of the run that the plan is made from, 0 for as
    many.
    """

    arguments: str
    tiny: str
    steps: int = 15
    recorded: int = 0

    def command(self, steps: int, args: argparse.Namespace) -> list[str]:
        """The program and its arguments, without the interpreter."""
        sizes = self.tiny if args.tiny else ""
        counts = f"--steps {steps} --threads {args.threads}"
        return [PROGRAM, *shlex.split(f"{self.arguments} {sizes} {counts}")]


TINY_IMAGES = "--batch-size 2 --image-size 32 --classes 10"
TINY_RESNET = f"{TINY_IMAGES} --layers 1 1 1 1 --width 8"
SMALL_RESNET = "--layers 2 2 2 2 --width 32"
TINY_VIT = f"{TINY_IMAGES} --layers 1 --width 16 --heads 2"
TINY_TEXT = "--batch-size 2 --layers 1 --width 16 --heads 2 --vocabulary 50"
TINY_SENTENCES = "--batch-size 2 --longest 12 --vocabulary 50 --width 16"
SMALL_GPT2 = "--batch-size 4 --layers 4 --width 192 --heads 3 --vocabulary 8000"

# The first four have steps that are all alike.
PROGRAMS = {
    "resnet50": Program("resnet50 --train", TINY_RESNET),
    "gpt2": Program("gpt2 --train", f"{TINY_TEXT} --sequence-length 8"),
    "googlenet": Program("googlenet --train", TINY_IMAGES),
    "infer": Program("resnet50 --infer", TINY_RESNET),
    "seq2seq": Program("seq2seq --train", TINY_SENTENCES, 200, 24),
    "serve": Program(
        f"resnet50 --infer --serve 4 --image-size 160 {SMALL_RESNET}",
        TINY_RESNET,
        80,
        40,
    ),
    "serve-mixed": Program(
        f"resnet50 --infer --serve 4 --mixed --image-size 160 {SMALL_RESNET}",
        TINY_RESNET,
        80,
        40,
    ),
    "generate": Program(
        "decoder --infer --words 64", f"{TINY_TEXT} --longest 20", 12, 6
    ),
    "translator": Program(
        "translator --train", f"{TINY_TEXT} --longest 12 --epoch 3", 48, 24
    ),
    "gan": Program("gan --train", "--batch-size 2 --noise 8 --width 4"),
    "accumulating": Program(
        "resnet50 --train --batch-size 8 --image-size 96 --accumulated 4 --epoch 5 "
        f"{SMALL_RESNET}",
        f"{TINY_RESNET} --batch-size 4 --accumulated 2 --epoch 3",
    ),
    "workers": Program(
        "resnet50 --train --batch-size 8 --image-size 112 --workers 2 --epoch 5 "
        f"{SMALL_RESNET}",
        f"{TINY_RESNET} --workers 1 --epoch 3",
    ),
    "autocast": Program(
        f"gpt2 --train --autocast {SMALL_GPT2}", f"{TINY_TEXT} --sequence-length 8"
    ),
    "compiled": Program("vit --train --compiled --layers 4", TINY_VIT),
    "checkpointed": Program("vit --train --checkpointed --batch-size 12", TINY_VIT),
}


def contenders(
    program: Program, args: argparse.Namespace, folder: Path
) -> Sequence[Contender]:
    """The default allocator, memplan, and the preloaded libraries that are there."""
    steps = 8 if args.tiny else program.steps
    recorded = min(program.recorded or steps, steps)
    plan = make_plan(program.command(recorded, args), folder, args.timeout)
    command = program.command(steps, args)
    digests: dict[str, str] = {}

    def runner(name: str, words: list[str], preload: str | None) -> Contender:
        def run() -> Figures:
            found = measure_steps(words, preload=preload, timeout=args.timeout)
            if digests.setdefault(name, found.digest) != found.digest:
                raise BenchError("two runs computed different losses")
            same = found.digest == digests.get("default", found.digest)
            if name == "memplan" and not same:
                raise BenchError("memplan's losses differ from the default allocator's")
            return {**found.figures, "same_losses": float(same)}

        return Contender(name, run)

    found = [
        runner("default", [sys.executable, *command], None),
        runner("memplan", [*MEMPLAN, "apply", "-q", str(plan), *command], None),
    ]
    for name, library in PRELOADED.items():
        file = find_library(library)
        if file is None:
            print(f"{name} left out: lib{library} is not installed")
        else:
            found.append(runner(name, [sys.executable, *command], file))
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try it")


MIB = 1 / (1 << 20)
SUITE = Suite(
    summary="Programs under memplan apply and other allocators.",
    cases=PROGRAMS,
    contenders=contenders,
    metrics=(
        Metric("peak_bytes", "peak resident MiB", MIB, 1),
        Metric("steady_peak_bytes", "of steady steps MiB", MIB, 1),
        Metric("step_seconds", "s per step", 1, 4),
        Metric("step_cpu_seconds", "CPU s per step", 1, 4),
        Metric("step_faults", "page faults per step", 1, 1, compared=False),
        Metric("same_losses", "same losses", 1, 0, compared=False),
    ),
    packages=("torch",),
    add_arguments=add_arguments,
)
