"""Activation chunking on a GPU: bytes by torch's own count, times and errors.

    python scripts/gpu/chunked.py

Prints a JSON object for each model: its activation memory in MiB natively and in chunks
at a budget of 30 %, the ratio of the times, and the largest error relative to the
largest value; or why memplan refused it.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import chunk_gpt
import torch
from models.gpt2 import GPT2, VisionTransformer
from models.unet import UNet
from torch import Tensor, nn

import memplan
from memplan.errors import MemplanError

ROUNDS = 7
SLOW = memplan.ChunkOptions(max_slowdown=10.0)  # bytes are what is asked


def models() -> dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]]:
    def vision() -> nn.Module:
        return VisionTransformer(224, 1000, 6, 384, 6, patch=16)

    return {
        "attention written out": chunk_gpt.factory,
        "gpt2": lambda: (
            GPT2(8192, 1024, 4, 512, 8),
            (torch.randint(8192, (4, 1024)),),
        ),
        "vision transformer": lambda: (vision(), (torch.randn(16, 3, 224, 224),)),
        "unet": lambda: (UNet(), (torch.randn(2, 3, 256, 256),)),
    }


def peak(module: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    """MiB beyond what is there before the call."""
    module(*inputs)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    module(*inputs)
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def milliseconds(module: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    module(*inputs)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def main() -> None:
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    for name, make in models().items():
        model, inputs = make()
        model, inputs = model.cuda().eval(), tuple(x.cuda() for x in inputs)
        try:
            chunked = memplan.chunk(model, inputs, "30%", options=SLOW)
        except MemplanError as refusal:
            print(json.dumps({"chunk": name, "refused": str(refusal)}), flush=True)
            continue
        expected, found = model(*inputs), chunked(*inputs)
        error = float((expected - found).abs().max() / expected.abs().max())
        ratios = [
            milliseconds(chunked, inputs) / milliseconds(model, inputs)
            for _ in range(ROUNDS)
        ]
        row = {
            "chunk": name,
            "native_mib": peak(model, inputs),
            "chunked_mib": peak(chunked, inputs),
            "time_ratio": statistics.median(ratios),
            "error": error,
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
