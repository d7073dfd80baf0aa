"""What recording costs: one allocation and its free, in turns, in one process.

Times `torch.empty(256)` on one thread: torch's own allocator, the shim passing
through, and the shim recording without and with Python stacks. Each round runs all
of them one after the other, so that the ratios hold when the machine's speed drifts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from memplan.native import _alloc

LIBRARY = str(Path(torch.__file__).parent / "lib" / "libc10.so")


def nanoseconds(pairs: int) -> float:
    """Per allocation and free, averaged over `pairs` of them."""
    empty = torch.empty
    begin = time.perf_counter_ns()
    for _ in range(pairs):
        empty(256)
    return (time.perf_counter_ns() - begin) / pairs


def recording(pairs: int, stacks: bool) -> float:
    """The same while the shim records into a temporary journal."""
    with tempfile.TemporaryFile() as stream:
        _alloc.start_recording(os.dup(stream.fileno()), "{}", stacks, __file__ + "-")
        try:
            return nanoseconds(pairs)
        finally:
            error, seen, written = _alloc.stop_recording("{}")
            if error or seen != written:
                sys.exit(f"recording failed: errno {error}, {written} of {seen} events")


def main() -> None:
    """Print one row per kind: median, least and most, and the ratio to the first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pairs", type=int, default=200_000)
    options = parser.parse_args()
    torch.set_num_threads(1)

    nanoseconds(options.pairs)  # warm-up
    # Before the shim is installed, and in alternation with what it does afterwards:
    # torch's own allocator is what passing through costs less two calls, so both show.
    own = [nanoseconds(options.pairs) for _ in range(options.rounds)]
    fault = _alloc.install(LIBRARY)
    if fault:
        sys.exit(fault)
    kinds: dict[str, Callable[[], float]] = {
        "passing through": lambda: nanoseconds(options.pairs),
        "recording": lambda: recording(options.pairs, stacks=False),
        "recording stacks": lambda: recording(options.pairs, stacks=True),
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(options.rounds):
        for name, measure in kinds.items():
            times[name].append(measure())

    passing = times["passing through"]
    print(f"{'ns per allocation and free':<28}{'min':>8}{'median':>8}{'max':>8}  ratio")
    for name, values in {"torch's own": own, **times}.items():
        base = own if name == "passing through" else passing
        ratio = statistics.median(v / b for v, b in zip(values, base, strict=True))
        row = f"{min(values):>8.0f}{statistics.median(values):>8.0f}{max(values):>8.0f}"
        print(f"{name:<28}{row}  {ratio if name != 'torch' else 1:.2f}")
    print(
        "ratio: to passing through in the same round; passing through: to torch's own"
    )


if __name__ == "__main__":
    main()
