"""Calls that programs make, a function each, and a training that goes on meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

CALLS: list[Callable[[], object]] = []
CUDA = "cuda"


def call(function: Callable[[], object]) -> Callable[[], object]:
    """Have it called, and told by its name."""
    CALLS.append(function)
    return function


class Training:
    """A loop of fixed shapes, whose tensors a plan can have."""

    def __init__(self) -> None:
        self.model = nn.Sequential(
            nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.LayerNorm(512)
        ).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.out = torch.empty(0, device=CUDA)

    def step(self) -> None:
        x = torch.randn(64, 512).cuda()
        self.out = self.model(x)  # lives on to the next step
        loss = self.out.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


training = Training()


def planned() -> torch.Tensor:
    """A tensor that lies in the plan's arena, if there is a plan."""
    return training.out.detach()
