"""What loops cost, by measured constants."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from memplan.chunking.region import Region, chunked  # noqa: E402
from memplan.chunking.rules.flow import Slice  # noqa: E402
from memplan.chunking.timing import Machine, calibrated, seconds  # noqa: E402
from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.program import Program  # noqa: E402

pytestmark = pytest.mark.torch


class Wide(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(32, 128), torch.nn.Linear(128, 32)

    def forward(self, x: Any) -> Any:
        return self.down(torch.relu(self.up(x)))


@pytest.fixture
def programs() -> tuple[Program, Inference]:
    inference = Inference()
    exported = export(Wide().eval(), (torch.randn(8, 64, 32),), {})
    return lower(exported, inference), inference


def looped(programs: tuple[Program, Inference], dim: int, step: int) -> Program:
    program, inference = programs
    slices = {op.name: Slice(dim) for op in program.ops}
    extent = (8, 64)[dim]
    return chunked(program, Region(slices, extent, step), inference)


def test_the_machine_is_measured() -> None:
    assert all(constant > 0 for constant in astuple(calibrated()))


def test_more_chunks_cost_more_calls(programs: tuple[Program, Inference]) -> None:
    machine = replace(Machine(), touched=float("inf"))
    few, many = (seconds(looped(programs, 1, step), machine) for step in (32, 4))
    assert 0 < few < many
    assert seconds(programs[0], machine) == 0


def test_short_runs_cost_more(programs: tuple[Program, Inference]) -> None:
    machine = replace(Machine(), touched=float("inf"))
    same_calls = replace(machine, call=0.0, slice=0.0, output=0.0, packed=float("inf"))
    outer, inner = (
        seconds(looped(programs, dim, step), same_calls)
        for dim, step in ((0, 4), (1, 2))
    )
    assert outer < inner
