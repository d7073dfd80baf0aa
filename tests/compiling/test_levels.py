"""What each pass of compile brought."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.compiling import bench  # noqa: E402
from memplan.errors import NoPlanError  # noqa: E402
from tests.chunking import models  # noqa: E402
from tests.compiling.modules import SLOW  # noqa: E402

pytestmark = pytest.mark.torch
PASSES = ["one arena", "the best order found", "results over operands"]


class Branches(nn.Module):
    """Exported, both wide values live at once; in a better order, one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 4096), nn.Linear(8, 4096)
        self.third, self.fourth = nn.Linear(4096, 8), nn.Linear(4096, 8)

    def forward(self, x: Any) -> Any:
        a, b = self.first(x), self.second(x)
        return self.third(a.sigmoid()) + self.fourth(b.sigmoid())


def test_each_pass_is_measured_on_top_of_those_before() -> None:
    torch.manual_seed(0)
    model, x = Branches().eval(), torch.randn(64, 8)
    before = copy.deepcopy(model.state_dict())
    levels = memplan.compile_levels(model, x, options=SLOW)
    assert [each.name for each in levels] == PASSES
    plans = [each.plan for each in levels]
    assert all(each.status == "compiled" for each in plans)
    assert all(not memplan.verify(each.plan) for each in plans)
    wide = 64 * 4096 * 4
    as_given, ordered, over = (each.arena for each in plans)
    assert 3 * wide <= as_given < 3.1 * wide
    assert 2 * wide <= ordered < 2.1 * wide
    assert wide <= over < 1.1 * wide
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_loops_and_results_in_the_arena_come_last() -> None:
    options = memplan.CompileOptions(1e9, pack=False, reuse_outputs=True)
    model, x = models.mlp()
    levels = memplan.compile_levels(model, x, "40%", options)
    *first, loops, last = [each.name for each in levels]
    assert first == PASSES
    assert loops.endswith((" loop", " loops"))
    assert last == "results in the arena"
    plan = levels[-1].plan
    assert plan.loops == int(loops.split()[0]) > 0
    assert plan.requests_after == 0 < levels[-2].plan.requests_after
    assert plan.bytes_after <= 0.4 * plan.bytes_before


def test_kernels_are_a_pass(faster: None) -> None:
    layers = [nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 8, 3)]
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 8, 64, 64)
    options = memplan.CompileOptions(1e9, pack=True)
    levels = memplan.compile_levels(model, x, options=options)
    assert [each.name for each in levels] == [*PASSES, "memplan's kernels"]
    assert [each.plan.packed > 0 for each in levels] == [False] * 3 + [True]


def test_a_model_that_stays_unchanged_has_no_levels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "seconds", lambda runs, **_: [1.0] * len(runs))
    with pytest.raises(NoPlanError, match="no plan was found: it would"):
        memplan.compile_levels(nn.Identity().eval(), torch.randn(2))
