"""Orders with few live bytes: memplan's search beside Inductor's reordering.

Both get the graph that Inductor schedules: its nodes after fusion, their dependencies,
and the sizes and lifetimes of its buffers. Inductor's own estimate gives the peak of
every order. Inductor takes the best of the given order and three heuristics
(torch._inductor.memory). The bound is memplan's, of all orders. Random graphs have many
branches. Nothing is compiled or run.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from models import published
from torch import nn

from bench.compile import CASES as MODELS
from bench.runner import BenchError, Comparison, Contender, Figures, Metric, Suite
from memplan.graph.order import Tasks, least_peak

# Graphs like those of others, and one that Dynamo does not trace.
LEFT_OUT = ("vgg", "squeezenet1_1", "esmfold")
OPEN, RECENT = 10, 12  # results of random graphs without a user, and before one
RANDOM = ((50, 0), (100, 1), (200, 2), (400, 3), (800, 4), (5000, 5))
DEEP = 100_000  # calls within calls: Inductor's search in depth has one per node


class Wired(nn.Module):
    """Products of random sizes; each takes two earlier ones."""

    def __init__(self, count: int, seed: int) -> None:
        super().__init__()
        chance = random.Random(seed)
        self.steps: list[tuple[int, int, int]] = []
        waiting, made = {0}, 1
        while made < count or len(waiting) > 1:
            full = made >= count or len(waiting) > OPEN
            among = waiting if full else set(range(max(0, made - RECENT), made))
            one = chance.choice(sorted(among))
            other = chance.choice(sorted(among - {one}) or [one])
            self.steps.append((one, other, chance.randint(1, 64)))
            waiting = waiting - {one, other} | {made}
            made += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = [x[:, :8] * 2]
        for one, other, rows in self.steps:
            left = x[:rows, : len(values[other])]
            values.append(torch.addmm(values[one][:1], left, values[other]))
        return values[-1]


def wired(count: int, seed: int) -> published.Built:
    return Wired(count, seed), (torch.randn(64, 64),)


CASES: dict[str, Callable[[], published.Built]] = {
    **{name: each for name, each in MODELS.items() if not name.startswith(LEFT_OUT)},
    **{f"random {count}": partial(wired, count, seed) for count, seed in RANDOM},
}


class _Found(BaseException):
    """Ends Inductor as soon as its nodes are in order."""


class Graph:
    """The nodes of a model that Inductor schedules, as given and as it orders them."""

    def __init__(self, build: Callable[[], published.Built]) -> None:
        self._memory: Any = importlib.import_module("torch._inductor.memory")
        config: Any = importlib.import_module("torch._inductor.config")
        model, inputs = build()
        torch.compiler.reset()
        sys.setrecursionlimit(DEEP)
        replaced = mock.patch.object(
            self._memory,
            "reorder_for_peak_memory",
            partial(self._seen, self._memory.reorder_for_peak_memory),
        )
        compiled: Any = torch.compile(model)
        try:
            with replaced, config.patch(force_disable_caches=True), torch.no_grad():
                compiled(*inputs)
        except _Found:
            return
        raise BenchError("Inductor ordered no nodes")

    def _seen(self, reorder: Any, nodes: Any, *given: Any) -> None:
        self.nodes, self._outputs = list(nodes), given[-1]
        begin = time.perf_counter()
        self.theirs = reorder(nodes, *given)
        self.seconds = time.perf_counter() - begin
        raise _Found

    def peak(self, nodes: Sequence[Any]) -> int:
        """By Inductor's estimate; no input of a model is freed."""
        return int(self._memory.estimate_peak_memory(nodes, {}, self._outputs)[0])

    def tasks(self) -> Tasks:
        """The nodes as memplan's search takes them."""
        number = {node: i for i, node in enumerate(self.nodes)}
        found = Tasks(
            [
                sum(1 << number[each] for each in node.mpi_node.pred_nodes)
                for node in number
            ],
            *([[] for _ in number] for _ in range(3)),
            [0] * len(number),
            [],
            [],
            set(),
        )
        for node, i in number.items():
            for buffer in node.get_outputs():
                plan = buffer.mpi_buffer
                if not plan.size_free:
                    continue
                maker = i
                if not plan.size_alloc:  # one of several results of the node before
                    (maker,) = (number[each] for each in node.mpi_node.pred_nodes)
                users = {maker, i, *(number[each] for each in plan.succ_nodes)}
                storage = len(found.size)
                found.makes[maker].append(storage)
                for each in users:
                    found.takes[each].append(storage)
                found.size.append(plan.size_free)
                found.users.append(sum(1 << each for each in users))
                if buffer.get_name() in self._outputs:
                    found.kept.add(storage)
        return found


def contenders(
    build: Callable[[], published.Built], args: argparse.Namespace, folder: Path
) -> Sequence[Contender]:
    """The given order, Inductor's and memplan's."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    graph = Graph(build)
    tasks = graph.tasks()

    def given() -> Figures:
        return {"peak": graph.peak(graph.nodes), "nodes": len(graph.nodes)}

    def inductors() -> Figures:
        return {"peak": graph.peak(graph.theirs), "seconds": graph.seconds}

    def ours() -> Figures:
        begin = time.perf_counter()
        order = least_peak(tasks)
        seconds = time.perf_counter() - begin
        peak = graph.peak([graph.nodes[i] for i in order.order])
        if peak != order.peak:
            raise BenchError(f"Inductor counts {peak} bytes, memplan {order.peak}")
        return {"peak": peak, "gap": peak / order.bound - 1, "seconds": seconds}

    return [
        Contender("as given", given),
        Contender("Inductor", inductors),
        Contender("memplan", ours),
    ]


def check(found: Comparison) -> None:
    """memplan's peak is never above Inductor's."""
    ours, theirs = (found.spread(each, "peak") for each in ("memplan", "Inductor"))
    if not ours or not theirs or ours.median > theirs.median:
        raise BenchError(f"{found.case}: {found.failed or 'Inductor has a lower peak'}")


SUITE = Suite(
    summary="Orders of graphs by memplan and by Inductor.",
    cases=CASES,
    contenders=contenders,
    metrics=(
        Metric("peak", "peak KiB", 1 / (1 << 10), 1),
        Metric("gap", "over the bound %", 100, 1, compared=False),
        Metric("nodes", "nodes", 1, 0, compared=False),
        Metric("seconds", "s", 1, 2, compared=False),
    ),
    packages=("torch", "transformers", "diffusers"),
    check=check,
)
