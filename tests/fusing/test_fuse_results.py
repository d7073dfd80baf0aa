"""What fused models give, keep and leave behind, on inputs of all kinds."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from fuse_alike import FORCED, alike, block, made, noise, same  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from memplan.compiling.bench import Bench  # noqa: E402
from memplan.compiling.fuse import fuse  # noqa: E402
from memplan.compiling.module import Compiled, Runner  # noqa: E402
from memplan.compiling.parts import CompiledParts  # noqa: E402
from memplan.fusing.options import FuseOptions  # noqa: E402


@dataclass
class Result:
    logits: Any
    extra: Any = None


def late_view(self: Any, x: Any) -> Any:
    y = self.body(x)
    z = y.view(y.shape[0], -1)
    y = y + 1
    return z, y


def twice_over(self: Any, x: Any) -> Any:
    y = self.body(x)
    first = y
    y += 1
    y.mul_(2)
    return first + y


def nested_cats(s: Any, x: Any) -> Any:
    a, b = s.body(x), s.body(x + 1)
    return torch.cat([torch.cat([a, b], 1), torch.cat([b, a, b], 1)], 1)


def with_piece(s: Any, x: Any) -> Any:
    y = s.body(x)
    return y, torch.cat([y, x], 1)


def with_itself(s: Any, x: Any) -> Any:
    y = s.body(x)
    return y + y, (y, y), torch.cat([y, y], 1)


def shuffled(s: Any, x: Any) -> Any:
    y = s.body(x).view(x.shape[0], 2, 2, 8, 8).transpose(1, 2).contiguous()
    return s.body(y.view(x.shape[0], 4, 8, 8)[:, :3])


def gated(s: Any, x: Any) -> Any:
    y = s.body(x)
    return y * torch.sigmoid(s.fc(f.adaptive_avg_pool2d(y, 1)))


def gate_in_a_cat(s: Any, x: Any) -> Any:
    y = s.body(x)
    g = torch.sigmoid(s.fc(f.adaptive_avg_pool2d(y, 1)))
    return y * g, torch.cat([g, g + 1], 1)


MODELS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "with itself": (with_itself, {}),
    "overwritten twice": (twice_over, {}),
    "a view of it": (late_view, {}),
    "cat of called": (
        lambda s, x: torch.cat([torch.cos(x), s.body(x), torch.cos(s.body(x))], 1), {},
    ),
    "nested cats": (nested_cats, {}),
    "piece is output": (with_piece, {}),
    "residual input": (
        lambda s, x: f.relu(s.back(s.body(x)) + x), {"back": nn.Conv2d(4, 3, 1)},
    ),
    "dict": (lambda s, x: {"a": s.body(x), "b": (x, None, 3)}, {}),
    "dataclass": (lambda s, x: Result(s.body(x)), {}),
    "chunks of stack": (lambda s, x: f.relu(s.body(x) - 1).chunk(2, 1)[1], {}),
    "maximum and where": (lambda s, x: s.body(x).max(1), {}),
    "the input": (lambda s, x: (x, s.body(x)), {}),
    "shuffled": (shuffled, {}),
    "gate": (gated, {"fc": nn.Conv2d(4, 4, 1)}),
    "gate in a cat": (gate_in_a_cat, {"fc": nn.Conv2d(4, 4, 1)}),
    "parameter": (
        lambda s, x: s.body(x) * s.scale + s.pos,
        {"scale": nn.Parameter(torch.rand(1)), "pos": nn.Parameter(noise(2, 4, 8, 8))},
    ),
    "parameter out": (
        lambda s, x: (s.body(x), s.pos), {"pos": nn.Parameter(noise(2, 4, 8, 8))},
    ),
    "constant input": (
        lambda s, x: s.body(s.pos) + s.body(x),
        {"pos": nn.Parameter(noise(2, 3, 8, 8))},
    ),
    "tensor made": (lambda s, x: s.body(x - torch.tensor([0.5])), {}),
    "shared": (lambda s, x: s.body(s.back(s.body(x))), {"back": nn.Conv2d(4, 3, 1)}),
    "no affine": (
        lambda s, x: s.bn(s.body(x)), {"bn": nn.BatchNorm2d(4, affine=False)},
    ),
    "same padding": (
        lambda s, x: s.c(x), {"c": nn.Conv2d(3, 5, 3, padding="same", dilation=2)},
    ),
    "depthwise": (
        lambda s, x: f.relu6(s.c(s.body(x))),
        {"c": nn.Conv2d(4, 8, 3, groups=4, bias=False)},
    ),
    "softplus by name": (
        lambda s, x: f.softplus(s.body(x), threshold=0.5, beta=2.0), {},
    ),
    "crossed clamp": (lambda s, x: torch.clamp(s.body(x), 1.0, 0.5), {}),
    "mixed cat": (lambda s, x: torch.cat([s.body(x), s.body(x).double()], 1), {}),
    "mean": (lambda s, x: s.body(x).mean((2, 3), keepdim=True), {}),
    "softsign": (lambda s, x: f.softsign(s.body(x)), {}),
    "scaled addition": (lambda s, x: torch.add(s.body(x), s.body(x), alpha=2), {}),
    "windows of two sizes": (lambda s, x: f.adaptive_avg_pool2d(s.body(x), 3), {}),
    "cat of rows": (lambda s, x: torch.cat([s.body(x), s.body(x)], 2), {}),
    "bounds that are tensors": (
        lambda s, x: torch.clamp(s.body(x), s.low),
        {"low": nn.Parameter(torch.ones(1))},
    ),
    "pooled before": (
        lambda s, x: f.avg_pool2d(s.c(s.body(x) - 1), 2), {"c": nn.Conv2d(4, 2, 1)},
    ),
    "pooled behind windows": (
        lambda s, x: f.avg_pool2d(s.c(s.body(x) - 1), 2), {"c": nn.Conv2d(4, 2, 3)},
    ),
    "normed before": (
        lambda s, x: s.c(f.relu(s.bn(torch.cat([s.body(x), x], 1)))),
        {"bn": nn.BatchNorm2d(7), "c": nn.Conv2d(7, 5, 1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_results_are_the_models(name: str) -> None:
    forward, parts = MODELS[name]
    alike(made(forward, **parts), noise(2, 3, 8, 8))


def test_pooling_that_changes_nothing_gives_memory_of_its_own() -> None:
    model = made(lambda s, x: (s.body(x), f.adaptive_avg_pool2d(x, 8)))
    ready, x = alike(model, noise(2, 3, 8, 8)), noise(2, 3, 8, 8)
    with torch.no_grad():
        ready(x)[1].zero_()
    assert torch.equal(x, noise(2, 3, 8, 8))


def test_what_came_out_stays_when_the_memory_is_used_again() -> None:
    ready = alike(made(MODELS["chunks of stack"][0]), noise(2, 3, 8, 8))
    with torch.no_grad():
        first = ready(noise(2, 3, 8, 8))
        kept = first.clone()
        ready(noise(2, 3, 8, 8) * 3)
    assert torch.equal(first, kept)


def aliased(self: Any, x: Any) -> Any:
    y = self.body(x)
    z = y[:, :2]
    z.mul_(2)
    return y


def wrote_input(self: Any, x: Any) -> Any:
    return self.body(f.relu_(x))


@pytest.mark.parametrize("forward", [aliased, wrote_input], ids=["view", "input"])
def test_writing_through_another_name(forward: Callable[..., Any]) -> None:
    model = made(forward)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ready = fuse(model, FORCED)
        for _ in range(2):
            mine, theirs = noise(2, 3, 8, 8), noise(2, 3, 8, 8)
            same(model(mine), ready(theirs))
            assert torch.equal(mine, theirs)  # the caller's tensor changes as in eager


INPUTS: dict[str, Callable[[], Any]] = {
    "none": lambda: noise(0, 3, 8, 8),
    "one": lambda: noise(1, 3, 8, 8),
    "turned": lambda: noise(2, 8, 8, 3).permute(0, 3, 1, 2),
    "channels last": lambda: noise(2, 3, 8, 8).to(memory_format=torch.channels_last),
    "a part": lambda: noise(4, 6, 16, 16)[::2, 1::2, ::2, 3:11],
    "expanded": lambda: noise(1, 3, 1, 8).expand(2, 3, 8, 8),
    "odd": lambda: noise(3, 3, 7, 11),
    "a point": lambda: noise(2, 3, 1, 1),
    "a row": lambda: noise(2, 3, 1, 9),
    "negative": lambda: torch.complex(noise(2, 3, 8, 8), noise(2, 3, 8, 8)).conj().imag,
}


@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_as_they_lie(kind: str) -> None:
    model = made(lambda s, x: s.last(s.body(x) - 0.1), last=nn.Conv2d(4, 5, 1))
    stacks = nn.Sequential(nn.ReLU(), nn.AvgPool2d(3, 1, 1), nn.Sigmoid()).eval()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in (model, stacks):
            ready, x = fuse(each, FORCED), INPUTS[kind]()
            for _ in range(2):
                same(each(x), ready(x))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_types(dtype: str) -> None:
    kind = getattr(torch, dtype)
    model, x = made(lambda s, x: f.relu(s.body(x) - 0.1)).to(kind), noise(2, 3, 8, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ready = fuse(model, FORCED)
        found = ready(x.to(kind))
        expected = model(x.to(kind))
    exact = {"float64": 1e-14, "float16": 1e-3, "bfloat16": 2e-2}[dtype]
    same(expected.double(), found.double(), exact)
    assert found.dtype == kind


def test_whole_numbers_are_left_to_torch() -> None:
    model = made(lambda s, x: s.body(x.float() / 255) * 2)
    alike(model, (noise(2, 3, 8, 8) * 9).to(torch.uint8))


def test_two_inputs_of_several_batches() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = block()

        def forward(self, x: Any, y: Any, scale: float = 2.0) -> Any:
            return self.body(x) * scale + self.body(y).mean(0, keepdim=True)

    model = Two().eval()
    ready = alike(model, noise(4, 3, 8, 8), noise(3, 3, 8, 8))
    with torch.no_grad():
        x, y = noise(4, 3, 8, 8), noise(3, 3, 8, 8)
        for scale in (1, 1.0, True, 3.0):
            same(model(x, y, scale), ready(x, y, scale))
            same(model(y=y, x=x, scale=scale), ready(y=y, x=x, scale=scale))


MIXING: dict[str, Callable[..., Any]] = {
    "mean": lambda s, x: s.body(x) - s.body(x).mean(0, keepdim=True),
    "turned": lambda s, x: s.body(x).flip(0),
    "softmax": lambda s, x: f.softmax(s.body(x).mean((2, 3)), 0),
    "given back": lambda s, x: (x, s.body(x)),
    "of all": lambda s, x: s.body(x).mean(0),
}


@pytest.mark.parametrize("kind", MIXING)
def test_images_that_see_each_other_go_together(kind: str) -> None:
    model, x = made(MIXING[kind]), noise(4, 3, 8, 8)
    ready = fuse(model, FuseOptions(measure=False, micro_batch=1))
    with torch.no_grad(), pytest.warns(UserWarning, match="all images run at once: "):
        same(model(x), ready(x))
    assert type(ready.programs()[0].runner) is Runner


@pytest.mark.parametrize("most", [1, 2, 3, 4, 9])
def test_images_go_some_at_a_time(most: int) -> None:
    model, x = made(lambda s, x: {"y": s.body(x).view(6, -1)}), noise(6, 3, 8, 8)
    ready = fuse(model, FuseOptions(measure=False, micro_batch=most))
    with torch.no_grad():
        for _ in range(2):
            same(model(x), ready(x))
            x += 1
        model.body[0].weight.mul_(2)
        same(model(x), ready(x))
    runner = ready.programs()[0].runner
    assert getattr(runner, "batch", 6) == {4: 3, 9: 6}.get(most, most)


@pytest.mark.parametrize("fast", [(), (2,), (2, 1), (1,)])
def test_the_fastest_number_of_images_is_taken(
    fast: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(_: Bench, module: Compiled) -> None:
        module.memplan = replace(module.memplan, seconds_before=10.0, seconds_after=5.0)

    def beats(_: Bench, runner: Any, rival: Compiled) -> bool:
        assert getattr(rival.runner, "batch", 8) > runner.batch
        return runner.batch in fast

    monkeypatch.setattr(Bench, "timed", timed)
    monkeypatch.setattr(Bench, "beats", beats)
    model, x = made(lambda s, x: s.body(x)), noise(8, 3, 8, 8)
    ready = fuse(model)
    with torch.no_grad():
        same(model(x), ready(x))
    batch = getattr(ready.programs()[0].runner, "batch", 8)
    assert batch == {(): 8, (2,): 2, (2, 1): 1, (1,): 8}[fast]


SEEN: list[int] = []
CACHE: dict[str, Any] = {}


class Settings:
    def __init__(self) -> None:
        self.calls = 0


class Noting(nn.Module):
    kept: ClassVar[dict[str, Any]] = {}

    def __init__(self, note: Callable[[Any, Any], None]) -> None:
        super().__init__()
        self.body, self.note, self.lock = block(), note, threading.Lock()
        self.features: dict[str, list[Any]] = {"all": []}
        self.settings = Settings()
        self.loose = torch.zeros(1)

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        self.note(self, y)
        return y + 1


def _count(m: Any, _: Any) -> None:
    m.settings.calls += 1


NOTES: dict[str, Callable[[Any, Any], Any]] = {
    "list in a dict": lambda m, y: m.features["all"].append(y),
    "global": lambda m, y: SEEN.append(len(SEEN)),
    "class": lambda m, y: m.kept.update(last=y),
    "object": _count,
    "loose tensor": lambda m, y: m.loose.add_(1),
    "numpy's random": lambda m, y: np.random.random(),
    "attribute": lambda m, y: setattr(m, "last", y),
}


def _traces(model: Any) -> list[Any]:
    """What three calls leave behind."""
    SEEN.clear()
    Noting.kept.clear()
    np.random.seed(3)
    with torch.no_grad():
        for _ in range(3):
            model(noise(2, 3, 8, 8))
    inner = getattr(model, "model", model)
    return [
        *(len(inner.features["all"]), len(SEEN), len(inner.kept)),
        *(inner.settings.calls, float(inner.loose), hasattr(inner, "last")),
        np.random.random(),
    ]


@pytest.mark.parametrize("kind", NOTES)
def test_what_a_call_leaves_behind(kind: str) -> None:
    expected = _traces(Noting(NOTES[kind]).eval())
    ready = fuse(Noting(NOTES[kind]).eval(), FORCED)
    with pytest.warns(UserWarning, match="model runs unchanged|model run unchanged"):
        assert _traces(ready) == expected
    assert isinstance(ready.programs()[0], CompiledParts)


def test_a_cache_by_device_stays_the_models() -> None:
    def scaled(m: Any, y: Any) -> None:
        for held in (m.features, CACHE):
            held.setdefault(str(y.device), torch.ones(1))
        y.mul_(CACHE["cpu"]).mul_(m.features["cpu"])

    CACHE.clear()
    model = Noting(scaled).eval()
    ready = fuse(model, FORCED)
    with torch.no_grad():
        for batch in (1, 2, 3):
            x = noise(batch, 3, 8, 8)
            same(model(x), ready(x))
            assert type(CACHE["cpu"]) is type(model.features["cpu"]) is torch.Tensor
        assert all(isinstance(each, Compiled) for each in ready.programs())
        model.features["cpu"] = torch.full((1,), 2.0)  # it is seen
        same(model(x), ready(x))


def test_arguments_of_any_nest() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = block()

        def forward(self, pair: Any, *more: Any, scale: Any = 1.0) -> Any:
            y = self.body(pair["a"]) * scale + self.body(pair["b"][0])
            return {"y": sum((self.body(each) for each in more), y)}

    model, x = Sums().eval(), noise(2, 3, 8, 8)
    ready = fuse(model, FORCED)
    with torch.no_grad():
        for scale in (1.0, 2, 0.5):
            for more in ((), (x,)):
                call = {"a": x, "b": [x + 1]}
                expected = model(call, *more, scale=scale)
                same(expected, ready(call, *more, scale=scale))
    assert all(isinstance(each, Compiled) for each in ready.programs())


def test_results_that_change_from_call_to_call() -> None:
    turns = iter(range(100))
    model = Noting(lambda m, y: y.add_(next(turns))).eval()
    with torch.no_grad(), pytest.warns(UserWarning, match="change from call to call"):
        fuse(model, FORCED)(noise(2, 3, 8, 8))
