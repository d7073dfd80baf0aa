"""The largest batches that train on a GPU most of which another process holds."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator

from bench.gpu_case import BATCHES, Case
from bench.gpu_runs import BenchError, tell

_BALLAST = """\
import sys, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(max(free - int(sys.argv[1]), 0), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


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


def largest_batch(case: Case, mode: str, most: int, first: int = 0) -> int:
    """The largest batch that trains, to one part in 32; 0 if none does.

    first: is tried first; 0: the network's own. Raises OutOfTimeError.
    """

    def fits(batch: int) -> bool:
        try:
            with case.clock.turn((case.name, mode)):
                if mode == "memplan":
                    with_plan(case, batch)
                case.train(mode, batch)
        except BenchError as failure:
            tell(f"  {case.name} {mode} {batch}: {failure}")
            return False
        tell(f"  {case.name} {mode} {batch}: fits")
        return True

    good, bad = 0, most + 1
    batch = min(first or BATCHES[case.name], most)
    stride = max(batch // 8, 1) if first else batch
    while bad - good > max(1, good // 32):
        if fits(batch):
            good = batch
        else:
            bad = batch
        if bad > most:
            batch, stride = min(good + stride, most), 2 * stride
        elif good == 0 and first:
            batch, stride = max(bad - stride, 1), 2 * stride
        else:
            batch = (good + bad) // 2
    return good


def with_plan(case: Case, batch: int) -> None:
    """The plan for a batch that need not fit: one is made where it can be recorded."""
    with contextlib.suppress(BenchError):
        case.plan(batch)


def search_largest(cases: list[Case], args: argparse.Namespace) -> None:
    """Print each network's largest batches, with all but --largest GiB held by another
    process. Raises OutOfTimeError."""
    free = int(args.largest * (1 << 30))
    with ballast(free):
        for case in cases:
            found: dict[str, int] = {}
            reserved = [each.reserved for each in case.runs["native"]]
            batch = args.batch_size or BATCHES[case.name]
            first = int(batch * free / max(reserved)) if reserved else 0
            for mode in args.modes:
                found[mode] = largest_batch(case, mode, args.most, first)
                first = found[mode] or first
                print(f"{case.name}, largest batch, {mode}: {found[mode]}", flush=True)
