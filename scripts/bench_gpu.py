"""What a plan saves on a GPU: against PyTorch's allocator, with and without
expandable segments.

    python scripts/bench_gpu.py                         # the table
    python scripts/bench_gpu.py --largest 24            # and the largest batches that
                                                        # fit when 24 GiB are free
    python scripts/bench_gpu.py --seconds 500           # as much as there is time for

Each network is recorded for a few steps and planned; then it trains in turn under each
of the three, round after round. Peaks are of the whole run, in GB; driver is what the
driver says is used at its end; calls are those of cudaMalloc and cudaFree by the
allocator after the warm-up; a step's time is the median of its medians, each step
waiting for the device. Losses must be equal bit for bit, or the row says so. Each run's
figures are printed as it ends, too, on standard error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.gpu_case import BATCHES, Case
from bench.gpu_largest import search_largest
from bench.gpu_runs import MODES, BenchError, Clock, OutOfTimeError, Run, tell


def row(case: Case, runs: dict[str, list[Run]]) -> str:
    """Of the table: for each mode its bytes, calls and time."""
    cells = [case.name]
    base = runs["native"]
    for mode in MODES:
        made = runs[mode]
        if not made:
            cells += ["-"] * 5
            continue
        worst = max(made, key=lambda each: each.reserved)
        ratios = [a.seconds / b.seconds for a, b in zip(made, base, strict=False)]
        cells += [
            *(f"{value / 1e9:.2f}" for value in (worst.reserved, worst.allocated)),
            f"{worst.driver / 1e9:.2f}",
            f"{worst.calls:,}",
            f"{statistics.median(ratios):.3f}",
        ]
    digests = {each.digest for made in runs.values() for each in made}
    cells.append("equal" if len(digests) == 1 else f"{len(digests)} different")
    return f"| {' | '.join(cells)} |"


def header() -> str:
    parts = ("reserved", "allocated", "driver", "calls", "time")
    names = ["network", *(f"{mode} {part}" for mode in MODES for part in parts)]
    names.append("losses")
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--networks", nargs="+", choices=BATCHES, default=[*BATCHES])
    parser.add_argument("--batch-size", type=int, help="default: each network's own")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--no-cudnn", action="store_true", help="train without it")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--recorded-steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=[*MODES])
    parser.add_argument("--largest", type=float, metavar="GIB")
    parser.add_argument("--most", type=int, default=1024, help="batch to try")
    parser.add_argument("--seconds", type=float, help="for all; default: no limit")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a program")
    return parser.parse_args(words)


def plan_all(cases: list[Case], args: argparse.Namespace) -> Iterator[Case]:
    """Those that could be recorded and planned. Raises OutOfTimeError."""
    for case in cases:
        try:
            with case.clock.turn("plan"):
                case.plan(args.batch_size or BATCHES[case.name])
        except BenchError as failure:
            tell(f"{case.name}: {failure}")
        else:
            yield case


def train_in_turn(cases: list[Case], args: argparse.Namespace) -> bool:
    """Every network under every mode, round by round; False where a program failed.
    Raises OutOfTimeError."""
    well = True
    for _ in range(args.rounds):
        for case in cases:
            for mode in args.modes:
                try:
                    with case.clock.turn((case.name, mode)):
                        batch = args.batch_size or BATCHES[case.name]
                        made = case.train(mode, batch)
                except BenchError as failure:
                    tell(f"{case.name}, {mode}: {failure}")
                    well = False
                    continue
                case.runs[mode].append(made)
                tell(f"{case.name}, {mode}: {json.dumps(asdict(made))}")
    return well


def main() -> None:
    args = parse_arguments()
    clock = Clock(args.seconds, args.timeout)
    with tempfile.TemporaryDirectory() as folder:
        cases = [Case(name, args, Path(folder), clock) for name in args.networks]
        planned: list[Case] = []
        well = True
        try:
            if args.rounds:
                planned.extend(plan_all(cases, args))
                well = len(planned) == len(cases)
                well = train_in_turn(planned, args) and well
            if args.largest:
                search_largest(cases, args)
        except OutOfTimeError:
            print(f"after {args.seconds:g} s there was no time for more", flush=True)
        if args.rounds:
            print("\n".join([header(), *(row(case, case.runs) for case in planned)]))
    sys.exit(not well)


if __name__ == "__main__":
    main()
