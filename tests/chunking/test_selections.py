"""Element-wise operators run on selections of their operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
nn = torch.nn

import memplan  # noqa: E402
from memplan.chunking.canonical import with_slices  # noqa: E402
from memplan.chunking.selections import selected_first  # noqa: E402
from memplan.chunking.workbench import Workbench  # noqa: E402
from memplan.graph.check import relative_error  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from tests.chunking.random_programs import evaluated  # noqa: E402
from tests.chunking.test_windows import lowered  # noqa: E402

pytestmark = pytest.mark.torch
STEPS, CHANNELS, STATE = 40, 256, 16  # more steps than a loop reaches over
DT, B = torch.rand(CHANNELS, STEPS), torch.randn(STEPS, STATE)


def scan(x: Any) -> Any:
    """A state-space model: [channels, steps] to [channels, steps]."""
    a = -torch.arange(1.0, STATE + 1)
    decays = (a[None, None] * DT[:, :, None]).exp()
    inputs = DT[:, :, None] * B[None] * x[:, :, None]
    state, found = torch.zeros(CHANNELS, STATE), []
    for i in range(STEPS):
        state = decays[:, i] * state + inputs[:, i, :]
        found.append(state.sum(-1))
    return torch.stack(found, 1)


def test_a_scan_multiplies_step_by_step() -> None:
    program, _ = lowered(scan, torch.randn(CHANNELS, STEPS))
    made, _ = selected_first(program)
    whole = CHANNELS * STEPS * STATE * 4
    assert profile(program).peak >= 2 * whole
    assert profile(made).peak <= whole // 2
    shapes = [made.metas[op.name].shape for op in made.ops]
    assert (CHANNELS, STEPS, STATE) not in shapes


def outer(x: Any) -> Any:
    """[64, 1, 256] times [1, 16, 256]: 16 times as large as its operands."""
    return x * torch.ones(1, 16, 256).cumsum(1)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: [each.sum() for each in outer(x).unbind(1)], id="all"),
        pytest.param(
            lambda x: [outer_part.sum() for outer_part in (outer(x).sin().split(4, 1))],
            id="slices behind two operators",
        ),
        pytest.param(
            lambda x: ((y := outer(x)).select(1, -1), y.narrow(1, 2, 5)), id="some"
        ),
        pytest.param(
            lambda x: ((y := x * torch.ones(16, 256).sin())[0], y[1]),
            id="of one without the dimension",
        ),
    ],
)
def test_selections_come_first(function: Callable[..., Any]) -> None:
    def run(x: Any) -> Any:
        return tuple(function(x))

    x = torch.randn(64, 1, 256)
    program, inference = lowered(run, x)
    program = with_slices(program, inference)
    made, _ = selected_first(program)
    assert len(made.ops) > len(program.ops)
    assert profile(made).peak < profile(program).peak
    (given,) = program.inputs
    one, other = (evaluated(each, {given: x}) for each in (program, made))
    for ref in program.outputs:
        assert relative_error(one[ref.name], other[ref.name]) <= 1e-6


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: (outer(x).select(1, 3),), id="one part"),
        pytest.param(
            lambda x: ((y := outer(x)).narrow(1, 0, 3), y.narrow(1, 2, 3)),
            id="overlaps",
        ),
        pytest.param(
            lambda x: ((y := outer(x)).select(1, 0), y.select(0, 1)),
            id="two dimensions",
        ),
        pytest.param(
            lambda x: ((y := outer(x)).select(1, 0), y.select(1, 1), y), id="given"
        ),
        pytest.param(
            lambda x: ((y := outer(x)).select(1, 0), y.select(1, 1), y.sum()),
            id="read elsewhere",
        ),
        pytest.param(
            lambda x: tuple(outer(x).select(2, i) for i in range(8)), id="small parts"
        ),
        pytest.param(
            lambda x: ((y := x.expand(64, 64, 256).cumsum(1).exp())[0], y[1]),
            id="operands as large",
        ),
        pytest.param(
            lambda x: (
                (y := x.flatten()[:, None] * torch.ones(4).double())[:, 0],
                y[:, 1],
            ),
            id="of another type",
        ),
        pytest.param(
            lambda x: ((y := outer(x).softmax(-1)).select(1, 0), y.select(1, 1)),
            id="not element-wise",
        ),
    ],
)
def test_where_nothing_changes(function: Callable[..., Any]) -> None:
    program, _ = lowered(function, torch.randn(64, 1, 256))
    assert selected_first(program) == (program, ())


W = torch.arange(3)


@pytest.mark.parametrize("operator", ["mul", "eq"])
def test_an_operand_that_becomes_a_number_keeps_its_type(operator: str) -> None:
    def function(x: Any) -> Any:
        y = getattr(torch, operator)(x[:, None], W)
        return y[:, 0], y[:, 1], y[:, 2]

    x = torch.arange(4096)
    same, _ = lowered(function, x)
    other, _ = lowered(function, x.int())
    assert len(selected_first(same)[1]) == 1
    assert selected_first(other) == (other, ())


def twice(x: Any) -> Any:
    """Selections of what is made of selections."""
    first, second = outer(x).split(8, 1)
    return tuple((first * second.exp()).unbind(1))


@pytest.mark.parametrize("function", [scan, twice])
def test_it_can_be_done_again(function: Callable[[Any], Any]) -> None:
    x = torch.randn((CHANNELS, STEPS) if function is scan else (64, 1, 256))
    program, inference = lowered(function, x)
    program = with_slices(program, inference)
    made, names = selected_first(program)
    assert names and len(set(names)) == len(names)
    repeated, same = selected_first(program, names)
    assert set(same) == set(names)
    assert {op.name for op in repeated.ops} == {op.name for op in made.ops}
    few = x[: len(x) // 8]
    if function is twice:
        small, inference = lowered(function, few)
        small = with_slices(small, inference)
        assert len(selected_first(small)[1]) < len(names)  # some parts are small
        again, _ = selected_first(small, names)
        assert [op.name for op in again.ops] == [op.name for op in repeated.ops]


def test_names_that_others_have_are_not_used() -> None:
    def function(x: Any, select_x: Any) -> Any:
        y = x * torch.ones(16, 256).sin()
        return y[0] + select_x, y[1]

    x = torch.randn(64, 1, 256)
    program, _ = lowered(lambda x: function(x, x.sum()), x)
    program.metas["select_x"] = program.metas[program.inputs[0]]
    made, _ = selected_first(program)
    names = [op.name for op in made.ops]
    assert "select_x" not in names and "select_x_" in names


class Scan(nn.Module):
    def forward(self, x: Any) -> Any:
        return scan(x)


def test_a_model_that_scans_keeps_to_a_budget() -> None:
    torch.manual_seed(0)
    x = torch.randn(CHANNELS, STEPS)
    options = memplan.ChunkOptions(max_slowdown=None)
    small = memplan.chunk(Scan().eval(), x, "50%", options=options)
    assert small.memplan.measured_bytes_after <= small.memplan.budget_bytes
    assert relative_error(scan(x), small(x)) <= 1e-5


def test_its_plan_serves_again(tmp_path: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(CHANNELS, STEPS)
    options = memplan.ChunkOptions(max_slowdown=None)
    small = memplan.chunk(Scan().eval(), x, "50%", options=options)
    (part,) = small.memplan.parts
    assert part.again and not part.regions  # no loop is needed
    memplan.write_chunk_plan(small.memplan, tmp_path / "p.json")
    again = memplan.chunk(Scan().eval(), x, plan=tmp_path / "p.json", options=options)
    assert again.memplan.parts == small.memplan.parts
    assert again.memplan.measured_bytes_after == small.memplan.measured_bytes_after


def test_the_program_as_it_is_and_one_that_selects_first_are_both_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build, built = Workbench.build, []

    def watched(self: Any, trials: Any, limit: int) -> Any:
        built.append(trials[""].again)
        return build(self, trials, limit)

    monkeypatch.setattr(Workbench, "build", watched)
    options = memplan.ChunkOptions(max_slowdown=None)
    x = torch.randn(CHANNELS, STEPS)
    memplan.chunk(Scan().eval(), x, "80%", options=options)  # both are within it
    assert () in built and any(built)
