"""What less memory costs in time: the plans that nothing beats in both."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.compiling import bench  # noqa: E402
from memplan.compiling.compile import best_of  # noqa: E402
from memplan.compiling.report import CompilePlan  # noqa: E402
from memplan.errors import NoPlanError, UsageError  # noqa: E402
from memplan.graph.program import Loop  # noqa: E402
from memplan.units import budget_of, parse_bytes  # noqa: E402
from tests.chunking import models  # noqa: E402

pytestmark = pytest.mark.torch


def test_a_front_is_of_plans_that_nothing_beats() -> None:
    model, x = models.attention(tokens=256)
    before = copy.deepcopy(model.state_dict())
    found = memplan.compile_front(model, x)
    plans = found.plans
    assert not found.interrupted
    needed = [plan.bytes_after for plan in plans]
    ratios = [plan.slowdown for plan in plans]
    assert needed == sorted(needed, reverse=True)
    assert ratios == sorted(ratios)
    assert needed[-1] < 0.6 * plans[0].bytes_before  # without loops it takes more
    assert plans[-1].loops > 0
    assert all(not memplan.verify(plan.plan) for plan in plans if plan.plan)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_front_that_is_interrupted_says_so() -> None:
    def interrupts(stage: str) -> None:
        if stage.startswith("within"):
            raise KeyboardInterrupt

    options = memplan.CompileOptions(progress=interrupts)
    found = memplan.compile_front(*models.attention(tokens=256), options)
    assert found.interrupted
    assert [plan.loops for plan in found.plans] == [0]


def test_what_a_defect_dropped_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(bench.Runner):
        def __init__(self, target: Any, program: Any, *rest: Any) -> None:
            if any(isinstance(step, Loop) for step in program.ops):
                raise ZeroDivisionError("a defect")
            super().__init__(target, program, *rest)

    monkeypatch.setattr(bench, "Runner", Fails)
    found = memplan.compile_front(*models.attention(tokens=256))
    assert [plan.loops for plan in found.plans] == [0]
    assert list(found.internal_errors) == [
        "internal error: ZeroDivisionError: a defect"
    ]


@given(count=st.integers(0, 2**50))
def test_what_is_printed_is_a_budget_that_is_kept(count: int) -> None:
    assert count <= parse_bytes(budget_of(count)) <= 1.11 * count


def test_a_front_of_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "seconds", lambda runs, **_: [1.0] * len(runs))
    with pytest.raises(NoPlanError, match=r"no plan was found: .*neither memory"):
        memplan.compile_front(nn.ReLU().eval(), torch.randn(2))
    with pytest.raises(NoPlanError, match=r"the fastest would take .* limit is 0.00"):
        memplan.compile_front(*models.mlp(), memplan.CompileOptions(1e-9))
    with pytest.raises(NoPlanError, match=r"no plan was found: .*random"):
        memplan.compile_front(Noisy().eval(), torch.randn(2))
    with pytest.raises(UsageError, match="must be CompileOptions, not dict"):
        memplan.compile_front(nn.ReLU().eval(), torch.randn(2), {})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="training mode"):
        memplan.compile_front(nn.ReLU(), torch.randn(2))


class Noisy(nn.Module):
    def forward(self, x: Any) -> Any:
        return x + torch.rand_like(x)


POINTS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=8)


@given(points=POINTS, slowest=st.integers(1, 9))
def test_the_best_plans_are_those_that_no_other_beats(
    points: list[tuple[int, int]], slowest: int
) -> None:
    """The model itself is at (5, 5); each point is (bytes, seconds)."""
    plans = [
        CompilePlan("", "", "", 5, needs, seconds_before=5, seconds_after=seconds)
        for needs, seconds in points
    ]
    best = best_of(plans, slowest / 5)
    found = [(plan.bytes_after, plan.seconds_after) for plan in best]
    all_points = {(5, 5), *points}
    assert found == sorted(
        {
            (needs, seconds)
            for needs, seconds in points
            if seconds <= slowest
            and needs <= 5
            and (needs, seconds) != (5, 5)
            and not any(
                other != (needs, seconds) and other[0] <= needs and other[1] <= seconds
                for other in all_points
            )
        },
        key=lambda point: point[1],
    )
