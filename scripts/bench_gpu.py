"""What a plan saves on a GPU: against PyTorch's allocator, with and without
expandable segments.

    python scripts/bench_gpu.py                         # the table
    python scripts/bench_gpu.py --largest 24            # and the largest batches that
                                                        # fit when 24 GiB are free

Each network is recorded for a few steps and planned; then it trains in turn under each
of the three, round after round. Peaks are of the whole run, in GB; driver is what the
driver says is used at its end; calls are those of cudaMalloc and cudaFree by the
allocator after the warm-up; a step's time is the median of its medians, each step
waiting for the device. Losses must be equal bit for bit, or the row says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent
PROGRAM = str(SCRIPTS / "train_gpu.py")
MODES = ("native", "expandable", "memplan")
BATCHES = {"resnet50": 64, "gpt2-medium": 8, "unet": 16, "seq2seq": 64}
_SAID = re.compile(r"^cuda (\{.*\})$", re.MULTILINE)
_DIGEST = re.compile(r"^loss-sha256 (\w+)$", re.MULTILINE)
_SECONDS = re.compile(r"^seconds/step median ([\d.]+)$", re.MULTILINE)
_BALLAST = """\
import sys, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(max(free - int(sys.argv[1]), 0), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


class BenchError(Exception):
    """A program that did not end well."""


@dataclass(frozen=True)
class Run:
    """Of one run; bytes, calls after the warm-up, seconds a step."""

    reserved: int
    allocated: int
    driver: int
    calls: int
    seconds: float
    digest: str


def environment(mode: str) -> dict[str, str]:
    """What a run under `mode` gets: none of the user's own settings of an allocator."""
    unset = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    own = {name: value for name, value in os.environ.items() if name not in unset}
    if mode == "expandable":
        own[unset[0]] = "expandable_segments:True"
    return own


def run(command: Sequence[str], mode: str, timeout: float) -> str:
    """The output of Python with `command`. Raises BenchError."""
    try:
        done = subprocess.run(
            [sys.executable, *command],
            env=environment(mode),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"took more than {timeout:g} s: {' '.join(command)}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        raise BenchError(f"ended with {done.returncode}: {' '.join(command)}: {last}")
    return done.stdout


def read_run(output: str) -> Run:
    """What a training program printed. Raises BenchError if it is not all there."""
    found = [pattern.search(output) for pattern in (_SAID, _DIGEST, _SECONDS)]
    if not all(found):
        raise BenchError("a program did not say what it took")
    said, digest, seconds = (each.group(1) for each in found if each)
    entries = json.loads(said)
    calls = entries["num_device_alloc"] + entries["num_device_free"]
    return Run(
        entries["reserved"],
        entries["allocated"],
        entries["driver"],
        calls,
        float(seconds),
        digest,
    )


class Case:
    """One network, with its plan."""

    def __init__(self, name: str, args: argparse.Namespace, folder: Path) -> None:
        self.name, self._args = name, args
        self._trace, self._plan = folder / f"{name}.parquet", folder / f"{name}.json"

    def program(self, batch: int, steps: int) -> list[str]:
        return [
            *(PROGRAM, self.name, "--batch-size", str(batch), "--steps", str(steps)),
            *("--image-size", str(self._args.image_size)),
        ]

    def plan(self, batch: int) -> None:
        """Record some steps, and plan them."""
        steps = self._args.recorded_steps
        # What is recorded has to be there: seq2seq's lengths differ, so more of them.
        program = self.program(batch, steps * (4 if self.name == "seq2seq" else 1))
        memplan = ["-m", "memplan"]
        record = ["record", "-q", "--force", "--device", "cuda", "--steps", "all"]
        timeout = self._args.timeout
        run([*memplan, *record, "-o", str(self._trace), *program], "native", timeout)
        solve = ["solve", "--force", str(self._trace), "-o", str(self._plan)]
        run([*memplan, *solve], "native", timeout)

    def train(self, mode: str, batch: int) -> Run:
        """Raises BenchError."""
        program = self.program(batch, self._args.steps)
        if mode == "memplan":
            program = ["-m", "memplan", "apply", "-q", str(self._plan), *program]
        return read_run(run(program, mode, self._args.timeout))


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


@contextlib.contextmanager
def ballast(free: int) -> Iterator[None]:
    """Another process holds all of the GPU but `free` bytes."""
    with subprocess.Popen(
        [sys.executable, "-c", _BALLAST, str(free)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "held\n":
                raise BenchError("the rest of the GPU could not be held")
            yield
        finally:
            process.stdin.close()


def largest_batch(case: Case, mode: str, most: int) -> int:
    """The largest batch that trains, to one part in 32; 0 if none does."""

    def fits(batch: int) -> bool:
        try:
            if mode == "memplan":
                with_plan(case, batch)
            case.train(mode, batch)
        except BenchError as failure:
            print(f"  {case.name} {mode} {batch}: {failure}", file=sys.stderr)
            return False
        return True

    good, bad = 0, most + 1
    batch = min(BATCHES[case.name], most)
    while bad - good > max(1, good // 32):
        if fits(batch):
            good = batch
        else:
            bad = batch
        batch = min(good * 2, most) if bad > most else (good + bad) // 2
        if good == most:
            break
    return good


def with_plan(case: Case, batch: int) -> None:
    """The plan for a batch that need not fit: one is made where it can be recorded."""
    with contextlib.suppress(BenchError):
        case.plan(batch)


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--networks", nargs="+", choices=BATCHES, default=[*BATCHES])
    parser.add_argument("--batch-size", type=int, help="default: each network's own")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--recorded-steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=[*MODES])
    parser.add_argument("--largest", type=float, metavar="GIB")
    parser.add_argument("--most", type=int, default=1024, help="batch to try")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a program")
    return parser.parse_args(words)


def main() -> None:
    args = parse_arguments()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        cases = [Case(name, args, Path(folder)) for name in args.networks]
        print(header(), flush=True)
        for case in cases:
            runs: dict[str, list[Run]] = {mode: [] for mode in MODES}
            batch = args.batch_size or BATCHES[case.name]
            try:
                case.plan(batch)
            except BenchError as failure:
                print(f"{case.name}: {failure}", file=sys.stderr)
                failed = True
                continue
            for mode in args.modes * args.rounds:
                try:
                    runs[mode].append(case.train(mode, batch))
                except BenchError as failure:
                    print(f"{case.name}, {mode}: {failure}", file=sys.stderr)
                    failed = True
            print(row(case, runs), flush=True)
        if args.largest:
            with ballast(int(args.largest * (1 << 30))):
                for case in cases:
                    found = {
                        mode: largest_batch(case, mode, args.most)
                        for mode in args.modes
                    }
                    print(f"{case.name}, largest batch: {found}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
