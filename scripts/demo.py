"""The main job on real input: ResNet-50 training, recorded, planned, drawn, applied.

Runs the commands a user would type, prints each before it runs, and ends with the
default allocator and the plan side by side, from whole runs of the same program.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from bench.child import Run, measure

ROOT = Path(__file__).parent.parent
SCRIPT = "scripts/train_resnet50.py"
WARMUP = 3
TIMEOUT = 1800.0


def memplan(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "memplan", *arguments]


def shown(command: list[str]) -> str:
    """The command as a user would type it."""
    words = (
        ["memplan", *command[3:]]
        if command[1:2] == ["-m"]
        else ["python", *command[1:]]
    )
    return shlex.join(words)


def run(*arguments: str) -> None:
    command = memplan(*arguments)
    print(f"\n$ {shown(command)}", flush=True)
    subprocess.run(command, cwd=ROOT, check=True)


def measured(command: list[str]) -> Run:
    print(f"\n$ {shown(command)}", flush=True)
    found = measure(command, None, WARMUP, TIMEOUT)
    print(f"  {found.seconds:.0f} s, losses {found.digest[:16]}", flush=True)
    return found


def table(default: Run, planned: Run) -> str:
    """Both runs, and the ratio, one figure a row."""
    mib = 1 << 20
    rows = [
        ("peak resident memory", default.peak_bytes, planned.peak_bytes, mib, "MiB"),
        ("page faults per step", default.step_faults, planned.step_faults, 1, ""),
        ("seconds per step", default.step_seconds, planned.step_seconds, 1, ""),
    ]
    lines = [f"{'ResNet-50 training':<24}{'default':>14}{'planned':>14}{'ratio':>9}"]
    for name, before, after, unit, suffix in rows:
        digits = 3 if name.startswith("seconds") else 0
        cells = [f"{v / unit:,.{digits}f} {suffix}".rstrip() for v in (before, after)]
        ratio = f"{after / before:.2f}" if before else "-"
        lines.append(f"{name:<24}{cells[0]:>14}{cells[1]:>14}{ratio:>9}")
    return "\n".join(lines)


def main() -> None:
    """Do the main job, and show what it brought."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo"))
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--image-size", type=int, default=160)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    folder = options.output
    folder.mkdir(parents=True, exist_ok=True)
    trace, plan = str(folder / "resnet50.parquet"), str(folder / "resnet50.plan.json")
    program = [SCRIPT, "--batch-size", str(options.batch_size)]
    program += ["--image-size", str(options.image_size), "--steps"]

    run("record", "--force", "-o", trace, *program, "6")
    run("solve", "--force", trace, "-o", plan)
    run("verify", plan, trace)
    run("plot", "--force", plan, "-o", str(folder / "packing.png"))
    run("plot", "--force", trace, "-o", str(folder / "memory.png"))
    default = measured([sys.executable, *program, str(options.steps)])
    planned = measured(memplan("apply", "-q", plan, *program, str(options.steps)))

    if default.digest != planned.digest:
        sys.exit("the losses differ: a plan must not change what a program computes")
    print("\nThe losses of both runs are equal to the last bit.\n")
    print(table(default, planned))
    print(f"\nPictures: {folder / 'packing.png'}, {folder / 'memory.png'}")


if __name__ == "__main__":
    main()
