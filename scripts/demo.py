"""Record, plan, plot and apply ResNet-50 training: memplan's main job on real input.

Runs the commands a user would type, prints each before it runs, and ends with the
default allocator and the plan side by side, from whole runs of the same program.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from bench.apply import SUITE
from bench.runner import MEMPLAN, ROOT, Comparison, table
from bench.steps import StepRun, measure_steps

PROGRAM = ["scripts/program.py", "resnet50", "--train"]


def shown(command: list[str]) -> str:
    """The command as a user would type it."""
    typed = (
        ["memplan", *command[3:]] if command[1] == "-m" else ["python", *command[1:]]
    )
    return shlex.join(typed)


def run(*arguments: str) -> None:
    command = [*MEMPLAN, *arguments]
    print(f"\n$ {shown(command)}", flush=True)
    subprocess.run(command, cwd=ROOT, check=True)


def measured(command: list[str]) -> StepRun:
    print(f"\n$ {shown(command)}", flush=True)
    found = measure_steps(command)
    seconds = found.figures["seconds"]
    print(f"  {seconds:.0f} s, losses {found.digest[:16]}", flush=True)
    return found


def main() -> None:
    """Run all commands, and compare both runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo"))
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--image-size", type=int, default=160)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    folder = options.output
    folder.mkdir(parents=True, exist_ok=True)
    trace, plan = str(folder / "resnet50.parquet"), str(folder / "resnet50.plan.json")
    program = [*PROGRAM, "--batch-size", str(options.batch_size)]
    program += ["--image-size", str(options.image_size), "--steps"]

    run("record", "--force", "-o", trace, *program, "6")
    run("solve", "--force", trace, "-o", plan)
    run("verify", plan, trace)
    run("plot", "--force", plan, "-o", str(folder / "packing.png"))
    run("plot", "--force", trace, "-o", str(folder / "memory.png"))
    default = measured([sys.executable, *program, str(options.steps)])
    planned = measured([*MEMPLAN, "apply", "-q", plan, *program, str(options.steps)])

    if default.digest != planned.digest:
        sys.exit("the losses differ: a plan must not change what a program computes")
    print("\nThe losses of both runs are equal to the last bit.\n")
    runs = {"default": [dict(default.figures)], "planned": [dict(planned.figures)]}
    found = Comparison("ResNet-50 training", "default", runs)
    print(
        table(found, [each for each in SUITE.metrics if each.name in default.figures])
    )
    print(f"\nPictures: {folder / 'packing.png'}, {folder / 'memory.png'}")


if __name__ == "__main__":
    main()
