"""Optimizers' memory: whose line it stands at, and when a step has ended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import fx, nn  # noqa: E402

import memplan  # noqa: E402
from memplan.recording.boundary import Boundaries  # noqa: E402
from memplan.trace.lives import Lives, lives_of  # noqa: E402
from memplan.trace.stacks import Phase  # noqa: E402
from memplan.trace.trace import (  # noqa: E402
    Action,
    Category,
    Trace,
)

SCRATCH = 5000  # numbers, of what the tests look for


class Own(torch.optim.SGD):
    """With a step of its own around that of PyTorch's, which may fail."""

    fails = False

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        kept = torch.zeros(SCRATCH)
        if self.fails:
            raise ValueError("no step")
        result = super().step(closure)
        del kept
        return result


def recorded(tmp_path: Path, program: Any) -> Trace:
    path = tmp_path / "t.parquet"
    with memplan.record(path, device="cpu", steps="all", force=True):
        program()
    return memplan.read_trace(path)


def phases_of(trace: Trace, size: int) -> list[Phase]:
    """In which blocks of this size were made, in order."""
    events = trace.events
    made = (events.action == Action.ALLOC) & (events.requested_size == size)
    return [trace.stacks.origin(int(each)).phase for each in events.stack[made]]


def lines_of(buffers: Lives, function: str) -> set[str]:
    """The operators at the lines of one function."""
    return {site.operator for site in buffers.sites if site.function == function}


def test_a_step_of_the_programs_own_has_its_lines(tmp_path: Path) -> None:
    def program() -> None:
        model = nn.Linear(8, 4)
        optimizer = Own(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            model(torch.randn(2, 8)).sum().backward()
            optimizer.step()

    trace = recorded(tmp_path, program)
    assert phases_of(trace, 4 * SCRATCH) == [Phase.OPTIMIZER] * 3
    operators = lines_of(lives_of(trace), "step")
    assert {"zeros", "clone"} & operators == {"zeros", "clone"}


def test_what_comes_after_a_step_that_raised_is_no_optimizers(tmp_path: Path) -> None:
    def program() -> None:
        model = nn.Linear(8, 4)
        optimizer = Own(model.parameters(), lr=0.1)
        for fails in (False, True, True):
            model(torch.randn(2, 8)).sum().backward()
            optimizer.fails = fails
            try:
                optimizer.step()
            except ValueError:
                torch.empty(SCRATCH + 1)

    trace = recorded(tmp_path, program)
    assert phases_of(trace, 4 * SCRATCH) == [Phase.OPTIMIZER] * 3
    assert phases_of(trace, 4 * (SCRATCH + 1)) == [Phase.OUTSIDE] * 2


def test_a_closures_passes_are_no_optimizers(tmp_path: Path) -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(8, SCRATCH), nn.Tanh())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(torch.randn(1, 8)).mean()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)

    trace = recorded(tmp_path, program)
    buffers = lives_of(trace)
    tanh = {site for site in buffers.sites if site.module == "1"}
    assert {site.function for site in tanh} == {"closure"}
    assert {site.operator for site in tanh} >= {"tanh", "TanhBackward0"}
    found = set(phases_of(trace, 4 * SCRATCH))
    assert found >= {Phase.FORWARD, Phase.BACKWARD}


def test_an_optimizer_in_a_backward_pass_is_one(tmp_path: Path) -> None:
    def program() -> None:
        model = nn.Linear(SCRATCH, 1, bias=False)
        optimizer = torch.optim.Adam(model.parameters())
        model.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
        for _ in range(3):
            model(torch.randn(2, SCRATCH)).sum().backward()

    trace = recorded(tmp_path, program)
    buffers = lives_of(trace)
    state = buffers.site[buffers.category == Category.OPTIMIZER_STATE]
    assert "<lambda>" in {buffers.sites[i].function for i in state}
    assert Phase.OPTIMIZER in phases_of(trace, 4 * SCRATCH)


def test_states_of_optimizers_that_come_and_go_are_told(tmp_path: Path) -> None:
    def program() -> None:
        for _ in range(4):  # where one was there may be another
            model = nn.Linear(SCRATCH, 1, bias=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            model(torch.randn(2, SCRATCH)).sum().backward()
            optimizer.step()
            del optimizer, model

    buffers = lives_of(recorded(tmp_path, program))
    of_state = buffers.size[buffers.category == Category.OPTIMIZER_STATE]
    assert of_state.tolist() == [4 * SCRATCH] * 4


def test_a_graphs_code_is_not_the_programs_own(tmp_path: Path) -> None:
    traced = fx.symbolic_trace(nn.Sequential(nn.Linear(8, SCRATCH), nn.ReLU()))
    buffers = lives_of(recorded(tmp_path, lambda: traced(torch.randn(2, 8))))
    assert {site.file for site in buffers.sites if site.file} == {__file__}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 tells of all calls")
def test_a_programs_profiler_sees_the_program_alone(tmp_path: Path) -> None:
    seen: set[str] = set()

    def look(frame: Any, event: str, _: Any) -> None:
        seen.add(frame.f_code.co_filename)

    def program() -> None:
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sys.setprofile(look)
        try:
            for _ in range(4):
                model(torch.randn(2, 8)).sum().backward()
                optimizer.step()
            with torch.no_grad():
                model(torch.randn(2, 8) * 2)
        finally:
            sys.setprofile(None)

    recorded(tmp_path, program)
    package = str(Path(memplan.__file__).parent)
    assert __file__ in seen
    assert not [file for file in seen if file.startswith(package)]
    assert Boundaries._active is None
