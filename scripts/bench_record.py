"""What recording costs: an allocation and its free, and a training step, in turns.

First `torch.empty(256)` on one thread: torch's own allocator, the shim passing through,
and the shim recording, without sites, with them, and with all calls. Then steps of two
models, a small one whose steps are little but overhead and a transformer, in seconds of
CPU time, recorded in the same ways. Each round runs all of them one after the other, so
that the ratios hold when the machine's speed drifts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import torch
from models.gpt2 import GPT2
from torch import nn
from torch.nn import functional

import memplan
from memplan.native import _alloc

LIBRARY = str(Path(torch.__file__).parent / "lib" / "libc10.so")
Stacks = Literal["none", "site", "python"]
Steps = Callable[[], None]


def nanoseconds(pairs: int) -> float:
    """Per allocation and free, averaged over `pairs` of them."""
    empty = torch.empty
    begin = time.perf_counter_ns()
    for _ in range(pairs):
        empty(256)
    return (time.perf_counter_ns() - begin) / pairs


def cpu_seconds(steps: Steps, repeat: int) -> float:
    """Of a step, averaged over `repeat` of them."""
    begin = time.process_time()
    for _ in range(repeat):
        steps()
    return (time.process_time() - begin) / repeat


def recorded(measure: Callable[[], float], stacks: Stacks) -> float:
    """What `measure` finds while it is recorded into a temporary file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.parquet"
        with memplan.record(path, device="cpu", steps="all", stacks=stacks):
            return measure()


def small() -> Steps:
    """A step of a perceptron: 30 µs of arithmetic, and what PyTorch adds."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, labels = torch.randn(64, 64), torch.randint(0, 10, (64,))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def transformer() -> Steps:
    """A step of GPT-2 with 4 layers of 256, on 128 tokens."""
    model = GPT2(2000, 128, 4, 256, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    text = torch.randint(2000, (1, 128))

    def step() -> None:
        optimizer.zero_grad()
        logits = model(text)
        functional.cross_entropy(logits.flatten(0, 1), text.flatten()).backward()
        optimizer.step()

    return step


def rounds(measure: Callable[[], float], count: int) -> dict[str, list[float]]:
    """Passing through, and recording in each way, in turns."""
    kinds: dict[str, Callable[[], float]] = {"passing through": measure}
    for stacks in get_args(Stacks):
        kinds[f"recording, {stacks}"] = lambda way=stacks: recorded(measure, way)
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(count):
        for name, each in kinds.items():
            times[name].append(each())
    return times


def show(title: str, times: dict[str, list[float]], scale: float) -> None:
    """One row per kind: least, median and most, and the median ratio to the first."""
    print(f"{title:<34}{'min':>9}{'median':>9}{'max':>9}  ratio")
    base = next(iter(times.values()))
    for name, values in times.items():
        scaled = [value * scale for value in values]
        ratio = statistics.median(v / b for v, b in zip(values, base, strict=False))
        row = f"{min(scaled):>9.4g}{statistics.median(scaled):>9.4g}{max(scaled):>9.4g}"
        print(f"  {name:<32}{row}  {ratio:.3f}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pairs", type=int, default=200_000)
    options = parser.parse_args()
    torch.set_num_threads(1)

    nanoseconds(options.pairs)  # warm-up
    own = [nanoseconds(options.pairs) for _ in range(options.rounds)]
    if fault := _alloc.install(LIBRARY):
        sys.exit(fault)
    times = rounds(lambda: nanoseconds(options.pairs), options.rounds)
    show("ns per allocation and free", {**times, "torch's own": own}, 1)
    for name, make, repeat in (("small", small, 300), ("transformer", transformer, 5)):
        step = make()
        cpu_seconds(step, repeat)  # warm-up
        found = rounds(lambda: cpu_seconds(step, repeat), options.rounds)  # noqa: B023
        show(f"CPU ms per step, {name}", found, 1e3)


if __name__ == "__main__":
    main()
