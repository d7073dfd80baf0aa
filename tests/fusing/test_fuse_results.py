"""What fused models give: what the models give, whatever they are made of."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from fuse_alike import alike, made, noise  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

Pair = namedtuple("Pair", ["first", "second"])


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


def prefixes(s: Any, x: Any) -> Any:
    a, b = s.body(x), s.body(x + 1)
    short = torch.cat([a, b], 1)
    return torch.cat([a, b, a * 2], 1), f.relu(short - 0.5), torch.cat([a, b], 1)


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
    "cat with input": (lambda s, x: torch.cat([x, s.body(x), x], 1), {}),
    "cat of called": (
        lambda s, x: torch.cat([torch.cos(x), s.body(x), torch.cos(s.body(x))], 1), {},
    ),
    "nested cats": (nested_cats, {}),
    "prefixes": (prefixes, {}),
    "piece is output": (with_piece, {}),
    "residual input": (
        lambda s, x: f.relu(s.back(s.body(x)) + x), {"back": nn.Conv2d(4, 3, 1)},
    ),
    "residual of torch": (
        lambda s, x: s.back(s.body(x)) + torch.cumsum(x, 1),
        {"back": nn.Conv2d(4, 3, 1)},
    ),
    "dict": (lambda s, x: {"a": s.body(x), "b": (x, None, 3)}, {}),
    "named tuple": (lambda s, x: Pair(s.body(x), x.shape[0]), {}),
    "dataclass": (lambda s, x: Result(s.body(x)), {}),
    "a list": (lambda s, x: [s.body(x), s.body(x)], {}),
    "chunks": (lambda s, x: s.body(x).chunk(2, 1), {}),
    "chunks of stack": (lambda s, x: f.relu(s.body(x) - 1).chunk(2, 1)[1], {}),
    "maximum and where": (lambda s, x: s.body(x).max(1), {}),
    "the input": (lambda s, x: (x, s.body(x)), {}),
    "view": (lambda s, x: s.body(x).view(x.size(0), -1), {}),
    "shuffled": (shuffled, {}),
    "gate": (gated, {"fc": nn.Conv2d(4, 4, 1)}),
    "gate in a cat": (gate_in_a_cat, {"fc": nn.Conv2d(4, 4, 1)}),
    "parameter": (
        lambda s, x: s.body(x) * s.scale + s.pos,
        {"scale": nn.Parameter(torch.rand(1)), "pos": nn.Parameter(noise(2, 4, 8, 8))},
    ),
    "parameter first": (
        lambda s, x: s.pos + s.body(x), {"pos": nn.Parameter(noise(2, 4, 8, 8))},
    ),
    "parameter cat": (
        lambda s, x: torch.cat([s.pos, s.body(x)], 1),
        {"pos": nn.Parameter(noise(2, 4, 8, 8))},
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
    "infinite clamp": (lambda s, x: s.body(x).clamp(min=0.2), {}),
    "double": (lambda s, x: s.body(x).double() * 2 + 1, {}),
    "mixed cat": (lambda s, x: torch.cat([s.body(x), s.body(x).double()], 1), {}),
    "mean as it is": (lambda s, x: s.body(x).mean((2, 3)), {}),
    "mean": (lambda s, x: s.body(x).mean((2, 3), keepdim=True), {}),
    "pooled before": (
        lambda s, x: f.avg_pool2d(s.c(s.body(x) - 1), 2), {"c": nn.Conv2d(4, 2, 1)},
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


def test_a_gate_of_several_images_joined_to_others() -> None:
    forward, parts = MODELS["gate in a cat"]
    alike(made(forward, **parts), noise(5, 3, 8, 8))


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
