"""Plans to draw: made-up training steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import memplan
from memplan.core.plan import Plan, Source
from memplan.core.problem import Problem


@pytest.fixture(scope="session")
def step_plan() -> Callable[..., Plan]:
    """A plan of a training step: of each layer an activation, freed when the backward
    pass comes back to it, a temporary, and a gradient that outlives the step."""

    def make(layers: int = 12, *, wraps: bool = True) -> Plan:
        length, rows = 4 * layers, []
        for i in range(layers):
            size, back = 512 * (1 + i * i % 7) << 10, length - 2 * i - 1
            rows.append((2 * i, back + 1, size))
            rows.append((2 * i + 1, 2 * i + 2, size // 2))
            rows.append((back, 1 + i % 2 if wraps else length, size // 4))
        lower, upper, sizes = zip(*rows, strict=True)
        clock = length if wraps else None
        problem = Problem.of(lower, upper, sizes, alignment=512, length=clock)
        plan = memplan.solve(problem, "bestfit")
        return plan.coming_from(source=Source("net.parquet"))

    return make
