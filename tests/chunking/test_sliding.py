"""Loops that write over their input, of which iterations read more than they write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from memplan.chunking.candidates import Landscape, ends, sweep  # noqa: E402
from memplan.chunking.canonical import searchable  # noqa: E402
from memplan.chunking.code import compiled, source  # noqa: E402
from memplan.chunking.options import Effort  # noqa: E402
from memplan.chunking.region import NotLoopableError, Region, chunked  # noqa: E402
from memplan.chunking.rules.flow import Slice  # noqa: E402
from memplan.compiling.schedule import Choices, scheduled  # noqa: E402
from memplan.core.verify import verify  # noqa: E402
from memplan.graph.check import relative_error  # noqa: E402
from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.liveness import profile  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.measure import Observed, activation_peak, iterations  # noqa: E402
from memplan.graph.program import Loop, Program  # noqa: E402
from memplan.graph.weights import Weights  # noqa: E402
from tests.chunking.looped import Looped, looped  # noqa: E402
from tests.chunking.test_exhaustive import reached  # noqa: E402

pytestmark = pytest.mark.torch
F = nn.functional
ROWS = 23
X = torch.randn(1, 4, ROWS, 16)
CLOSE = 1e-5


class One(nn.Module):
    """A layer on a map that dies there."""

    def __init__(self, layer: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x.sin())


class Residual(nn.Module):
    """Two convolutions beside what they read."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(4, 4, 3, padding=1) for _ in "12")

    def forward(self, x: Any) -> Any:
        x = x.sin()
        return x + self.two(self.one(x).relu())


def conv(size: int, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(4, 4, size, **options)


LAYERS: dict[str, tuple[nn.Module, str, int]] = {
    "of three rows": (conv(3, padding=1), "conv2d", 1),
    "of five rows": (conv(5, padding=2), "conv2d", 2),
    "dilated": (conv(3, padding=3, dilation=3), "conv2d", 3),
    "depthwise": (conv(7, padding=3, groups=4), "conv2d", 3),
    "maximum": (nn.MaxPool2d(3, 1, 1), "max_pool2d", 1),
    "mean": (nn.AvgPool2d(3, 1, 1), "avg_pool2d", 1),
}
RESIDUAL = {
    "conv2d": Slice(2, before=1, after=1),
    "relu": Slice(2, before=1, after=1),
    "conv2d_1": Slice(2),
    "add": Slice(2),
}


def ran(model: nn.Module, slices: dict[str, Slice], step: int) -> Looped:
    made = looped(model, X, Region(slices, ROWS, step, slides=True))
    with torch.no_grad():
        assert torch.allclose(made.found[0], model(X), atol=CLOSE)
    assert made.estimated == made.measured
    return made


def kept(loop: Loop) -> list[int]:
    """The rows that a loop keeps, of each value that it writes over."""
    return [loop.body.metas[total.buffer].shape[total.dim] for total in loop.totals]


@pytest.mark.parametrize("step", [3, 4, 11, 22])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_writes_over_its_input(name: str, step: int) -> None:
    layer, made, rows = LAYERS[name]
    found = ran(One(layer), {made: Slice(2)}, step)
    assert [each.into for each in found.loop.outputs] == ["sin"]
    assert kept(found.loop) == [rows]
    own = looped(One(layer), X, Region({made: Slice(2)}, ROWS, step))
    if step < ROWS // 2:
        assert found.measured < own.measured


@pytest.mark.parametrize("step", [2, 5, 12])
def test_what_is_read_in_two_windows_is_kept_once(step: int) -> None:
    found = ran(Residual(), RESIDUAL, step)
    assert [each.into for each in found.loop.outputs] == ["sin"]
    assert kept(found.loop) == [2]


def test_a_step_has_at_least_the_rows_that_are_kept() -> None:
    found = ran(Residual(), RESIDUAL, 1)
    assert [each.into for each in found.loop.outputs] == [None]
    assert not found.loop.totals


class Shifted(nn.Module):
    """Each row of what comes out depends on rows before it, or after it, alone."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.conv, self.first = conv(3, padding=(2, 1)), first

    def forward(self, x: Any) -> Any:
        return self.conv(x.sin())[:, :, self.first : self.first + ROWS]


def test_only_what_is_ahead_needs_nothing_kept() -> None:
    slices = {"conv2d": Slice(2, before=-2, after=2), "slice_1": Slice(2)}
    found = ran(Shifted(2), slices, 4)
    assert [each.into for each in found.loop.outputs] == ["sin"]
    assert not found.loop.totals


def test_what_came_before_alone() -> None:
    found = ran(Shifted(0), {"conv2d": Slice(2), "slice_1": Slice(2)}, 4)
    assert [each.into for each in found.loop.outputs] == ["sin"]
    assert kept(found.loop) == [2]


@pytest.mark.parametrize(
    "model",
    [
        One(lambda x: F.max_pool2d(x, 3, 1, 1) + x.mean()),  # it is read later
        One(lambda x: F.max_pool2d(x[:, :, 1:], 3, 1, 1)),  # a part of it
        One(lambda x: F.max_pool2d(x.mT.contiguous().mT, 3, 1, 1)),  # columns
        LAYERS["maximum"][0],  # it is the caller's
    ],
)
def test_what_must_stay_is_not_written_over(model: nn.Module) -> None:
    x = torch.randn(1, 4, 16, 16)
    program = lower(export(model, (x,), {}), Inference())
    name = next(op.name for op in program.ops if op.key == "aten.max_pool2d")
    extent = program.metas[name].shape[2]
    made = looped(model, x, Region({name: Slice(2)}, extent, 4, slides=True))
    assert torch.equal(made.found[0], model(x))
    assert [each.into for each in made.loop.outputs] == [None]
    assert not made.loop.totals


def test_only_if_it_is_to() -> None:
    region = Region(RESIDUAL, ROWS, 4)
    made = looped(Residual(), X, region)
    assert [each.into for each in made.loop.outputs] == [None]
    assert not made.loop.totals


def test_a_loop_within_it() -> None:
    """A loop over channels, in one over rows that writes over its input."""
    inner = Region({"relu_i": Slice(1)}, 4, 1)
    region = Region(RESIDUAL, ROWS, 4, inner=(inner,), slides=True)
    made = looped(Residual(), X, region)
    assert [each.into for each in made.loop.outputs] == ["sin"]
    assert any(isinstance(step, Loop) for step in made.loop.body.ops)
    assert made.estimated == made.measured


def test_within_a_loop() -> None:
    """A loop over rows that writes over its input, in one over images."""
    whole = {name: Slice(0) for name in ("sin", *RESIDUAL)}
    slices = {f"{name}_i": piece for name, piece in RESIDUAL.items()}
    inner = Region(slices, ROWS, 4, slides=True)
    region = Region(whole, 3, 1, inner=(inner,))
    model, x = Residual(), torch.randn(3, 4, ROWS, 16)
    made = looped(model, x, region)
    (loop,) = (each for each in made.loop.body.ops if isinstance(each, Loop))
    assert [each.into for each in loop.outputs] == ["sin_i"]
    assert kept(loop) == [2]
    assert torch.allclose(made.found[0], model(x), atol=CLOSE)
    assert made.estimated == made.measured


@pytest.mark.parametrize("step", [2, 5])
def test_in_an_arena(step: int) -> None:
    """A compiled model runs the same loop without memory of its own."""
    model = Residual().eval()
    inference = Inference()
    exported = export(model, (X,), {})
    program = chunked(
        lower(exported, inference), Region(RESIDUAL, ROWS, step, slides=True), inference
    )
    weights = Weights(model, exported.constants)
    constants = {name: weights[at].detach() for name, at in program.constants.items()}
    found = scheduled(program, constants, [X], Choices(False))
    assert not verify(found.plan)
    tape = found.tape(torch.empty(found.bytes, dtype=torch.uint8))
    for given in (X, -X):
        (result,) = tape([given])
        with torch.no_grad():
            assert torch.allclose(result, model(given), atol=CLOSE)


class Chain(nn.Module):
    """Layers that keep the shape, one after another; some are added to what they
    read."""

    KINDS: tuple[Callable[[], Any], ...] = (
        *(lambda layer=layer: layer for layer, *_ in LAYERS.values()),
        nn.ReLU,
        nn.Tanh,
        lambda: nn.BatchNorm2d(4),
        lambda: Shifted(0),
        lambda: Shifted(2),
        lambda: lambda x: F.interpolate(x, scale_factor=2)[:, :, :ROWS, :16],
        lambda: lambda x: x.flip(1) * 0.5,
    )

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.steps = [
            (random.choice(self.KINDS)(), random.random() < 0.3)
            for _ in range(random.randint(1, 4))
        ]
        self.held = nn.ModuleList(
            layer for layer, _ in self.steps if isinstance(layer, nn.Module)
        )

    def forward(self, x: Any) -> Any:
        x = x.sin()
        for layer, residual in self.steps:
            x = x + layer(x) if residual else layer(x)
        return x


def regions(program: Program) -> Iterator[Region]:
    """All regions of a program along a dimension, in several steps."""
    errors = Counter[str]()
    land = Landscape(program, errors)
    for last, dim in ends(land, 0, len(program.ops)):
        for one in sweep(land, last, dim, 0, False):
            steps = {one.granule * count for count in (1, 2, 3, 8)}
            for step in sorted(step for step in steps if step < one.extent):
                yield Region(
                    one.slices, one.extent, step, granule=one.granule, slides=True
                )
    assert not errors


@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 400), marks=pytest.mark.soak)]
)
def test_random_layers_in_random_loops(seeds: range) -> None:
    """They compute what the layers do, in what is estimated."""
    slid = inside = 0
    for seed in seeds:
        random = Random(seed)
        torch.manual_seed(seed)
        model, x = Chain(random).eval(), torch.randn(2, 4, ROWS, 16)
        inference = Inference()
        exported = export(model, (x,), {})
        program = lower(exported, inference)
        weights = Weights(model, exported.constants)
        with torch.no_grad():
            expected = model(x)
        offered = list(regions(program))
        for region in random.sample(offered, min(12, len(offered))):
            made = _built(program, region, inference)
            if made is None:
                continue
            loop = next(each for each in made.ops if isinstance(each, Loop))
            slid += bool(kept(loop))
            more = list(regions(loop.body))
            if kept(loop) and more:
                deeper = replace(region, inner=(random.choice(more),))
                nested = _built(program, deeper, inference)
                inside += nested is not None
                made = nested or made
            text = source(made, "random")
            run = compiled(text, "random")
            with torch.no_grad():
                (found,) = run([x], weights)
                assert relative_error(expected, found) < CLOSE, text
                measured = activation_peak(partial(run, [x], weights))
            given = {name: weights[at] for name, at in made.constants.items()}
            seen = Observed(given).temporaries
            estimate = profile(made, True, seen, bodies=iterations).peak
            assert abs(estimate - measured) <= 0.02 * measured, text
    assert slid >= len(seeds)
    assert inside >= len(seeds) // 4


def _built(program: Program, region: Region, inference: Inference) -> Program | None:
    try:
        return chunked(program, region, inference)
    except NotLoopableError:
        return None


class Normed(nn.Module):
    """Each convolution needs the statistics of all that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(2, 4) for _ in "123")
        self.convs = nn.ModuleList(conv(3, padding=1) for _ in "123")

    def forward(self, x: Any) -> Any:
        for norm, layer in zip(self.norms, self.convs, strict=True):
            x = layer(norm(x).relu())
        return x.mean((2, 3))


def test_the_search_finds_it() -> None:
    """A network needs little more than one map at a time."""
    x = torch.randn(1, 4, 64, 64)
    inference = Inference()
    program = searchable(lower(export(Normed().eval(), (x,), {}), inference), inference)
    found = reached(program, inference, Effort())
    assert any(region.slides for region in found.regions)
    assert x.nbytes < found.peak < 2 * x.nbytes
