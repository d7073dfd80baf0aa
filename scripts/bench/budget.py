"""Training within a budget: memplan beside what torch offers, at equal true peaks.

Each peer runs once to find its peak of live tensors; memplan then gets that peak as a
budget, and the 64 KiB that a plan leaves free. Peaks are counted by the recorder, or by
`memplan apply` itself, over the whole program. Losses that differ from eager's to the
last bit are noted.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.runner import (
    MEMPLAN,
    ROOT,
    BenchError,
    Contender,
    Figures,
    Metric,
    Suite,
    run_child,
)
from bench.steps import environment, measure_steps
from memplan.budgeting.choose import RESERVE
from memplan.trace.lives import lives_of
from memplan.trace.read import read_trace

PEER = str(ROOT / "scripts" / "bench" / "budget_peer.py")
WAYS = ("block:1", "block:2", "aot_eager_decomp_partition:0.5", "inductor:0.5")
GPT2 = "gpt2 --train --batch-size 4 --sequence-length 256 --width 256 --heads 8"
CASES = {
    "gpt2": f"{GPT2} --vocabulary 2000",
    "resnet50": "resnet50 --train --batch-size 6",
    "vit": "vit --train",
}


def contenders(
    case: str, args: argparse.Namespace, folder: Path
) -> Sequence[Contender]:
    """Eager, the peers, and memplan at the peak of each."""
    words = [*shlex.split(case), "--steps", str(args.steps), "--threads", "1"]
    digests: dict[str, str] = {}

    def child(*command: str) -> str:
        return run_child(command, env=environment(), timeout=args.timeout).output

    def recorded(way: str, *options: str) -> tuple[Path, int]:
        trace = folder / f"{way}.parquet"
        command = (*MEMPLAN, "record", "-q", *options, "-o", str(trace))
        child(*command, PEER, way, *words)
        taken = lives_of(read_trace(trace)).taken_bytes
        return trace, int(taken.max(initial=0))

    def runner(name: str, command: list[str], peak: int) -> Contender:
        def run() -> Figures:
            found = measure_steps(command, timeout=args.timeout)
            digests.setdefault(name, found.digest)
            same = found.digest == digests.get("eager", found.digest)
            own = {"peak_bytes": float(peak), "same_losses": float(same)}
            return found.figures | own

        return Contender(name, run)

    trace, eager = recorded("eager", "--activations")
    found = [runner("eager", [sys.executable, PEER, "eager", *words], eager)]
    for way in args.ways.split(","):
        _, peak = recorded(way)
        budget = peak + RESERVE
        found.append(runner(way, [sys.executable, PEER, way, *words], peak))
        plan, report = folder / f"{way}.plan.json", folder / f"{way}.json"
        name = f"memplan at {way}"
        try:
            solving = (*MEMPLAN, "solve", "-q", str(trace), "-o", str(plan))
            child(*solving, "--budget", str(budget))
        except BenchError as error:
            print(f"{name} left out: {error}")
            continue
        apply = [*MEMPLAN, "apply", "-q"]
        child(*apply, "--report", str(report), str(plan), PEER, "eager", *words)
        live = json.loads(report.read_text(encoding="utf-8"))["memory"]["most_live"]
        if live > budget:
            raise BenchError(f"{name}: {live} bytes were live")
        found.append(runner(name, [*apply, str(plan), PEER, "eager", *words], live))
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ways", default=",".join(WAYS), help="peers: %(default)s")
    parser.add_argument("--steps", type=int, default=12, help="of each run")


MIB = 1 / (1 << 20)
SUITE = Suite(
    summary="Training within a memory budget, beside torch's own ways.",
    cases=CASES,
    contenders=contenders,
    metrics=(
        Metric("peak_bytes", "most live MiB", MIB, 1),
        Metric("step_cpu_seconds", "CPU s per step", 1, 4),
        Metric("same_losses", "same losses", 1, 0, compared=False),
    ),
    packages=("torch", "PuLP"),
    add_arguments=add_arguments,
)
