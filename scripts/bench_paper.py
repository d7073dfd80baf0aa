"""Measure the networks of profile-guided memory optimization as its paper did.

    python scripts/bench_paper.py --json paper.json --plot paper.png

AlexNet, GoogLeNet, ResNet-50, Inception-ResNet and seq2seq, in training with several
batch sizes and in inference (Sekiyama et al., 2018, section 5). Each is recorded and
planned; then it runs once as it is and once under its plan, measured from outside, and
must print the same losses to the last bit. Three tables: the memory held (Figure 2),
the time planning takes (Figure 4), and what is proved of inference (section 5.2).

The sizes are for 2 cores and 24 GiB of memory, and smaller than the paper's. With a
GPU, the programs run there.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench import paper, paper_tables, ratios
from bench.child import BenchError
from bench.paper import NETWORKS, Case, Device, Result
from bench.paper_cuda import LAUNCHER, reserved_bytes
from bench.programs import DEFAULT, MEMPLAN
from bench_apply import (
    Options,
    add_run_arguments,
    interrupt,
    machine,
    run_one,
    write_json,
)

PROVED = ("alexnet", "googlenet")  # in inference; the two that CPLEX proved
LEAST_STEPS = 5  # fewer have none that repeats
WARMUP = 2


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure the paper's five networks, recorded, planned and run.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    names = list(NETWORKS)
    parser.add_argument("--programs", nargs="+", choices=names, default=names)
    parser.add_argument(
        "--batch-sizes",
        nargs="+",
        type=int,
        metavar="N",
        help="to train with, instead of those each network has",
    )
    parser.add_argument("--steps", type=int, default=6, help="steps a run")
    parser.add_argument(
        "--prove-seconds",
        type=float,
        default=60.0,
        help="that each method may take to prove inference optimal",
    )
    parser.add_argument(
        "--skip-runs", action="store_true", help="only record and plan, run nothing"
    )
    add_run_arguments(parser)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything to FILE, too"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw Figure 2: .png, .svg or .pdf"
    )
    args = parser.parse_args(argv)
    if args.steps < LEAST_STEPS or args.threads < 1:
        parser.error(f"--steps must be at least {LEAST_STEPS}, and --threads 1")
    if min(args.batch_sizes or [1]) < 1:
        parser.error("--batch-sizes must be at least 1")
    if args.prove_seconds <= 0:
        parser.error("--prove-seconds must be more than 0")
    suffixes = (".png", ".svg", ".pdf")
    if args.plot is not None and args.plot.suffix.lower() not in suffixes:
        parser.error(f"--plot: name a {', '.join(suffixes)} file")
    for file in (args.json, args.plot):
        if file is not None and not file.parent.is_dir():
            parser.error(f"there is no folder {file.parent}")
    return args


class Bench:
    """Measures case after case. folder: for what lasts no longer."""

    def __init__(self, args: argparse.Namespace, device: Device, folder: Path) -> None:
        self._args, self._device, self._folder = args, device, folder
        self._bases: dict[str, int] = {}

    def measure(self, case: Case) -> Result:
        """Record, plan and, unless told not to, run `case`. Raises BenchError."""
        args, program = self._args, case.program()
        steps = args.steps if args.tiny else max(args.steps, program.steps)
        recorded = self._command(case, min(program.recorded or steps, steps))
        command = self._command(case, steps)
        print(f"{case.network} {case.batch}: {' '.join(command)}", flush=True)
        trace = self._folder / f"{case.network}-{case.batch}.parquet"
        plan = trace.with_suffix(".plan.json")
        paper.record(recorded, trace, self._device, args.timeout)
        proves = case.network in PROVED and case.mode == "inference"
        limit = args.prove_seconds if proves else None
        result = Result(case, paper.solve(trace, plan, limit, args.timeout))
        trace.unlink()
        if args.skip_runs:
            return result
        if self._device.kind == "cuda":
            return run_on_cuda(result, command, plan, self._options(steps))
        base = self._base(case.mode)
        return run_on_cpu(result, command, plan, self._options(steps), base)

    def _command(self, case: Case, steps: int, tiny: bool = False) -> list[str]:
        tiny = tiny or self._args.tiny
        own = case.program().command(steps, self._args.threads, tiny)
        return [str(LAUNCHER), *own] if self._device.kind == "cuda" else own

    def _options(self, steps: int) -> Options:
        args = self._args
        return Options(steps, WARMUP, args.threads, 1, args.tiny, args.timeout)

    def _base(self, mode: str) -> int:
        """Bytes resident in training or inference without tensors, by and large."""
        if mode not in self._bases:
            command = self._command(paper.base_case(mode), LEAST_STEPS, tiny=True)
            run = run_one(DEFAULT, command, None, WARMUP, self._args.timeout)
            self._bases[mode] = paper.resident(run)
        return self._bases[mode]


def run_on_cpu(
    result: Result, command: list[str], plan: Path, options: Options, base: int
) -> Result:
    """Add what a run as it is and a run under the plan have resident above `base`."""
    runs = {
        of.name: run_one(of, command, plan, options.warmup, options.timeout)
        for of in (DEFAULT, MEMPLAN)
    }
    name = f"{result.case.network} {result.case.batch}"
    ratios.require_equal_losses(name, {of: [run] for of, run in runs.items()})
    default, planned = runs[DEFAULT.name], runs[MEMPLAN.name]
    return replace(
        result,
        held={
            "default": paper.resident(default) - base,
            "planned": paper.resident(planned) - base,
        },
        base=base,
        runs={"default": default.to_json(), "planned": planned.to_json()},
    )


def run_on_cuda(
    result: Result, command: list[str], plan: Path, options: Options
) -> Result:
    """Add what torch reserves, with either kind of segments, and what a plan does."""
    planned = run_one(MEMPLAN, command, plan, options.warmup, options.timeout)
    assert planned.report is not None
    devices = planned.report["device_memory"].values()
    return replace(
        result,
        held={
            "default": reserved_bytes(command, False, options.timeout),
            "expandable": reserved_bytes(command, True, options.timeout),
            "planned": max(device["reserved_peak"] for device in devices),
        },
        runs={"planned": planned.to_json()},
    )


def show(results: Sequence[Result], device: Device) -> None:
    """Print all tables."""
    tables = (
        paper_tables.memory_table(results, device),
        paper_tables.solve_table(results),
        paper_tables.proof_table(results),
    )
    print("\n" + "\n\n".join(filter(None, tables)), flush=True)


def to_json(
    results: Sequence[Result], device: Device, args: argparse.Namespace
) -> dict[str, Any]:
    """Everything that was found."""
    options = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(args).items()
    }
    return {
        "schema": "memplan.bench-paper",
        "version": 1,
        "machine": machine(),
        "device": asdict(device),
        "options": options,
        "results": [result.to_json() for result in results],
    }


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    about = ", ".join(f"{key} {value}" for key, value in machine().items())
    results: list[Result] = []
    try:
        device = paper.find_device(args.timeout)
        print(f"{about}\nmeasured on: {device.title}", flush=True)
        try:
            with tempfile.TemporaryDirectory(prefix="bench-paper-") as folder:
                bench = Bench(args, device, Path(folder))
                for case in paper.cases(args.programs, args.batch_sizes, args.tiny):
                    results.append(bench.measure(case))
        finally:  # whatever ends it: what was measured is not lost
            if results:
                show(results, device)
                write_json(args.json, to_json(results, device, args))
                draw(args.plot, results, device)
    except BenchError as error:
        print(f"bench_paper: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench_paper: interrupted", file=sys.stderr)
        return 130
    return 0


def draw(file: Path | None, results: Sequence[Result], device: Device) -> None:
    """Draw Figure 2 into `file`, if one was asked for."""
    if file is not None:
        # Not before the last run: matplotlib would swell the peaks of children.
        from bench.paper_plot import figure

        from memplan.plotting.save import save

        save(figure(results, device), file, force=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    sys.exit(main())
