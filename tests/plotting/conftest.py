"""Plans to draw: made-up training steps, packed by a plain first fit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from memplan.core.plan import Plan, Source
from memplan.core.problem import Problem


def training_step(layers: int, seed: int = 0, *, wraps: bool = True) -> Problem:
    """Forward allocates, backward frees in reverse; gradients outlive the step."""
    rng = np.random.default_rng(seed)
    size = (rng.lognormal(0, 0.8, layers) * 4e6).astype(int) // 512 * 512 + 512
    rows: list[tuple[int, int, int]] = []
    clock = 0
    born = []
    for layer in range(layers):
        born.append(clock)
        rows.append((clock + 1, clock + 3, int(size[layer]) // 2 + 512))
        clock += 4
    dead = {}
    grads = []
    for layer in reversed(range(layers)):
        rows.append((clock, clock + 4, int(size[layer])))
        rows.append((clock + 1, clock + 2, int(size[layer]) // 4 + 512))
        grads.append((clock + 2, int(size[layer]) // 3 + 512))
        dead[layer] = clock + 4
        clock += 4
    length = clock + 4
    rows += [(born[i], dead[i], int(size[i])) for i in range(layers)]
    for start, bytes_ in grads:
        end = 1 + (start * 7) % 5 if wraps else length
        rows.append((start, end, bytes_))
    rows.sort()
    lower, upper, sizes = zip(*rows, strict=True)
    length_or_none = length if wraps else None
    return Problem.of(lower, upper, sizes, alignment=512, length=length_or_none)


def first_fit(problem: Problem, name: str = "") -> Plan:
    """Largest first, each at the lowest offset where it collides with none."""
    start, end = problem.lower, problem.upper.copy()
    offsets = np.zeros(len(problem), dtype=np.int64)
    top = np.zeros(len(problem), dtype=np.int64)
    wraps = problem.wraps
    placed = np.zeros(len(problem), dtype=bool)
    for i in np.argsort(-problem.size, kind="stable").tolist():
        if wraps[i]:
            alive = wraps | (end > start[i]) | (start < end[i])
        else:
            plain = (start < end[i]) & (end > start[i])
            around = (start < end[i]) | (end > start[i])
            alive = np.where(wraps, around, plain)
        rows = np.flatnonzero(placed & alive)
        rows = rows[np.argsort(offsets[rows], kind="stable")]
        below = np.maximum.accumulate(np.append(0, top[rows]))
        room = offsets[rows] - below[:-1] >= problem.padded[i]
        place = below[np.argmax(room)] if room.any() else below[-1]
        offsets[i], top[i] = place, place + problem.padded[i]
        placed[i] = True
    plan = Plan.of(problem, offsets, "firstfit")
    return plan.coming_from(source=Source(name))


@pytest.fixture(scope="session")
def step_plan() -> Callable[..., Plan]:
    """A plan of a training step of so many layers; the last call is repeated."""

    def make(layers: int = 12, *, wraps: bool = True) -> Plan:
        return first_fit(training_step(layers, wraps=wraps), "net.parquet")

    return make
