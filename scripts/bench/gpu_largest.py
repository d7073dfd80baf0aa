"""The largest batches that train on a GPU most of which another process holds."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator

from bench.gpu_case import Case
from bench.gpu_runs import BenchError, Run, tell

ROOM = 0.97  # of what is free: CUDA itself takes some

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


def largest_batch(case: Case, mode: str, args: argparse.Namespace) -> None:
    """Find the largest batch that trains, to one part in 32; 0 if none does.

    It is left in `case.largest`, with whether a larger one failed, trial by trial. The
    first that is tried is the network's own, or what another mode came to; what a run
    reserved tells about how many more there is room for. Raises OutOfTimeError.
    """
    free, most = args.largest * (1 << 30), args.most
    known = [batch for batch, _ in case.largest.values() if batch]
    batch = min(known[-1] if known else case.batch, most)
    stride, steps = 1, 0
    good, bad = 0, most + 1
    case.largest[mode] = 0, False
    while bad - good > max(1, good // 32):
        run = _trained(case, mode, batch)
        good, bad = (good, batch) if run is None else (batch, bad)
        case.largest[mode] = good, False
        if good and bad <= most:
            batch = (good + bad) // 2
        elif run:
            room = int(batch * min(ROOM * free / run.reserved, 4.0))
            if room <= batch:
                room = batch + (max(batch // 32, 1) << max(steps - 1, 0))
                steps += 1
            batch = min(room, most)
        else:
            stride = max(2 * stride, batch // (8 if known else 2))
            batch = max(batch - stride, 1)
    case.largest[mode] = good, True


def _trained(case: Case, mode: str, batch: int) -> Run | None:
    """The run, or None where the batch does not fit."""
    try:
        with case.clock.turn((case.name, mode)):
            if mode == "memplan":
                with_plan(case, batch)
            made = case.train(mode, batch)
    except BenchError as failure:
        tell(f"  {case.name} {mode} {batch}: {failure}")
        return None
    tell(f"  {case.name} {mode} {batch}: fits, {made.reserved / 1e9:.2f} GB reserved")
    return made


def with_plan(case: Case, batch: int) -> None:
    """The plan for a batch that need not fit: one is made where it can be recorded."""
    with contextlib.suppress(BenchError):
        case.plan(batch)


def search_largest(
    cases: list[Case], args: argparse.Namespace, found: Callable[[], object]
) -> None:
    """Find each network's largest batches, with all but --largest GiB held by another
    process; `found` is called when there is one more. Raises OutOfTimeError."""
    with ballast(int(args.largest * (1 << 30))):
        for case in cases:
            for mode in args.modes:
                largest_batch(case, mode, args)
                found()
