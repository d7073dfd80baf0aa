"""Models in one arena: the same results, little memory, and no surprise."""

from __future__ import annotations

import copy
import random
import threading
import warnings
from collections import OrderedDict
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.chunking.region import Region, chunked  # noqa: E402
from memplan.chunking.rules.flow import Slice  # noqa: E402
from memplan.compiling.schedule import scheduled  # noqa: E402
from memplan.errors import InputError, NoPlanError, UsageError  # noqa: E402
from memplan.graph.arenas import ARENAS  # noqa: E402
from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.measure import activation_peak  # noqa: E402
from memplan.graph.program import Loop  # noqa: E402
from tests.chunking import models  # noqa: E402
from tests.compiling.modules import SLOW, compiled  # noqa: E402

pytestmark = pytest.mark.torch
SOAK = pytest.mark.soak


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 512), nn.Linear(512, 8)
        self.scale = 1.0

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).relu() * self.scale)


def perceptron() -> tuple[nn.Module, Any]:
    return Perceptron().eval(), torch.randn(256, 32)


def normalised() -> tuple[nn.Module, Any]:
    norm = nn.BatchNorm1d(512)
    nn.init.uniform_(norm.running_mean)
    layers = (nn.Linear(32, 512), norm, nn.ReLU(), nn.Linear(512, 8))
    return nn.Sequential(*layers).eval(), torch.randn(256, 32)


@pytest.mark.parametrize("make", [models.attention, perceptron, normalised])
def test_results_are_the_models_own(make: Any) -> None:
    model, x = make()
    module = compiled(model, x)
    for inputs in (x, torch.randn_like(x)):
        with torch.no_grad():
            assert torch.allclose(module(inputs), model(inputs), atol=1e-5)
    plan = module.memplan
    assert plan.error == 0 or make is normalised
    assert plan.bytes_after < plan.bytes_before
    assert plan.plan.peak == plan.arena == plan.plan.lower_bound
    assert not memplan.verify(plan.plan)


def test_a_perceptron_asks_for_its_result_alone() -> None:
    model, x = perceptron()
    module = compiled(model, x)
    assert module.memplan.requests_after == 1
    assert module.memplan.asking == {}
    assert module.memplan.beside == 256 * 8 * 4
    assert module.memplan.arena == 256 * 512 * 4
    with torch.no_grad():
        assert activation_peak(lambda: module(x)) == 256 * 8 * 4


class Classifying(nn.Module):
    """Its results take more than all else, as those of language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.inner = nn.MultiheadAttention(64, 2, batch_first=True)
        self.wide, self.narrow = nn.Linear(64, 1024), nn.Linear(1024, 64)
        self.classes = nn.Linear(64, 2000)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        x = x + self.inner(y, y, y, need_weights=False)[0]
        x = x + self.narrow(self.wide(x).tanh())
        return self.classes(x), x.mean()


def test_values_lie_in_the_memory_of_a_result_until_it_is_written() -> None:
    torch.manual_seed(0)
    model, x = Classifying().eval(), torch.randn(1, 128, 64)
    module = compiled(model, x)
    plan = module.memplan
    assert plan.arena < 128 * 1024 * 4 < plan.beside
    assert plan.bytes_after == plan.order_bound
    assert plan.requests_after == 2
    inputs = [torch.randn_like(x) for _ in range(3)]
    with torch.no_grad():
        found = [module(each) for each in inputs]
        with module.runner.tape() as tape:
            assert tape.missed == 0
        for results, each in zip(found, inputs, strict=True):
            for one, other in zip(results, model(each), strict=True):
                assert torch.allclose(one, other, atol=1e-5)


def test_kernels_with_scratch_memory_write_results() -> None:
    """Products of 16 bits may reorder their operands."""
    torch.manual_seed(0)
    model = Classifying().eval().bfloat16()
    x = torch.randn(1, 128, 64, dtype=torch.bfloat16)
    module = compiled(model, x)
    assert module.memplan.lent
    assert module.memplan.bytes_after <= module.memplan.bytes_before
    with torch.no_grad():
        for one, other in zip(module(x), model(x), strict=True):
            torch.testing.assert_close(one, other, rtol=2**-6, atol=2**-6)
        with module.runner.tape() as tape:
            assert tape.missed == 0


class Crossing(nn.Module):
    """Its sum lies as its permuted operands do, and is then copied."""

    def forward(self, a: Any, b: Any) -> Any:
        a, b = a.permute(1, 0, 2, 3), b.permute(1, 0, 2, 3)
        total = a[..., :, None] + b[..., None, :]
        return total.reshape(3, 64, 64).sum(-1), total.clone().mean()


@pytest.mark.parametrize("copies", [1, 2])
def test_a_sum_is_written_as_its_copy_is_to_lie(copies: int) -> None:
    class Last(Crossing):
        def forward(self, a: Any, b: Any) -> Any:
            return super().forward(a, b)[:copies]

    inputs = torch.randn(8, 3, 8, 8), torch.randn(8, 3, 8, 8)
    module = compiled(Last().eval(), inputs)
    with torch.no_grad():
        for one, other in zip(module(*inputs), Last()(*inputs), strict=True):
            assert torch.allclose(one, other, atol=1e-4)
    assert module.memplan.arena == copies * 3 * 64 * 64 * 4


class Biased(nn.Module):
    """Each layer adds the same table of its own making to the scores."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 4)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(layers))
        self.register_buffer("places", torch.randint(0, 32, (128, 128)))

    def forward(self, x: Any) -> Any:
        attend = nn.functional.scaled_dot_product_attention
        for layer in self.layers:
            bias = self.table(self.places).permute(2, 0, 1)[None].contiguous()
            q = layer(x).view(1, 128, 4, 16).transpose(1, 2)
            x = x + attend(q, q, q, bias).transpose(1, 2).reshape(1, 128, 64)
        return x.mean(1)


def test_constants_that_are_kept_stay_small() -> None:
    torch.manual_seed(0)
    model, x = Biased().eval(), torch.randn(1, 128, 64)
    module = compiled(model, x)
    plan = module.memplan
    assert plan.folded <= 1 << 16  # a table takes 256 KiB
    assert plan.bytes_after <= plan.bytes_before
    with torch.no_grad():
        assert torch.allclose(module(x), model(x), atol=1e-5)


def test_equal_constants_are_kept_once() -> None:
    class Tables(nn.Module):
        def forward(self, x: Any) -> Any:
            for _ in range(3):
                x = (x * torch.arange(4096).reciprocal()).sin()
            return x

    module = compiled(Tables().eval(), torch.randn(16, 4096))
    assert module.memplan.folded == 4096 * 4


class Scored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Bilinear(6, 6, 3)

    def forward(self, x: Any) -> Any:
        return self.score(x, x).exp()


def test_a_model_of_any_operators_is_answered() -> None:
    model, x = Scored().eval(), torch.randn(50, 6)
    module = memplan.compile(model, x, options=SLOW)
    with torch.no_grad():
        assert torch.allclose(module(x), model(x), atol=1e-5)


@pytest.mark.parametrize("budget", ["40%", pytest.param("min", marks=SOAK)])
def test_a_budget_is_kept_by_loops(budget: str) -> None:
    model, x = models.attention(tokens=256)
    module = compiled(model, x, budget=budget)
    plan = module.memplan
    assert plan.loops >= 1
    assert plan.bytes_after <= 0.4 * plan.bytes_before
    with torch.no_grad():
        difference = (module(x) - model(x)).abs().max()
    assert difference <= 1e-5


def test_a_decoder_goes_far_below_its_skips() -> None:
    """Skips take most of the memory; where all must fit, one is computed again."""
    model, x = models.skips("transposed")
    module = compiled(model, x, budget="30%")
    assert module.memplan.bytes_after <= 0.3 * module.memplan.bytes_before
    with torch.no_grad():
        assert torch.allclose(module(x), model(x), atol=1e-5)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 32, 3, padding=1)
        self.norm = nn.GroupNorm(8, 32)
        self.second = nn.Conv2d(32, 32, 3, padding=1)
        self.last = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        x = nn.functional.interpolate(self.first(x), scale_factor=2.0)
        x = x + self.second(nn.functional.silu(self.norm(x)))
        return self.last(x)


def test_a_norm_over_groups_runs_in_loops() -> None:
    """Its two passes give several results, and need inputs that lie contiguously."""
    torch.manual_seed(0)
    model, x = Normed().eval(), torch.rand(1, 4, 24, 24)
    options = memplan.CompileOptions(max_slowdown=1000.0, pack=True)
    module = compiled(model, x, budget="50%", options=options)
    assert module.memplan.loops
    with torch.no_grad():
        assert torch.allclose(module(x), model(x), atol=1e-5)


@torch.library.custom_op("memplan_tests::whole_storage", mutates_args=())
def whole_storage(x: torch.Tensor) -> torch.Tensor:
    """Fails on a tensor that shares its storage, as all in an arena do."""
    if x.untyped_storage().nbytes() != x.nbytes:
        raise RuntimeError("a part of a storage")
    return x + 1


@whole_storage.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("pack", [False, True])
def test_results_lie_as_the_models_own(pack: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    x = torch.rand(2, 3, 16, 16)
    options = memplan.CompileOptions(max_slowdown=1000.0, pack=pack)
    module = memplan.compile(model, x, options=options)
    with torch.no_grad():
        assert module(x).stride() == model(x).stride()


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


def test_a_budget_that_is_kept_too_slowly_is_refused() -> None:
    model, x = models.attention(tokens=256)
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


def test_an_attribute_that_changes_is_seen() -> None:
    model, x = perceptron()
    module = compiled(model, x)
    model.scale = 3.0
    with torch.no_grad(), pytest.warns(UserWarning, match="have changed"):
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
    model, x = models.attention(tokens=256)
    module = compiled(model, x, budget="40%")
    wide = torch.randn(1, 512, x.shape[-1])
    with torch.no_grad():
        assert torch.allclose(module(wide), model(wide), atol=1e-5)
    _, other = module.plans
    assert other.loops >= 1
    assert other.bytes_after <= 0.4 * other.bytes_before


def test_a_budget_in_bytes_that_other_sizes_exceed_runs_the_model() -> None:
    model, x = models.attention(tokens=256)
    module = compiled(model, x, budget=int(0.4 * activation_peak(lambda: model(x))))
    wide = torch.randn(1, 2048, x.shape[-1])
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
        expected = [model(each) for each in inputs]
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


@pytest.mark.parametrize(
    "part",
    [
        (slice(None), slice(None, None, 2)),
        (slice(1, None),),
        (slice(None), slice(1, 2, 2)),
        (slice(1, 3),),
        (slice(-3, -1), slice(None, 5)),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_slices_that_are_written(part: Any, last: bool) -> None:
    """With any ends and steps, in the arena and in a result."""

    class Written(nn.Module):
        def forward(self, x: Any) -> Any:
            y = (x * 2).tanh() + (x + 1).sigmoid()
            y[part] += 1
            return y if last else y.exp().sum(-1)

    model, x = Written().eval(), torch.randn(6, 400)
    module = compiled(model, x)
    with torch.no_grad():
        assert torch.equal(module(x), model(x))


class Quantized(nn.Module):
    """Needs the least and the largest of all elements, which round hides in part."""

    def forward(self, x: Any) -> Any:
        y = (x * 2).tanh()
        low, high = y.min(), y.max()
        scale = (high - low) / 15
        return ((y - low) / scale).round() * scale + low


def test_the_largest_of_all_elements() -> None:
    torch.manual_seed(0)
    model = Quantized().eval()
    module = compiled(model, torch.randn(4, 4000))
    for _ in range(3):
        x = torch.randn(4, 4000)
        with torch.no_grad():
            assert torch.equal(module(x), model(x))


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


def test_the_model_is_as_it_was() -> None:
    model, x = normalised()
    state, attributes = copy.deepcopy(model.state_dict()), list(vars(model))
    module = compiled(model, x)
    assert list(vars(model)) == attributes
    assert list(module.state_dict()) == list(state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])


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
    x = torch.randn(64, 8)
    module = memplan.compile(Crossed().eval(), (x, x), options=SLOW)
    assert module.memplan.reason == "one tensor is several of its arguments"


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


class Channelwise(nn.Module):
    """A wide value that a loop overwrites slice by slice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 32, 1)
        self.each = nn.Conv2d(32, 32, 5, padding=2, groups=32)
        self.last = nn.Conv2d(32, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.each(torch.relu(self.first(x)))))


def test_a_loop_writes_over_what_it_reads_slice_by_slice() -> None:
    """Not after its last iteration, with all results until then."""
    model, x = Channelwise().eval(), torch.randn(1, 4, 64, 64)
    inference = Inference()
    program = lower(export(model, (x,), {}), inference)
    names = [op.name for op in program.ops if op.key in ("aten.conv2d", "aten.relu")]
    piece = Slice(1)
    region = Region(dict.fromkeys(names[2:4], piece), 32, 4)
    looped = chunked(program, region, inference)
    (loop,) = (step for step in looped.ops if isinstance(step, Loop))
    assert loop.outputs[0].into
    constants = {x: model.get_parameter(at) for x, at in program.constants.items()}
    schedule = scheduled(looped, constants, (x,))
    assert schedule.plan.peak <= 1.02 * profile(looped).peak
