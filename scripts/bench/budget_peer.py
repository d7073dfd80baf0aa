"""Trains a network of program.py as a peer of `memplan solve --budget` does.

    python scripts/bench/budget_peer.py block:2 gpt2 --train --steps 10

eager; block:N, every Nth block in torch.utils.checkpoint; BACKEND:BUDGET, torch.compile
with that backend and torch's own activation_memory_budget.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import program
import torch
import torch._functorch.config
from torch import nn
from torch.utils.checkpoint import checkpoint

BLOCKS = ("Block", "TransformerEncoderLayer")


def every(model: nn.Module, number: int) -> None:
    """Keep only the inputs of every so manieth block."""
    blocks = [each for each in model.modules() if type(each).__name__ in BLOCKS]
    for block in blocks[::number]:
        forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        block.forward = forward  # type: ignore[method-assign]


def change(model: nn.Module, way: str) -> None:
    """Train `model` in another way from now on."""
    kind, _, value = way.partition(":")
    if kind == "block":
        every(model, int(value))
    elif kind != "eager":
        # Compile in this process: a pool of compilers would be measured as well.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        torch._functorch.config.activation_memory_budget = float(value)
        model.compile(backend=kind)


def main() -> None:
    """Run program.py on the rest of the command line."""
    way = sys.argv.pop(1)
    args = program.parse_arguments()
    torch.set_num_threads(args.threads or torch.get_num_threads())
    torch.manual_seed(args.seed)
    network = program.NETWORKS[args.network]
    model = network.build(args)
    change(model, way)
    assert network.train is not None
    network.train(model, args)


if __name__ == "__main__":
    main()
