"""A snapshot of a GPU's memory as torch dumps it, small and without paths: a sample.

    python scripts/gpu/sample_snapshot.py --output sample.pickle

A few steps of training, a private pool, another stream and a request that fails are in
its history. Of the names of files only the last part is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import nn

STEPS = 4


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()


def everything() -> Any:
    """The snapshot of a program that did a little of everything."""
    memory = torch.cuda.memory
    older = torch.ones(100_000, device="cuda")  # before the history begins
    memory._record_memory_history(max_entries=100_000, stacks="python")
    layers = (nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.LayerNorm(256))
    model = nn.Sequential(*layers).cuda()
    train(model, torch.optim.AdamW(model.parameters()))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        block = torch.ones(300_000, device="cuda")
    block.record_stream(torch.cuda.current_stream())
    del block
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = torch.ones(5000, device="cuda")
    with contextlib.suppress(torch.OutOfMemoryError):
        torch.empty(torch.cuda.mem_get_info()[1] * 2, dtype=torch.uint8, device="cuda")
    del older
    torch.cuda.synchronize()
    snapshot = memory._snapshot()
    memory._record_memory_history(enabled=None)
    del kept
    return snapshot


def without_paths(value: Any) -> Any:
    """The same, but for the folders in names of files."""
    if isinstance(value, dict):
        return {
            key: Path(each).name if key == "filename" else without_paths(each)
            for key, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return type(value)(without_paths(each) for each in value)
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    scrubbed = without_paths(everything())
    with args.output.open("wb") as file:
        pickle.dump(scrubbed, file)
    print(f"{args.output}: {args.output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
