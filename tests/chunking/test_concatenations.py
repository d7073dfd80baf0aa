"""Concatenations whose parts are written where they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.chunking.concatenations import with_filled  # noqa: E402
from memplan.compiling import bench  # noqa: E402
from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.program import mapped  # noqa: E402

pytestmark = pytest.mark.torch


class Dense(nn.Module):
    """Each layer takes what all before it made, as in a DenseNet."""

    def __init__(self, layers: int = 4, grown: int = 8, window: int = 3) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, grown, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Conv2d(grown * (i + 1), grown, window, padding=window // 2)
            for i in range(layers)
        )
        self.last = nn.Conv2d(grown * (layers + 1), 4, 1)

    def forward(self, x: Any) -> Any:
        parts = [self.first(x)]
        for layer in self.layers:
            parts.append(layer(torch.cat(parts, 1)).relu())
        return self.last(torch.cat(parts, 1))


class Branches(nn.Module):
    """Several parts of one input, put together in some way."""

    def __init__(self, joined: Callable[..., Any]) -> None:
        super().__init__()
        self.joined = joined
        self.layers = nn.ModuleList(nn.Conv2d(3, 16, 3, padding=1) for _ in range(3))

    def forward(self, x: Any) -> Any:
        return self.joined(x, *(layer(x).relu() for layer in self.layers))


def twice(x: Any, a: Any, b: Any, c: Any) -> Any:
    return torch.cat([a, b, a, c], 1).amax(1)


def along_the_last(x: Any, a: Any, b: Any, c: Any) -> Any:
    return torch.cat([a, b, c], -1).sin().mean(-1)


def parts_are_used_later(x: Any, a: Any, b: Any, c: Any) -> Any:
    whole = torch.cat([a, b, c], 1)
    return whole.sigmoid().sum(1) + a.sum(1) * c.sum(1)


def a_shorter_one_is_used_later(x: Any, a: Any, b: Any, c: Any) -> Any:
    short, long = torch.cat([a, b], 1), torch.cat([a, b, c], 1)
    return long.sin().sum(1) + short.cos().sum(1)


def both_are_returned(x: Any, a: Any, b: Any, c: Any) -> Any:
    return torch.cat([a, b], 1), torch.cat([a, b, c], 1)


def with_the_input(x: Any, a: Any, b: Any, c: Any) -> Any:
    return torch.cat([x, a, b[:, :0], c], 1).tanh().sum(1)


def of_channels_last(x: Any, a: Any, b: Any, c: Any) -> Any:
    given = [each.to(memory_format=torch.channels_last) for each in (a, b, c)]
    return torch.cat(given, 1).sin().sum(1)


def of_other_types(x: Any, a: Any, b: Any, c: Any) -> Any:
    return torch.cat([a, b.double(), c], 1).sin().sum(1)


WAYS = [
    *(twice, along_the_last, parts_are_used_later, a_shorter_one_is_used_later),
    *(both_are_returned, with_the_input, of_channels_last, of_other_types),
]


def networks() -> list[Any]:
    made = [pytest.param(Dense, id="dense")]
    return made + [
        pytest.param(lambda way=way: Branches(way), id=way.__name__) for way in WAYS
    ]


def lowered(model: nn.Module, x: Any, inference: Inference) -> Any:
    return lower(export(model.eval(), (x,), {}), inference)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("network", networks())
def test_results_are_the_same(network: Callable[[], nn.Module], batch: int) -> None:
    torch.manual_seed(0)
    model, x = network(), torch.randn(batch, 3, 8, 8)
    inference = Inference()
    program = with_filled(lowered(model, x, inference), inference)
    weights = dict(model.named_parameters())
    values = {name: weights[at] for name, at in program.constants.items()}
    values[program.inputs[0]] = x
    with torch.no_grad():
        for op in program.ops:
            args, kwargs = mapped((op.args, op.kwargs), lambda ref: values[ref.name])
            values[op.name] = op.target(*args, **kwargs)
            assert values[op.name].stride() == program.metas[op.name].strides
        found = mapped(program.outputs, lambda ref: values[ref.name])
        expected = model(x)
        several = isinstance(expected, tuple)
        for pair in zip(found, expected if several else (expected,), strict=True):
            torch.testing.assert_close(*pair)


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_a_dense_block_keeps_a_budget(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "seconds", lambda runs, **_: [1.0, 1.01])
    torch.manual_seed(0)
    model, x = Dense().eval(), torch.randn(batch, 3, 64, 64)
    options = memplan.CompileOptions(pack=False)
    compiled = memplan.compile(model, x, "50%", options)
    anytime = memplan.ChunkOptions(max_slowdown=None)
    chunked = memplan.chunk(model, x, "60%", options=anytime)
    for module in (compiled, chunked):
        assert not module.memplan.internal_errors
        for given in (x, torch.randn_like(x)):
            with torch.no_grad():
                close = {"rtol": 1e-4, "atol": 1e-5}
                torch.testing.assert_close(module(given), model(given), **close)


def peaks(model: nn.Module, x: Any) -> tuple[int, int]:
    inference = Inference()
    program = lowered(model, x, inference)
    filled = with_filled(program, inference)
    return profile(program).peak, profile(filled).peak


def test_a_dense_block_keeps_its_parts_once() -> None:
    x = torch.randn(1, 3, 64, 64)
    before, after = peaks(Dense(layers=6, grown=16, window=1), x)
    assert after < 0.8 * before


@pytest.mark.parametrize("way", WAYS)
def test_no_peak_is_higher(way: Callable[..., Any]) -> None:
    before, after = peaks(Branches(way), torch.randn(1, 3, 32, 32))
    assert after <= before


def test_a_skip_is_not_kept_in_a_larger_buffer() -> None:
    """From the top of a U on there is only the skip, not the memory of both."""

    class Skip(nn.Module):
        def forward(self, x: Any) -> Any:
            skip = x.sin()
            small = nn.functional.max_pool2d(skip, 4)
            for _ in range(4):
                small = small.repeat(1, 4, 1, 1).cos().view(1, -1, 4, *small.shape[2:])
                small = small.sum(2)
            return torch.cat(
                [skip, nn.functional.interpolate(small, scale_factor=4)], 1
            )

    before, after = peaks(Skip(), torch.randn(1, 8, 64, 64))
    assert after <= before
