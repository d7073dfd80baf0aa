"""What tests of compiled modules share.

Not in a file of tests: one that another imports runs twice, and to define an operator
again takes the first definition from torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import memplan

# Which layers run as kernels is a matter of time, so that here none do.
SLOW = memplan.CompileOptions(max_slowdown=1000.0, pack=False)


def compiled(model: nn.Module, inputs: Any, **given: Any) -> Any:
    found = memplan.compile(model, inputs, **{"options": SLOW, **given})
    assert found.memplan.status == "compiled", found.memplan.reason
    return found


def tape_of(module: Any) -> Any:
    """What the last call of a compiled module ran."""
    runner = module.runner
    with runner.arenas.slab(runner.schedule.bytes) as slab:
        return runner.tape(runner.schedule, slab)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 512), nn.Linear(512, 8)
        self.scale = 1.0

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).relu() * self.scale)


def perceptron() -> tuple[nn.Module, Any]:
    return Perceptron().eval(), torch.randn(256, 32)


def normalised() -> tuple[nn.Module, Any]:
    norm = nn.BatchNorm1d(512)
    nn.init.uniform_(norm.running_mean)
    layers = (nn.Linear(32, 512), norm, nn.ReLU(), nn.Linear(512, 8))
    return nn.Sequential(*layers).eval(), torch.randn(256, 32)
