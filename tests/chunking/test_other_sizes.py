"""A chunked module on inputs of other sizes: the same regions, checked first."""

from __future__ import annotations

import copy
import threading
import warnings
from dataclasses import dataclass, replace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import memplan  # noqa: E402
from memplan.chunking import shapes  # noqa: E402
from memplan.chunking.options import BudgetError, ChunkOptions  # noqa: E402
from memplan.errors import InputError, UsageError  # noqa: E402
from memplan.graph.capture import capture  # noqa: E402
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


class Mlp(torch.nn.Module):  # type: ignore[misc]
    """With a hidden layer that is what takes memory, and `more` beside its result."""

    def __init__(self, more: Any = None) -> None:
        super().__init__()
        self.wide, self.thin = torch.nn.Linear(32, 256), torch.nn.Linear(256, 32)
        self.more, self.seen, self.scale = more, [0.0], 1.0
        self.register_buffer("table", torch.randn(200, 32))

    def forward(self, x: Any) -> Any:
        y = self.scale * self.thin(torch.nn.functional.gelu(self.wide(x)))
        return y if self.more is None else self.more(self, x, y)


@dataclass
class Sized:
    """A model in chunks for 200 rows. told: why other sizes are exported alone."""

    model: Any
    small: Any
    told: list[str]

    def check(self, rows: int, batch: int = 1) -> None:
        """Runs it on other sizes: results as the model's, and within the budget."""
        x = torch.randn(batch, rows, 32)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")
            found, expected = self.small(x), self.model(x)
        assert relative_error(expected, found) <= 1e-5
        assert activation_peak(lambda: self.small(x)) <= self.small.memplan.budget_bytes


def sized(more: Any = None, batch: int = 1) -> Sized:
    told: list[str] = []
    options = ChunkOptions(max_slowdown=None, progress=told.append)
    model = Mlp(more).eval()
    small = memplan.chunk(model, torch.randn(batch, 200, 32), "40%", options=options)
    return Sized(model, small, told)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The inputs of exports for one size."""
    found: list[Any] = []

    def noted(module: Any, inputs: Any, *given: Any) -> Any:
        found.append(inputs)
        return capture(module, inputs, *given)

    monkeypatch.setattr(shapes, "capture", noted)
    return found


def test_sizes_after_the_first_need_no_export(
    alone: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sized()
    made.check(150)
    monkeypatch.setattr(shapes, "opened", None)
    for rows in (151, 120, 90):
        made.check(rows)
    assert not alone


def test_each_dimension_that_changes_is_open(alone: list[Any]) -> None:
    made = sized(batch=4)
    for batch, rows in ((4, 150), (4, 140), (3, 200), (3, 199), (2, 180), (4, 160)):
        made.check(rows, batch)
    assert not alone


def halves(_: Any, x: Any, y: Any) -> Any:
    return y * (0.5 if x.shape[1] <= 170 else 2.0)


def test_sizes_that_take_another_way_are_opened_again(alone: list[Any]) -> None:
    made = sized(halves)
    for rows in (190, 180, 160, 150, 195, 140):
        made.check(rows)
    assert not alone


def text(_: Any, x: Any, y: Any) -> Any:
    return y, str(x.shape[1])


def number(_: Any, x: Any, y: Any) -> Any:
    return y, x.shape[1]


@pytest.mark.parametrize("more", [text, number])
def test_results_that_torch_has_no_symbols_for(more: Any, alone: list[Any]) -> None:
    made = sized(more)
    for rows in (150, 140):
        made.check(rows)
    assert alone or [each for each in made.told if each.startswith(shapes.ALONE)]


def noting(self: Any, x: Any, y: Any) -> Any:
    if x.shape[1] < 160:
        self.seen = [float(x.shape[1])]
    return y + self.seen[0]


def test_what_only_some_sizes_change_is_not_lost() -> None:
    made = sized(noting)
    made.check(180)
    with torch.no_grad(), pytest.warns(UserWarning, match="the model runs unchanged"):
        made.small(torch.randn(1, 150, 32))
    assert made.model.seen == [150.0]


def sliced(self: Any, x: Any, y: Any) -> Any:
    return y, self.table[: x.shape[1]]


def test_results_are_not_the_models_own_tensors() -> None:
    made = sized(sliced)
    for rows in (200, 150):
        with torch.no_grad():
            _, table = made.small(torch.randn(1, rows, 32))
        table.unsqueeze_(0)
    assert made.model.table.shape == (200, 32)


def test_changes_of_the_model_are_seen_at_new_sizes(alone: list[Any]) -> None:
    made = sized()
    made.check(150)
    made.model.scale = 3.0
    made.check(149)
    assert not alone


def test_a_copy_has_sizes_of_its_own(alone: list[Any]) -> None:
    made = sized()
    made.check(150)
    other = copy.deepcopy(made.small)
    with torch.no_grad():
        other.model.wide.weight.mul_(2)
    copied = Sized(other.model, other, made.told)
    for rows in (150, 149, 148):
        made.check(rows)
        copied.check(rows)
    assert not alone


def test_ctrl_c_while_sizes_are_opened(
    alone: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sized()

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shapes, "opened", interrupted)
        with torch.no_grad(), pytest.raises(KeyboardInterrupt):
            made.small(torch.randn(1, 150, 32))
    made.check(150)
    assert not alone


def test_other_threads_export_alone(alone: list[Any]) -> None:
    made = sized()
    thread = threading.Thread(target=made.check, args=(150,))
    thread.start()
    thread.join()
    assert len(alone) == 1
    made.check(149)
    assert len(alone) == 1
