"""Calls of compiled modules: other inputs, other weights, several at a time."""

from __future__ import annotations

import copy
import gc
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.compiling.kernels import Kernel  # noqa: E402
from memplan.fusing import decide  # noqa: E402
from memplan.graph.arenas import ARENAS  # noqa: E402
from memplan.graph.measure import activation_peak  # noqa: E402
from tests.chunking import models  # noqa: E402
from tests.compiling.modules import Perceptron, compiled, perceptron  # noqa: E402

pytestmark = pytest.mark.torch
SOAK = pytest.mark.soak


def test_weights_may_change() -> None:
    model, x = perceptron()
    module = compiled(model, x)
    with torch.no_grad():
        model.first.weight.mul_(2)
        assert torch.equal(module(x), model(x))
        model.second.bias.data = torch.randn(8)
        assert torch.equal(module(x), model(x))
        other = Perceptron()
        module.load_state_dict(other.state_dict())
        assert torch.equal(module(x), other(x))
        model.first = nn.Linear(32, 512)
        with pytest.warns(UserWarning, match="modules, attributes or hooks"):
            assert torch.equal(module(x), model(x))


def test_inputs_of_other_sizes_are_compiled_for() -> None:
    model, x = perceptron()
    module = compiled(model, x)
    state = torch.get_rng_state()
    for size in (512, 3, 256, 512):
        x = torch.randn(32, size).t() if size == 3 else torch.randn(size, 32)
        with torch.no_grad():
            assert torch.allclose(module(x), model(x), atol=1e-6)
    assert [plan.status for plan in module.plans] == 3 * ["compiled"]
    assert [plan.arena for plan in module.plans] == [512 * n * 4 for n in (256, 512, 3)]
    assert module.runner.arenas.bytes < 513 * 512 * 4  # one for all
    torch.set_rng_state(state)
    with torch.inference_mode():
        assert torch.equal(module(torch.ones(7, 32)), model(torch.ones(7, 32)))
    assert torch.equal(torch.get_rng_state(), state)
    assert module.memplan == module.plans[0]


def test_a_share_holds_for_other_sizes_with_the_same_loops() -> None:
    model, x = models.mlp()
    module = compiled(model, x, budget="40%")
    wide = torch.randn(4, 128, x.shape[-1])
    with torch.no_grad():
        assert torch.allclose(module(wide), model(wide), atol=1e-5)
    _, other = module.plans
    assert other.loops >= 1
    assert other.bytes_after <= 0.4 * other.bytes_before


def test_a_budget_in_bytes_that_other_sizes_exceed_runs_the_model() -> None:
    model, x = models.mlp()
    module = compiled(model, x, budget=int(0.4 * activation_peak(lambda: model(x))))
    wide = torch.randn(4, 2048, x.shape[-1])
    with torch.no_grad(), pytest.warns(UserWarning, match="exceeds the budget"):
        assert torch.equal(module(wide), model(wide))
    assert module.plans[1].status == "unchanged"


class Halves(Perceptron):
    """Runs other operators on more rows."""

    def forward(self, x: Any) -> Any:
        parts = x.split(200)
        return torch.cat([super(Halves, self).forward(each) for each in parts])


def test_other_operators_for_other_sizes() -> None:
    torch.manual_seed(0)
    model, x = Halves().eval(), torch.randn(200, 32)
    module = compiled(model, x)
    with torch.no_grad():
        for size in (200, 600):
            x = torch.randn(size, 32)
            assert torch.allclose(module(x), model(x), atol=1e-6)


class Fails(Perceptron):
    def forward(self, x: Any) -> Any:
        if len(x) < 5:
            raise ValueError("too few")
        return super().forward(x)


def test_what_fails_on_other_sizes_fails_as_the_model() -> None:
    x = torch.randn(256, 32)
    module = compiled(Fails().eval(), x)
    with torch.no_grad(), pytest.warns(UserWarning, match="too few"):
        for _ in range(2):
            with pytest.raises(ValueError, match=r"^too few$"):
                module(x[:3])
    with torch.no_grad():
        assert module(x).shape == (256, 8)


def test_inputs_that_need_a_gradient_run_the_model() -> None:
    model, x = perceptron()
    module = compiled(model, x)
    x.requires_grad_()
    with pytest.warns(UserWarning, match="requires a gradient"):
        module(x).sum().backward()
    assert x.grad is not None


class Nested(nn.Module):
    """Returns a dict with views of one another, an input and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(6.0))

    def forward(self, x: Any, scale: float = 2.0) -> Any:
        y = (x @ x.t()).softmax(-1) @ x * scale
        rows = y.exp().split(2)
        return {"first": rows[0], "both": (y, y.t()), "x": x, "n": 3, "t": self.table}


def test_results_nest_as_the_models_do() -> None:
    model, x = Nested().eval(), torch.randn(64, 6)
    module = compiled(model, {"x": x, "scale": 3.0})
    with torch.no_grad():
        found, expected = module(x, scale=3.0), model(x, scale=3.0)
    assert list(found) == list(expected)
    assert torch.equal(found["first"], expected["first"])
    assert torch.equal(found["both"][1], expected["both"][1])
    assert found["n"] == 3
    assert found["x"] is x
    assert found["both"][1].data_ptr() == found["both"][0].data_ptr()
    found["t"].zero_()
    assert model.table.sum() == 15
    kept = found["first"].clone()
    with torch.no_grad():
        module(torch.randn(64, 6), scale=3.0)
    assert torch.equal(found["first"], kept)  # not in the arena


@pytest.mark.parametrize("calls", [20, pytest.param(1000, marks=pytest.mark.soak)])
def test_calls_at_the_same_time(calls: int) -> None:
    model, x = models.attention()
    module = compiled(model, x)
    inputs = [torch.randn_like(x) for _ in range(8)]
    with torch.no_grad():
        expected = [module(each) for each in inputs]
        for each, found in zip(inputs, expected, strict=True):
            torch.testing.assert_close(found, model(each))
    wrong = []

    def run(i: int) -> None:
        with torch.no_grad():
            for _ in range(calls):
                if not torch.equal(module(inputs[i]), expected[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    runner = module.runner
    assert 0 < runner.arenas.bytes <= ARENAS * runner.schedule.bytes


def test_threads_see_weights_that_changed() -> None:
    """None runs on packed weights that another thread is replacing."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3))
    model, x = nn.Sequential(*layers).eval(), torch.randn(2, 3, 16, 16)
    options = memplan.CompileOptions(max_slowdown=1000.0, pack=True)
    module = compiled(model, x, options=options)
    wrong: list[float] = []

    def run(expected: Any) -> None:
        with torch.no_grad():
            for _ in range(5):
                wrong.extend(
                    [1.0] * (not torch.allclose(module(x), expected, 1e-3, 1e-3))
                )

    for _ in range(3):
        with torch.no_grad():
            model[0].weight.mul_(1.5)
            expected = model(x)
        threads = [threading.Thread(target=run, args=(expected,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


class Rows(torch.Tensor):
    pass


class Kept(nn.Module):
    """What it computes depends on a list; its inputs are in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.powers = [1.0]
        self.register_buffer("shift", torch.arange(64))

    def forward(self, given: Any) -> Any:
        scores = (given["a"] + self.shift).softmax(-1) - given["b"]
        return (scores @ scores.t()).softmax(-1) @ scores * self.powers[0]


def test_a_call_of_another_form_is_compiled_for() -> None:
    model, (a, b) = Kept().eval(), torch.randn(2, 256, 64)
    module = compiled(model, ({"a": a, "b": b},))
    for given in (
        {"b": b, "a": a},
        {"a": a.t().contiguous().t(), "b": b},
        {"a": a.double(), "b": b},
    ):
        with torch.no_grad():
            found, expected = module(given), model(given)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert [plan.status for plan in module.plans] == 4 * ["compiled"]
    for given in {"a": a.clone().requires_grad_(), "b": b}, {"a": Rows(a), "b": b}:
        with pytest.warns(UserWarning, match="the model runs unchanged"):
            found = module(given)
        assert torch.equal(found, model(given))
    model.powers[0] = 2.0
    module._warned.clear()
    with torch.no_grad(), pytest.warns(UserWarning, match="have changed"):
        assert torch.equal(module({"a": a, "b": b}), model({"a": a, "b": b}))


def test_a_deep_copy_runs_the_copied_model() -> None:
    model, x = perceptron()
    other = copy.deepcopy(compiled(model, x))
    assert other.memplan.status == "unchanged"
    with torch.no_grad():
        other.first.weight.zero_()
        assert torch.equal(other(x), other.model(x))
        assert not torch.equal(other(x), model(x))


def test_weights_that_were_packed_are_dropped_when_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decide, "fastest", min)  # never what torch has
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    x = torch.randn(1, 3, 16, 16)
    module = memplan.fuse(model, memplan.FuseOptions(measure=False))

    def kernels() -> int:
        gc.collect()
        return sum(isinstance(each, Kernel) for each in gc.get_objects())

    counts = []
    with torch.no_grad():
        for _ in range(3):
            model[2].weight.mul_(2)
            assert torch.allclose(module(x), model(x), atol=1e-4)
            counts.append(kernels())
    assert counts[0] == counts[1] == counts[2] > 0
