"""What compile refuses or leaves alone, and what it leaves as it was."""

from __future__ import annotations

import random
import warnings
from collections import OrderedDict
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.errors import InputError, NoPlanError, UsageError  # noqa: E402
from memplan.graph import clock  # noqa: E402
from memplan.graph.check import relative_error  # noqa: E402
from tests.chunking import models  # noqa: E402
from tests.compiling.modules import SLOW, Perceptron, compiled, perceptron  # noqa: E402

pytestmark = pytest.mark.torch
SOAK = pytest.mark.soak


@torch.library.custom_op("memplan_tests::whole_storage", mutates_args=())
def whole_storage(x: torch.Tensor) -> torch.Tensor:
    """Fails on a tensor that shares its storage, as all in an arena do."""
    if x.untyped_storage().nbytes() != x.nbytes:
        raise RuntimeError("a part of a storage")
    return x + 1


@whole_storage.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Particular(nn.Module):
    def forward(self, x: Any) -> Any:
        return whole_storage(x.exp()).sum(0)


@torch.library.custom_op("memplan_tests::add_one_to", mutates_args={"x"})
def add_one_to(x: torch.Tensor) -> None:
    x.add_(1)


class Writing(nn.Module):
    def forward(self, x: Any) -> Any:
        y = x * 2
        add_one_to(y)
        return y


def test_an_operator_without_a_result_leaves_the_model_alone() -> None:
    x = torch.randn(64, 64)
    module = memplan.compile(Writing().eval(), x, options=SLOW)
    assert "a result is not a tensor" in module.memplan.reason
    assert torch.equal(module(x), Writing()(x))


def test_what_fails_in_an_arena_runs_as_it_was() -> None:
    x = torch.randn(8, 100)
    module = memplan.compile(Particular().eval(), x, options=SLOW)
    reason = "a part of a storage"
    assert module.memplan.status == "unchanged"
    assert module.memplan.reason.startswith("internal error: RuntimeError: ")
    assert module.memplan.reason.endswith(reason)
    assert torch.equal(module(x), Particular()(x))
    with pytest.raises(NoPlanError, match="internal error"):
        memplan.compile(Particular().eval(), x, "10%", options=SLOW)


def test_a_budget_that_is_kept_too_slowly_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clock, "MOST", 1)  # of dozens of plans, each is too slow
    model, x = models.mlp()
    options = memplan.CompileOptions(max_slowdown=1e-6)
    with pytest.raises(NoPlanError, match="times as long") as caught:
        memplan.compile(model, x, "40%", options)
    assert caught.value.peak
    least = memplan.compile(model, x, "min", options)
    assert least.memplan.status == "unchanged"


def test_a_budget_that_cannot_be_kept_is_refused() -> None:
    model, x = perceptron()
    with torch.no_grad():
        results = model(x).nbytes
    with pytest.raises(NoPlanError, match="results alone take") as caught:
        memplan.compile(model, x, results - 1, options=SLOW)
    assert caught.value.peak == results
    lowest = r"the lowest found in one arena is .*: aten\..* at .*\.py:\d+ needs most"
    with pytest.raises(NoPlanError, match=lowest) as caught:
        memplan.compile(model, x, results + 1, options=SLOW)
    assert caught.value.peak and caught.value.peak > results
    with pytest.raises(NoPlanError, match=r"the model itself, .* without loops, "):
        memplan.compile(models.Opaque().eval(), x, 10)


@pytest.mark.parametrize("ratio", [0, -1, float("nan")])
def test_a_limit_of_time_is_above_0(ratio: float) -> None:
    for options in memplan.CompileOptions, memplan.ChunkOptions:
        with pytest.raises(UsageError, match="above 0"):
            options(max_slowdown=ratio)


class Branches(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.exp() if x.sum() > 0 else x


def test_what_cannot_be_exported_runs_unchanged() -> None:
    model, x = Branches().eval(), torch.ones(3)
    module = memplan.compile(model, x)
    assert module.memplan.status == "unchanged"
    assert "torch.export" in module.memplan.reason
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(module(x), model(x))
        assert torch.equal(module(-x), -x)


def test_inputs_that_a_model_writes_to_are_put_back() -> None:
    model, x = Writes().eval(), torch.zeros(4)
    module = memplan.compile(model, x)
    assert module.memplan.status == "unchanged"
    assert not x.any()
    assert model.calls == 0


class Writes(nn.Module):
    calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x.add_(1)


class Says(Perceptron):
    def forward(self, x: Any) -> Any:
        print("called")
        return super().forward(x)


class Made(OrderedDict[str, Any]):
    """Makes what it is asked for, as the activations of transformers do."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()


ACTIVATIONS = Made(relu=nn.ReLU, gelu=nn.GELU)


class Tabled(Perceptron):
    def forward(self, x: Any) -> Any:
        return ACTIVATIONS["relu"](super().forward(x))


def test_a_table_that_makes_what_it_holds_stays() -> None:
    model, x = Tabled().eval(), torch.randn(256, 32)
    module = compiled(model, x)
    with torch.no_grad():
        assert torch.equal(module(x), model(x))
    assert list(ACTIVATIONS.items()) == [("relu", nn.ReLU), ("gelu", nn.GELU)]


class Draws(Perceptron):
    def forward(self, x: Any) -> Any:
        return super().forward(x) * random.random()


@pytest.mark.parametrize(
    ("kind", "reason"), [(Says, "prints"), (Draws, "draws random numbers")]
)
def test_what_a_model_does_beside_its_result_is_not_lost(
    kind: type[nn.Module], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.randn(256, 32)
    model = kind().eval()
    module = memplan.compile(model, x, options=SLOW)
    assert module.memplan.status == "unchanged"
    assert reason in module.memplan.reason
    with pytest.raises(NoPlanError, match=reason):
        memplan.chunk(model, x, "60%")
    capsys.readouterr()
    with torch.no_grad():
        first, second = module(x), module(x)
    assert capsys.readouterr().out == "called\n" * 2 * (kind is Says)
    assert torch.equal(first, second) == (kind is Says)


class Crossed(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return (x @ y.t()).softmax(-1) @ y


def test_one_tensor_as_two_arguments_is_no_plan_for_two() -> None:
    model, x, y = Crossed().eval(), torch.randn(64, 8), torch.randn(64, 8)
    for first in ((x, x), (x, x[:]), (x, y)):
        module = compiled(model, first)
        for pair in (first, (y, y), (y, x), (x[:], x)):
            assert relative_error(model(*pair), module(*pair)) <= 1e-5


def test_what_gains_nothing_runs_unchanged() -> None:
    module = memplan.compile(nn.Flatten().eval(), torch.randn(2, 3, 4))
    assert module.memplan.status == "unchanged"
    assert module.memplan.reason


def test_bad_arguments() -> None:
    model, x = perceptron()
    with pytest.raises(UsageError, match=r"an nn\.Module, not int"):
        memplan.compile(3, x)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="training mode"):
        memplan.compile(Perceptron(), x)
    with pytest.raises(UsageError, match=r"such as 25%, or min: .* is not a size"):
        memplan.compile(model, x, "many")
    with pytest.raises(InputError, match="fails on these inputs"):
        memplan.compile(model, torch.randn(3, 3))


def test_tensors_without_elements_are_no_defect() -> None:
    model, x = perceptron()
    plan = memplan.compile(model, x[:0], options=SLOW).memplan
    assert plan.reason == "it has tensors without elements"
    assert not plan.internal_errors
    module = memplan.compile(model, x, options=SLOW)
    with torch.no_grad(), pytest.warns(UserWarning, match="without elements"):
        assert module(x[:0]).shape == model(x[:0]).shape
