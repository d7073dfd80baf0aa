"""Training on a GPU under torch's allocator, its expandable segments, and memplan.

    python scripts/bench_gpu.py                         # the table
    python scripts/bench_gpu.py --largest 24            # and the largest batches that
                                                        # fit when 24 GiB are free
    python scripts/bench_gpu.py --seconds 500           # as much as there is time for
    python scripts/bench_gpu.py --output f.json         # and every run's figures
    python scripts/bench_gpu.py --table f.json          # the table of them once more

Each network is recorded for a few steps and planned; then it trains in turn under each
of the three, round after round. Peaks are of the whole run; a step's time is the median
of its medians, each step waiting for the device, and its ratio the median of those to
native's in the same round. Each run's figures are printed as it ends, too, on standard
error. Ends with 1 where a program failed, a figure is missing, or losses differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.gpu_case import BATCHES, Case
from bench.gpu_largest import search_largest
from bench.gpu_runs import MODES, BenchError, Clock, OutOfTimeError, tell
from bench.gpu_table import equal_losses, tables


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
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    parser.add_argument("--table", type=Path, metavar="FILE", help="only print it")
    return parser.parse_args(words)


class Bench:
    """All networks, and what is known of them by now."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        clock = Clock(args.seconds, args.timeout)
        self._args = args
        self.cases = [Case(name, args, folder, clock) for name in args.networks]
        self.well = True

    def figures(self) -> dict[str, Any]:
        return {
            "steps": self._args.steps,
            "free_gib": self._args.largest,
            "networks": {case.name: case.to_json() for case in self.cases},
        }

    def keep(self) -> None:
        """Write the figures down, if they are to be."""
        if self._args.output:
            text = json.dumps(self.figures(), indent=1)
            self._args.output.write_text(text + "\n", encoding="utf-8")

    def whole(self) -> bool:
        """Whether each network has a figure under each mode."""
        return all(
            (case.runs[mode] or not self._args.rounds)
            and (mode in case.largest or not self._args.largest)
            for case in self.cases
            for mode in self._args.modes
        )

    def run(self) -> None:
        """Everything. Raises OutOfTimeError."""
        if self._args.rounds:
            self._plan()
        for _ in range(self._args.rounds):
            for case in self.cases:
                for mode in self._args.modes:
                    if mode not in case.failed:
                        self._train(case, mode)
        if self._args.largest:
            search_largest(self.cases, self._args, self.keep)

    def _plan(self) -> None:
        for case in self.cases if "memplan" in self._args.modes else ():
            try:
                with case.clock.turn("plan"):
                    case.plan(case.batch)
                tell(f"{case.name}: planned")
            except BenchError as failure:
                self._failed(case, "memplan", failure)

    def _train(self, case: Case, mode: str) -> None:
        try:
            with case.clock.turn((case.name, mode)):
                made = case.train(mode, case.batch)
        except BenchError as failure:
            self._failed(case, mode, failure)
            return
        case.runs[mode].append(made)
        self.keep()
        tell(f"{case.name}, {mode}: {json.dumps(asdict(made))}")

    def _failed(self, case: Case, mode: str, failure: BenchError) -> None:
        """It is not tried again: there is little time on a GPU."""
        case.failed.add(mode)
        self.well = False
        tell("\n".join(filter(None, (f"{case.name}, {mode}: {failure}", failure.said))))


def main() -> None:
    args = parse_arguments()
    if args.table:
        print("\n".join(tables(json.loads(args.table.read_text(encoding="utf-8")))))
        return
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder))
        try:
            bench.run()
        except OutOfTimeError:
            tell(f"after {args.seconds:g} s there was no time for more")
        except BenchError as failure:  # nothing but those programs
            tell(str(failure))
            bench.well = False
        bench.keep()
    figures = bench.figures()
    print("\n".join(tables(figures)))
    sys.exit(not (bench.well and bench.whole() and equal_losses(figures)))


if __name__ == "__main__":
    main()
