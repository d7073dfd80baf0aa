"""A chunked module on inputs of other sizes: the same regions, checked first."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import memplan  # noqa: E402
from memplan.chunking import shapes  # noqa: E402
from memplan.chunking.options import BudgetError, ChunkOptions  # noqa: E402
from memplan.errors import InputError, UsageError  # noqa: E402
from memplan.graph.check import relative_error  # noqa: E402
from memplan.graph.measure import activation_peak  # noqa: E402
from tests.chunking import models  # noqa: E402

pytestmark = pytest.mark.torch
ANY = ChunkOptions(max_slowdown=None)
CALLED = ChunkOptions(max_slowdown=None, other_sizes=False)  # `prepare` is to be called


def checked(small: Any, model: Any, *args: Any) -> int:
    """The peak of a call, whose results are right and which keeps to the budget."""
    with torch.no_grad():
        assert relative_error(model(*args), small(*args)) <= 1e-5
    peak = activation_peak(lambda: small(*args))
    assert peak <= small.memplan.budget_bytes
    return peak


@pytest.mark.parametrize("make", [models.attention, models.mlp, models.conv])
def test_smaller_inputs_keep_to_the_budget(make: Any) -> None:
    model, x = make()
    share = "70%" if make is models.conv else "40%"
    small = memplan.chunk(model, x, share, options=ANY)
    checked(small, model, x)
    budget = small.memplan.budget_bytes
    for part in (0.95, 0.05):
        size = max(3, int(x.shape[-2] * part))
        other = torch.randn(*x.shape[:-2], size, x.shape[-1])
        before = activation_peak(lambda other=other: model(other))
        peak = checked(small, model, other)
        assert peak <= min(budget, before)
    checked(small, model, x)
    if make is models.attention:
        checked(small, model, torch.randn(2, 60, 16))


def test_prepared_before_it_is_called(attention: Any) -> None:
    x, small = attention[1], memplan.chunk(*attention[:2], "30%", options=CALLED)
    model = small.model
    other = torch.randn(1, 101, 16)
    with (
        torch.no_grad(),
        pytest.warns(UserWarning, match=r"call prepare\(\) with such"),
    ):
        assert torch.equal(small(other), model(other))
    small.prepare(other)
    small.prepare({"x": other, "mask": None})
    checked(small, model, other)
    checked(copy.deepcopy(small), model, other)
    again = memplan.chunk(model, x, plan=small.memplan, options=CALLED)
    again.prepare((other,))
    checked(again, model, other)


def test_nests_and_keywords() -> None:
    model = models.Nested().eval()

    def given(tokens: int) -> dict[str, Any]:
        one, other = torch.randn(2, 1, tokens, 16).unbind()
        return {"pair": {"first": one, "others": (other,)}, "scale": 2.0}

    small = memplan.chunk(model, given(128), "30%", options=ANY)
    inputs = given(77)
    with torch.no_grad():
        assert relative_error(model(**inputs), small(**inputs)) <= 1e-5
        other = {**given(128), "scale": 3.0}
        with pytest.warns(UserWarning, match=r"chunked for 2\.0, not 3\.0"):
            assert relative_error(model(**other), small(**other)) == 0


def test_what_it_cannot_be_prepared_for() -> None:
    model, x = models.attention()
    small = memplan.chunk(model, x, "30%", options=ANY)
    for other, said in (
        (torch.randn(1, 256, 16), "chunk it with the largest"),
        # More than at first, unless results were written over their operands.
        (torch.randn(1, 144, 16), "chunk it with the largest"),
        (torch.randn(1, 64, 16).double(), "differ otherwise"),
        (torch.randn(64, 16), "differ otherwise"),
        (torch.randn(1, 64, 8), "cannot take|fails on these inputs"),
    ):
        with pytest.raises(InputError, match=said):
            small.prepare(other)
        with (
            torch.no_grad(),
            pytest.warns(UserWarning, match="the model runs unchanged"),
        ):
            try:
                expected: Any = model(other)
            except (RuntimeError, ValueError) as error:
                with pytest.raises(type(error)):
                    small(other)
            else:
                assert torch.equal(small(other), expected)
    with pytest.raises(UsageError, match="not int"):
        small.prepare(3)


class Other(torch.nn.Module):
    """Has other operators where its input is short: a view, in front of what runs in
    chunks, and another activation after it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = models.Attention()
        self.positions = torch.nn.Parameter(torch.randn(128, 16))

    def forward(self, x: Any) -> Any:
        y = self.attention(x + self.positions[: x.shape[1]])
        return y.sin() if x.shape[1] < 100 else y.tanh()


def test_operators_outside_the_loops_may_be_others() -> None:
    model, x = Other().eval(), torch.randn(1, 128, 16)
    small = memplan.chunk(model, x, "30%", options=ANY)
    (part,) = small.memplan.parts
    assert not any("tanh" in name for each in part.regions for name in each.slices)
    checked(small, model, torch.randn(1, 110, 16))
    checked(small, model, torch.randn(1, 90, 16))


class Activated(torch.nn.Module):
    """Has another activation where its input is short."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 256), torch.nn.Linear(256, 16)

    def forward(self, x: Any) -> Any:
        y = self.up(x)
        return self.down(y.sin() if x.shape[1] < 100 else y.tanh())


def test_other_operators_are_refused() -> None:
    model, x = Activated().eval(), torch.randn(1, 128, 16)
    small = memplan.chunk(model, x, "30%", options=ANY)
    checked(small, model, torch.randn(1, 110, 16))
    with pytest.raises(InputError, match="runs other operators on inputs of these"):
        small.prepare(torch.randn(1, 90, 16))
    small(torch.randn(1, 10, 16))  # which fits the budget as it is


def test_a_budget_that_is_not_kept() -> None:
    model, x = models.attention()
    small = memplan.chunk(model, x, "30%", options=ANY)
    small.memplan = replace(small.memplan, budget_bytes=30_000)
    other = torch.randn(1, 120, 16)
    with pytest.raises(BudgetError, match="exceed its budget of") as found:
        small.prepare(other)
    assert found.value.floor > 30_000
    with torch.no_grad(), pytest.warns(UserWarning, match="exceed its budget of"):
        assert torch.equal(small(other), model(other))


def test_parts_are_prepared_too() -> None:
    model, x = models.Branching().eval(), torch.randn(1, 128, 16)
    small = memplan.chunk(model, x, "40%", options=CALLED)
    other = torch.randn(1, 120, 16)
    small.prepare(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checked(small, model, other)
        checked(small, model, x)


def test_parts_that_run_as_they_were_are_told_once() -> None:
    model, x = models.Branching().eval(), torch.randn(1, 128, 16)
    small = memplan.chunk(model, x, "40%", options=CALLED)
    other = torch.randn(1, 120, 16)
    with torch.no_grad(), pytest.warns(UserWarning, match="parts .*call prepare"):
        assert torch.equal(model(other), small(other))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small(other)
    model.first.double()
    with (
        pytest.warns(UserWarning, match=r"chunked with norm\.weight of 16 float32"),
        pytest.raises(RuntimeError),  # as the model does
    ):
        small(x)


def test_sizes_after_the_first_need_no_export(
    attention: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = attention[:2]
    told: list[str] = []
    options = ChunkOptions(max_slowdown=None, progress=told.append)
    small = memplan.chunk(model, x, "30%", options=options)
    checked(small, model, torch.randn(1, 101, 16))

    def never(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(shapes, "export_parts", never)
    monkeypatch.setattr(shapes, "opened", never)
    for size in (120, 100, 90):
        other = torch.randn(1, size, 16)
        assert activation_peak(lambda other=other: model(other)) > (
            small.memplan.budget_bytes
        )
        checked(small, model, other)
    assert not [each for each in told if "alone" in each]


def test_why_a_size_is_exported_alone_is_told() -> None:
    class Branching(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            y = torch.exp(x @ x.mT) @ x
            return y if x.shape[1] % 2 else y + 1

    told: list[str] = []
    options = ChunkOptions(max_slowdown=None, progress=told.append)
    model = Branching().eval()
    small = memplan.chunk(model, torch.randn(2, 128, 8), "50%", options=options)
    checked(small, model, torch.randn(2, 120, 8))
    assert not [each for each in told if "alone" in each]
    checked(small, model, torch.randn(2, 121, 8))
    (why,) = (each for each in told if "alone" in each)
    assert why.startswith("exporting for these sizes alone: it was exported for sizes")
