"""Layers that are not what they seem, and models that are fused in parts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from fuse_models import FORCED, agree, noise, prepared, program  # noqa: E402
from torch import nn  # noqa: E402

from memplan.fusing.fuse import fuse  # noqa: E402
from memplan.fusing.module import PartlyFused  # noqa: E402
from memplan.fusing.prepared import Prepared  # noqa: E402


def test_lazy_layers() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.LazyBatchNorm2d()).eval()
    ready = fuse(model, FORCED)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ready(noise())
    agree(model, ready)
    assert isinstance(program(ready), Prepared)


class Odd(nn.Conv2d):
    def forward(self, x: Any) -> Any:
        return super().forward(x) + 1


def _wrapped() -> Any:
    conv = nn.Conv2d(3, 4, 3)
    conv.forward = lambda x, plain=conv.forward: plain(x) * 2
    return conv


LAYERS: dict[str, Callable[[], Any]] = {
    "a subclass": lambda: Odd(3, 4, 3),
    "another forward": _wrapped,
    "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)),
    "spectral": lambda: nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)),
    "old spectral": lambda: nn.utils.spectral_norm(nn.Conv2d(3, 4, 3)),
    "fused by torch": lambda: nn.utils.fuse_conv_bn_eval(
        nn.Conv2d(3, 4, 3).eval(), nn.BatchNorm2d(4).eval()
    ),
    "reflected": lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
    "batch statistics": lambda: nn.BatchNorm2d(3, track_running_stats=False),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_that_are_not_what_they_seem(kind: str) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        layer = LAYERS[kind]()
    channels = 3 if kind == "batch statistics" else 4
    model = nn.Sequential(layer, nn.ReLU(), nn.Conv2d(channels, 4, 1)).eval()
    if kind == "old spectral":  # by a hook
        ready = fuse(model, FORCED)
        with pytest.warns(UserWarning, match="its modules have hooks"):
            agree(model, ready)
    else:
        ready = prepared(model)
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(1.5)
    agree(model, ready)


class Loops(nn.Module):
    """Not exportable as a whole, and its parts are taken apart in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
        self.blocks = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.SiLU())
        self.last = nn.ModuleList([nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())])

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for layer in self.blocks:
            x = layer(x)
        if float(x.sum()) > 1e9:  # follows from data
            x = self.blocks[0](x)
        return self.last[-1](x) + len(self.blocks)


def test_parts_of_a_model_that_cannot_be_taken_whole() -> None:
    model = Loops().eval()
    ready = fuse(model, FORCED)
    with pytest.warns(UserWarning, match="parts of the model run unchanged: torch.exp"):
        agree(model, ready)
    made = program(ready)
    assert isinstance(made, PartlyFused)
    assert made.paths == ["first", "last.0"]  # what is called as a whole
    agree(model, ready)
    with torch.no_grad():
        model.first[0].weight.mul_(2)
    agree(model, ready)
    seen: list[Any] = []
    model.first.register_forward_hook(lambda module, *_: seen.append(module))
    with pytest.warns(UserWarning, match="what else its code reaches"), torch.no_grad():
        for _ in range(3):
            ready(noise())
    assert program(ready).paths == ["last.0"]
    assert seen == [model.first] * 3  # once a call


def test_attributes_of_a_model_in_parts() -> None:
    model = Loops().eval()
    ready = fuse(model, FORCED)
    with pytest.warns(UserWarning, match="parts of the model run unchanged"):
        agree(model, ready)
    model.last[0] = nn.Sequential(nn.Conv2d(4, 2, 1), nn.Tanh()).eval()
    agree(model, ready)


def test_a_model_left_alone_is_looked_at_again() -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 8), nn.Conv2d(3, 4, 1), nn.ReLU())
            self.whole = False

        def forward(self, x: Any) -> Any:
            return self.body(x) if self.whole else self.body[0](x)

    model = Chooses().eval()
    ready = fuse(model, FORCED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn in range(200):
            model.whole = turn >= 40
            agree(model, ready)
    assert isinstance(program(ready), Prepared)


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("last", [False, True])
def test_kernels_write_results_where_they_stay(batch: int, last: bool) -> None:
    """Results that lie as kernels write them are in no arena, and are their own."""
    form = torch.channels_last if last else torch.contiguous_format
    layers = [nn.BatchNorm2d(5), nn.MaxPool2d(3, 1, 1), nn.ReLU()]
    model = nn.Sequential(*layers).eval()
    x = noise(3, 5, 9, 7).contiguous(memory_format=form)
    ready = fuse(model, replace(FORCED, micro_batch=batch))
    with torch.no_grad():
        first, expected = ready(x), model(x)
        kept = first.clone()
        second = ready(-x)
    torch.testing.assert_close(first, expected, rtol=1e-5, atol=1e-5)
    assert first.stride() == expected.stride()
    assert torch.equal(first, kept)
    assert first.data_ptr() != second.data_ptr()
    assert program(ready).engine.arena.bytes == 0


@pytest.mark.parametrize("shape", [(2, 20, 4, 4), (1, 3, 7, 9), (2, 5, 3, 40)])
@pytest.mark.parametrize(
    "pool",
    [
        nn.AvgPool2d(1280, ceil_mode=True),
        nn.AvgPool2d(50, ceil_mode=True, padding=3),
        nn.AvgPool2d(50, ceil_mode=True, padding=3, count_include_pad=False),
        nn.AvgPool2d((90, 2), ceil_mode=True, divisor_override=7),
        nn.MaxPool2d(50, ceil_mode=True, padding=5),
        nn.MaxPool2d(9, stride=70, dilation=6, ceil_mode=True),
    ],
    ids=repr,
)
def test_a_window_beyond_the_plane_is_no_larger_than_that(
    pool: Any, shape: tuple[int, ...]
) -> None:
    model, x = nn.Sequential(nn.ReLU(), pool, nn.Sigmoid()).eval(), torch.randn(shape)
    ready = fuse(model, FORCED)
    with torch.no_grad():
        torch.testing.assert_close(ready(x), model(x))
    (made,) = ready.programs()
    found = made.nodes[0].operations[1].pool
    for axis in (0, 1):
        assert found.reach(axis) <= shape[2 + axis] + 2 * found.padding[axis]
