"""Models in one arena: the same results, little memory."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.chunking.region import Region, chunked  # noqa: E402
from memplan.chunking.rules.flow import Slice  # noqa: E402
from memplan.compiling.schedule import scheduled  # noqa: E402
from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.measure import activation_peak  # noqa: E402
from memplan.graph.program import Loop  # noqa: E402
from tests.chunking import models  # noqa: E402
from tests.compiling.modules import (  # noqa: E402
    SLOW,
    compiled,
    normalised,
    perceptron,
    tape_of,
)

pytestmark = pytest.mark.torch
SOAK = pytest.mark.soak


@pytest.mark.parametrize("make", [models.attention, perceptron, normalised])
def test_results_are_the_models_own(make: Any) -> None:
    model, x = make()
    module = compiled(model, x)
    for inputs in (x, torch.randn_like(x)):
        with torch.no_grad():
            assert torch.allclose(module(inputs), model(inputs), atol=1e-5)
    plan = module.memplan
    assert plan.error <= (0 if make is perceptron else 1e-6)
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
        assert tape_of(module).missed == 0
        for results, each in zip(found, inputs, strict=True):
            for one, other in zip(results, model(each), strict=True):
                assert torch.allclose(one, other, atol=1e-5)


def test_memory_of_a_result_that_its_kernel_allocates_is_lent() -> None:
    """Layer norm does; a copy of its result does not."""
    torch.manual_seed(0)
    layers = [nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.LayerNorm(256)]
    model, x = nn.Sequential(*layers).eval(), torch.randn(512, 256)
    module = compiled(model, x)
    plan = module.memplan
    assert plan.lent
    assert plan.bytes_after < 1.05 * 512 * (512 + 256) * 4
    inputs = [torch.randn_like(x) for _ in range(3)]
    with torch.no_grad():
        found = [module(each) for each in inputs]
        for one, each in zip(found, inputs, strict=True):
            torch.testing.assert_close(one, model(each), rtol=1e-4, atol=1e-5)


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
        assert tape_of(module).missed == 0


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


@pytest.mark.parametrize("budget", ["8%", pytest.param("min", marks=SOAK)])
def test_a_budget_is_kept_by_loops(budget: str) -> None:
    model, x = models.attention(tokens=256)
    module = compiled(model, x, budget=budget)
    plan = module.memplan
    assert plan.loops >= 1
    assert plan.bytes_after <= 0.08 * plan.bytes_before
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


@pytest.mark.parametrize("pack", [False, True])
def test_results_lie_as_the_models_own(pack: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    x = torch.rand(2, 3, 16, 16)
    options = memplan.CompileOptions(max_slowdown=1000.0, pack=pack)
    module = memplan.compile(model, x, options=options)
    with torch.no_grad():
        assert module(x).stride() == model(x).stride()


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


class Masked(nn.Module):
    """Attention with a causal mask that it makes at each call."""

    def forward(self, x: Any) -> Any:
        places = torch.arange(x.shape[1])
        mask = (places[None] <= places[:, None])[None, None]
        q = x.unflatten(2, (4, -1)).transpose(1, 2)
        k = q[:, :2].repeat_interleave(2, dim=1)
        attend = nn.functional.scaled_dot_product_attention
        return attend(q, k, k, attn_mask=mask.expand(x.shape[0], -1, -1, -1)).flatten(2)


def test_a_mask_that_is_known_is_not_made() -> None:
    model, x = Masked().eval(), torch.randn(2, 512, 16)
    plan = (module := compiled(model, x)).memplan
    assert plan.arena < 512 * 512 < plan.bytes_before  # bytes of the mask
    with torch.no_grad():
        torch.testing.assert_close(module(x), model(x), rtol=1e-5, atol=1e-6)


def test_a_linear_layer_of_a_vector_is_no_trouble_to_torch() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 8)]
    model, x = nn.Sequential(*layers).eval(), torch.randn(64)
    module = compiled(model, x)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")  # of results that torch resizes
        assert torch.allclose(module(x), model(x), atol=1e-5)
