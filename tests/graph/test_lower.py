"""Exported graphs in canonical form: less operators, the same results."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from memplan.chunking.code import compiled, source  # noqa: E402
from memplan.graph.export import NotExportableError, export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.liveness import (  # noqa: E402
    lifetimes,
    overwrites,
    profile,
)
from memplan.graph.lower import UnsupportedGraphError, lower  # noqa: E402
from memplan.graph.program import Program, Ref  # noqa: E402
from memplan.graph.weights import Weights  # noqa: E402


class Of(nn.Module):
    """A module of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("kept", torch.ones(4))

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def lowered(function: Callable[..., Any], *args: Any) -> Program:
    """The program of a function, which gives what the function gives."""
    model = Of(function).eval()
    exported = export(model, args, {})
    program = lower(exported, Inference())
    run = compiled(source(program, "lowered"), "lowered")
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    found = run(tensors, Weights(model, exported.constants))
    expected = model(*args)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    return program


def keys(program: Program) -> list[str]:
    return [op.key.removeprefix("aten.") for op in program.ops]


X = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda m, x: nn.functional.dropout(x + 1, 0.5, False), ["add"]),
        (lambda m, x: (x + 1).detach(), ["add"]),
        (lambda m, x: (x + 1).contiguous(), ["add"]),
        (lambda m, x: (x + 1).to(torch.float32), ["add"]),
        (lambda m, x: (x + 1).clone(), ["add"]),
        (lambda m, x: torch.ones(3, 4) * (x + 1), ["add"]),
        (lambda m, x: (x + 1, (x * 2).sum())[0], ["add"]),
        (lambda m, x: (x + 1).view(4, 3), ["add", "reshape"]),
        (lambda m, x: x.clone(), ["clone"]),
        (lambda m, x: torch.zeros_like(x), ["full"]),
        (lambda m, x: torch.full_like(x, 3) - x, ["full", "sub"]),
    ],
)
def test_operators_that_do_nothing_are_dropped(
    function: Callable[..., Any], left: list[str]
) -> None:
    assert keys(lowered(function, X)) == left


@pytest.mark.parametrize(
    ("beta", "alpha", "left"),
    [
        (0, 1, ["bmm"]),
        (0, 0.5, ["bmm", "mul"]),
        (1, 1, ["baddbmm"]),
    ],
)
def test_a_product_that_adds_nothing(
    beta: float, alpha: float, left: list[str]
) -> None:
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    program = lowered(
        lambda m, c, a, b: torch.baddbmm(c, a, b, beta=beta, alpha=alpha),
        torch.randn(2, 3, 5),
        a,
        b,
    )
    assert keys(program) == left


def test_plain_arguments_are_no_inputs() -> None:
    program = lowered(lambda m, x, n: x * n, X, 3)
    assert len(program.inputs) == 1


def test_constants_of_the_code_are_found() -> None:
    table = torch.arange(4.0)
    program = lowered(lambda m, x: x + table + m.kept, X)
    assert "kept" in program.constants.values()


def test_source_lines_are_the_users() -> None:
    program = lowered(lambda m, x: nn.functional.softmax(x, -1), X)
    assert __file__ in program.ops[-1].line


def test_where_all_lines_are_torchs_the_module_is_named() -> None:
    inner = nn.Sequential(nn.Linear(4, 8), nn.GELU())
    model, x = nn.Sequential(inner, nn.Linear(8, 4)).eval(), torch.ones(2, 4)
    program = lower(export(model, (x,), {}), Inference())
    assert [op.line for op in program.ops] == [
        "module 0.0 (Linear)",
        "module 0.1 (GELU)",
        "module 1 (Linear)",
    ]
    program = lower(export(nn.Linear(4, 8).eval(), (x,), {}), Inference())
    assert [op.line for op in program.ops] == ["module Linear"]


def test_a_users_folder_may_be_called_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    code = "class Double(nn.Module):\n  def forward(self, x):\n    return x * 2\n"
    (folder / "mine_in_torch.py").write_text(f"from torch import nn\n{code}")
    monkeypatch.syspath_prepend(str(folder))
    model = importlib.import_module("mine_in_torch").Double().eval()
    (op,) = lower(export(model, (X,), {}), Inference()).ops
    assert op.line == f"{folder / 'mine_in_torch.py'}:4"


def test_what_writes_to_buffers_or_inputs_is_refused() -> None:
    def counts(model: Any, x: torch.Tensor) -> torch.Tensor:
        model.kept.add_(1)
        return x + model.kept

    for function, said in (
        (counts, "buffer 'kept'"),
        (lambda m, x: x.add_(1), "input"),
    ):
        with pytest.raises(UnsupportedGraphError, match=f"writes to its {said}"):
            lower(export(Of(function).eval(), (X.clone(),), {}), Inference())


def test_what_depends_on_data_is_refused_in_a_line() -> None:
    model = Of(lambda m, x: x if float(x.sum()) > 0 else -x).eval()
    with pytest.raises(NotExportableError) as raised:
        export(model, (X,), {})
    assert "\n" not in str(raised.value)


def over(program: Program) -> dict[str, str]:
    return overwrites(program, *lifetimes(program))


def test_results_lie_over_operands_that_die() -> None:
    program = lowered(lambda m, x: ((x + 1) * 2).relu(), X)
    assert over(program) == {"mul": "add", "relu": "mul"}


def given_out(y: torch.Tensor) -> Any:
    return y, y.relu()


def used_later(y: torch.Tensor) -> Any:
    return y.relu() + y


def read_twice(y: torch.Tensor) -> Any:
    return y * y.t()


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: x * 2,  # the caller's
        lambda m, x: (x.exp(), x.exp().relu())[0],
        lambda m, x: given_out(x.exp()),  # given out
        lambda m, x: used_later(x.exp()) - (m.kept * 1),  # used later
        lambda m, x: read_twice(x[:, :3].exp()),  # read twice
        lambda m, x: m.kept.relu(),  # the model's
    ],
)
def test_others_do_not(function: Callable[..., Any]) -> None:
    program = lowered(function, X)
    for name, operand in over(program).items():
        position = {op.name: i for i, op in enumerate(program.ops)}
        root = program.roots[operand]
        readers = [
            i
            for i, op in enumerate(program.ops)
            if any(program.roots[each] == root for each in op.operands())
        ]
        assert root in position
        assert max(readers) == position[name]
    first = {op.name: op for op in program.ops}
    for name in over(program):
        assert first[name].key != "aten.relu"


def written_to(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    y[:, ::2] = y[:, ::2].sin()
    y[0] = y[1] + y[2]
    y[:, :2].zero_()
    y.view(-1).relu_()
    return y


def test_what_is_assigned_is_written_where_it_goes() -> None:
    """No copy of what is assigned, nor of what it is assigned to."""
    program = lowered(lambda m, x: written_to(x), X)
    assert not {"copy", "zero"} & set(keys(program))
    kinds = {op.name: op.key for op in program.ops}
    written = {kinds[name]: operand for name, operand in over(program).items()}
    assert {"aten.slice_scatter", "aten.select_scatter", "aten.relu"} <= written.keys()
    assert profile(program).peak == 1.5 * 4 * X.numel()  # of float32


def test_what_the_caller_gave_is_not_given_back() -> None:
    def assigned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x.exp()
        z.copy_(y)
        return z

    program = lowered(lambda m, x, y: assigned(x, y), X, X + 1)
    assert program.outputs != (Ref("y"),)
