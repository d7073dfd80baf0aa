"""Programs whose memory grows from step to step, and programs whose does not."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class _Run:
    """A small model and its optimizer; `step` trains on `rows` rows."""

    def __init__(self, kind: Any = torch.optim.SGD) -> None:
        torch.manual_seed(0)
        layers = nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)
        self.model = nn.Sequential(*layers)
        self.optimizer = kind(self.model.parameters(), lr=0.01)

    def step(self, rows: int = 16, x: Any = None) -> Any:
        x = torch.randn(rows, 32) if x is None else x
        labels = torch.randint(0, 8, (len(x),))
        self.out = self.model(x)
        loss = functional.cross_entropy(self.out, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def losses() -> None:
    run, kept = _Run(), []
    for _ in range(20):
        kept.append(run.step().detach().clone())


def hooks() -> None:
    run, kept = _Run(), []
    run.model[1].register_forward_hook(lambda *a: kept.append(a[2].detach().clone()))
    for _ in range(20):
        run.step()


def cache() -> None:
    run, seen = _Run(torch.optim.Adam), {}
    for i in range(24):
        seen[i] = torch.randn(16, 32) * 2
        run.step(x=seen[i])


class _Keeping(Dataset[Any]):
    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        self.kept.append(torch.randn(32))
        return self.kept[-1]


def loader() -> None:
    run = _Run()
    for x in DataLoader(_Keeping(), batch_size=16):
        run.step(x=x)


def history() -> None:
    run, joined = _Run(torch.optim.AdamW), torch.zeros(0, 8)
    for i in range(22):
        run.step(8 + (i * 7) % 13)
        joined = torch.cat([joined, run.out.detach()])


def now_and_then() -> None:
    run, kept = _Run(), []
    for i in range(40):
        run.step()
        if i % 4 == 0:
            kept.append(run.model(torch.randn(4, 32)).detach())


def plain() -> None:
    run = _Run(torch.optim.AdamW)
    for _ in range(20):
        run.step()


def variable() -> None:
    run, sizes = _Run(torch.optim.AdamW), random.Random(1)
    for _ in range(40):
        run.step(sizes.randint(4, 64))


def bounded() -> None:
    run, last = _Run(), deque(maxlen=5)
    for _ in range(24):
        last.append(run.step().detach().clone())


def accumulating() -> None:
    run = _Run(torch.optim.Adam)
    for _ in range(18):
        run.optimizer.zero_grad()
        for _ in range(4):
            run.model(torch.randn(8, 32)).sum().backward()
        run.optimizer.step()


def evaluating() -> None:
    run, filled, best = _Run(), {}, None
    for i in range(30):
        run.step()
        if i % 5 == 0:
            with torch.no_grad():
                run.model(torch.randn(128, 32))
            best = {k: v.clone() for k, v in run.model.state_dict().items()}
        filled.setdefault(i % 6, torch.zeros(100))
    del best


LEAKS = [losses, hooks, cache, loader, history, now_and_then]
SOUND = [plain, variable, bounded, accumulating, evaluating]


def programs() -> Iterator[tuple[Callable[[], None], bool]]:
    """Each program, and whether it leaks."""
    yield from ((program, True) for program in LEAKS)
    yield from ((program, False) for program in SOUND)
