"""A model exported once with its sizes open is at each size what an export gives."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch")

from memplan.graph import sizes  # noqa: E402
from memplan.graph.call import Form, Inputs  # noqa: E402
from memplan.graph.capture import capture  # noqa: E402
from memplan.graph.export import NotExportableError  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.sizes import OpenTarget, named_alike, open_dims, opened  # noqa: E402

pytestmark = pytest.mark.torch
nn: Any = torch.nn
WIDTH = 8


class Attention(nn.Module):  # type: ignore[misc]
    """With a mask of its own, cut from a table, and a table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.Linear(WIDTH, 3 * WIDTH)
        self.register_buffer("mask", torch.ones(64, 64).tril().bool())
        self.positions = nn.Embedding(64, WIDTH)

    def forward(self, x: Any) -> Any:
        n = x.shape[1]
        x = x + self.positions(torch.arange(n))
        q, k, v = self.heads(x).view(x.shape[0], n, 3, 2, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) / n
        scores = scores.masked_fill(~self.mask[:n, :n], -1e9)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Sliced(nn.Module):  # type: ignore[misc]
    """Slices that at some sizes are of all there is."""

    def forward(self, x: Any) -> Any:
        y = torch.cat([x[:, :40], x[:, -3:]], 1)
        return {"sum": y.sum(1), "all": y[:, : y.shape[1]].relu()}


class Masked(nn.Module):  # type: ignore[misc]
    """Whose second input has a size of the first."""

    def forward(self, x: Any, mask: Any) -> Any:
        return x.masked_fill(mask[..., None] > 0, 0.0).softmax(1)


def convolutions() -> Any:
    layers = (
        nn.Conv1d(WIDTH, 4, 3, 2, 1),
        nn.GroupNorm(2, 4),
        nn.Upsample(scale_factor=2),
    )
    return nn.Sequential(*layers).eval()


def taken(program: Any) -> list[object]:
    """What is called and with what; a slice from the start is one from 0."""
    slices = torch.ops.aten.slice.Tensor
    return [
        (op.name, op.target, [_start(x, op.target is slices) for x in op.args])
        for op in program.ops
    ]


def _start(value: object, of_a_slice: bool) -> str:
    return repr(0 if of_a_slice and value is None else value)


def open_at(model: Any, inputs: Inputs, dims: Any, seconds: float) -> OpenTarget:
    """Exported at the sizes of these inputs."""
    shapes = [tuple(x.shape) for x in inputs.tensors()]
    return opened(model, inputs, shapes, frozenset(dims), seconds)


@functools.cache
def exported(case: str) -> OpenTarget:
    """With both sizes open."""
    model, shape = CASES[case]
    inputs = of(*shape(14, 3), mask=case == "masked")
    dims = open_dims(Form.of(of(*shape(17, 4), mask=case == "masked")), Form.of(inputs))
    assert len(dims) == 2 * len(inputs.tensors())
    return open_at(model, inputs, dims, 1.0)


def of(*shape: int, mask: bool = False) -> Inputs:
    x = torch.randn(*shape)
    return Inputs.of((x, torch.randn(*shape[:2])) if mask else x)


CASES = {
    "attention": (Attention(), lambda n, b: (b, n, WIDTH)),
    "sliced": (Sliced(), lambda n, b: (b, n + 40, 5)),
    "masked": (Masked(), lambda n, b: (b, n, 5)),
    "convolutions": (convolutions(), lambda n, b: (b, WIDTH, n)),
}


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=5, deadline=None)
@given(n=st.integers(4, 60), batch=st.integers(2, 5))
def test_at_a_size_it_is_what_an_export_gives(case: str, n: int, batch: int) -> None:
    model, shape = CASES[case]
    given, inference = of(*shape(n, batch), mask=case == "masked"), Inference()
    found = exported(case).at(given, inference)
    expected = capture(model, given).program
    program = named_alike(found.program, expected, inference)
    assert program is not None
    assert program.metas == expected.metas
    assert program.roots == expected.roots
    assert taken(program) == taken(expected)
    assert repr(program.outputs) == repr(expected.outputs)
    assert program.inputs == expected.inputs
    assert program.constants == expected.constants
    assert program.modules == expected.modules
    assert found.form == Form.of(given)


class Branching(nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return x.relu() if x.shape[0] % 4 == 0 else x.exp()


class Fixed(nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return x * float(int(x.shape[0]))


def test_where_other_operators_may_run_it_is_refused() -> None:
    target = open_at(Branching(), of(12, 2), {(0, 0)}, 1.0)
    target.at(of(20, 2), Inference())
    with pytest.raises(NotExportableError, match="it was exported for sizes with Eq"):
        target.at(of(13, 2), Inference())
    with pytest.raises(NotExportableError, match="for a size of 2, not 3"):
        target.at(of(12, 3), Inference())
    with pytest.raises(NotExportableError, match="for sizes with"):
        target.at(of(0, 2), Inference())
    with pytest.raises(NotExportableError, match="differ in more than sizes"):
        target.at(of(12), Inference())
    target = open_at(Fixed(), of(12, 2), {(0, 0)}, 1.0)
    with pytest.raises(NotExportableError, match="for a size of 12, not 13"):
        target.at(of(13, 2), Inference())


def test_a_module_that_changed_is_another() -> None:
    model = convolutions()
    target = open_at(model, of(2, WIDTH, 12), {(0, 2)}, 1.0)
    assert target.same(model)
    assert not target.same(convolutions())
    model[2].scale_factor = 3.0
    assert not target.same(model)


def test_other_operators_have_no_names() -> None:
    x = of(12, 2)
    relu, exp = capture(nn.ReLU(), x).program, capture(Branching(), of(13, 2)).program
    assert named_alike(relu, exp, Inference()) is None
    both = capture(nn.Sequential(nn.ReLU(), nn.ReLU()), x).program
    assert named_alike(both, relu, Inference()) is None


class Endless(nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        while x.shape[0] != 12:
            x = x + 1
        return x


def test_an_export_with_open_sizes_that_takes_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sizes, "LEAST_SECONDS", 0.1)
    with pytest.raises(NotExportableError, match="takes more than"):
        open_at(Endless(), of(11, 2), {(0, 0)}, 0.1)


def test_the_callers_tensors_are_left_as_they_were() -> None:
    x = torch.randn(12, 2)
    open_at(nn.ReLU(), Inputs.of(x), {(0, 0)}, 1.0)
    assert not vars(x)
    with pytest.raises(NotExportableError):
        open_at(Endless(), Inputs.of(x[:11]), {(0, 0)}, -10.0)
    assert not vars(x)


def test_wider_weights_are_others() -> None:
    model = nn.Linear(4, 4)
    target = open_at(model, of(3, 4), {(0, 0)}, 1.0)
    assert target.same(model)
    model.weight = nn.Parameter(torch.randn(6, 4))
    assert not target.same(model)
