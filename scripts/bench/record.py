"""What recording costs: an allocation with its free, and steps of two models.

The contenders: the shim that only passes requests through, and recordings without
stacks, with the line of each request, and with all Python frames.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

import torch
from models.gpt2 import GPT2
from torch import nn
from torch.nn import functional

import memplan
from bench.runner import BenchError, Contender, Figures, Metric, Suite, timed
from memplan.native import _alloc

LIBRARY = str(Path(torch.__file__).parent / "lib" / "libc10.so")
Stacks = Literal["none", "site", "python"]


def allocation() -> Callable[[], object]:
    """`torch.empty(256)`, and its free."""
    return lambda: torch.empty(256)


def perceptron() -> Callable[[], object]:
    """A step of 30 µs of arithmetic, and what PyTorch adds."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, labels = torch.randn(64, 64), torch.randint(0, 10, (64,))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def transformer() -> Callable[[], object]:
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


# What to do, and how often in a run.
CASES = {
    "allocation and free": (allocation, 200_000),
    "perceptron": (perceptron, 300),
    "GPT-2, 4 layers of 256": (transformer, 5),
}


def contenders(
    case: tuple[Callable[[], Callable[[], object]], int],
    args: argparse.Namespace,
    folder: Path,
) -> Sequence[Contender]:
    """The shim alone, and a recording with each kind of stacks."""
    torch.set_num_threads(args.threads)
    if fault := _alloc.install(LIBRARY):
        raise BenchError(fault)
    make, number = case
    run = timed(make(), number=max(1, number // args.divide))

    def recorded(stacks: Stacks) -> Figures:
        path = folder / "t.parquet"
        with memplan.record(path, device="cpu", steps="all", stacks=stacks, force=True):
            return run()

    def with_stacks(stacks: Stacks) -> Contender:
        return Contender(f"recorded, {stacks}", lambda: recorded(stacks))

    return [
        Contender("passing through", run),
        *(with_stacks(stacks) for stacks in get_args(Stacks)),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--divide", type=int, default=1, help="do it so much less")


SUITE = Suite(
    summary="What recording costs.",
    cases=CASES,
    contenders=contenders,
    metrics=(
        Metric("cpu_seconds", "CPU µs", 1e6, 2),
        Metric("seconds", "µs", 1e6, 2),
    ),
    packages=("torch",),
    add_arguments=add_arguments,
)
