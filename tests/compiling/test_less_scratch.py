"""Convolutions and pooling in parts or as products: less memory, the same results."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memplan  # noqa: E402
from memplan.compiling import bench  # noqa: E402
from memplan.compiling.passes import expanded, unrolled  # noqa: E402
from memplan.compiling.scratch import with_less_scratch  # noqa: E402
from memplan.graph.export import export  # noqa: E402
from memplan.graph.infer import Inference  # noqa: E402
from memplan.graph.lower import lower  # noqa: E402
from memplan.graph.program import mapped  # noqa: E402
from memplan.graph.requests import Asked, Request  # noqa: E402
from tests.compiling.modules import compiled  # noqa: E402

pytestmark = pytest.mark.torch
NAMES = ("conv2d", "conv_transpose2d", "max_pool2d")


def lowered(model: nn.Module, x: Any, scratch: int, room: int = 0) -> tuple[Any, int]:
    """What the program computes whose operators ask for so much, and how many of its
    operators it changed."""
    inference = Inference()
    program = lower(export(model.eval(), (x,), {}), inference)
    weights = dict(model.named_parameters())
    constants = {name: weights[at].detach() for name, at in program.constants.items()}
    flat = expanded(unrolled(program, constants, inference), inference)
    row = Asked((Request(scratch, 0, 1, None),), 2)
    asked = {op.name: row for op in flat.program.ops if op.name.startswith(NAMES)}
    changed = with_less_scratch(flat, asked, lambda _: [], inference, room)
    values: dict[str, Any] = {**changed.constants, changed.program.inputs[0]: x}
    for op in changed.program.ops:
        args, kwargs = mapped((op.args, op.kwargs), lambda ref: values[ref.name])
        values[op.name] = op.target(*args, **kwargs)
        assert values[op.name].shape == changed.program.metas[op.name].shape
    (result,) = mapped(changed.program.outputs, lambda ref: values[ref.name])
    kept = {op.name for op in changed.program.ops}
    return result, len(asked.keys() - kept)


def check(model: nn.Module, x: Any, scratch: int) -> None:
    with torch.no_grad():
        result, changed = lowered(model, x, scratch)
        expected = model(x)
    assert changed == 1
    assert result.shape == expected.shape
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


SIZES = st.integers(1, 3)


@given(
    st.tuples(*[SIZES] * 8), st.integers(1, 2), st.sampled_from([1, 2, 4]),
    st.booleans(), st.integers(9, 70), st.sampled_from([1 << 10, 1 << 14, 1 << 24]),
)  # fmt: skip
@settings(max_examples=12, deadline=None)
def test_convolutions(
    numbers: tuple[int, ...], images: int, groups: int, bias: bool, height: int,
    scratch: int,
) -> None:  # fmt: skip
    a, b, c, d, e, f, g, h = numbers
    layer = nn.Conv2d(
        8, 32, (a, b), (c, d), (e - 1, f - 1), (g, h), groups=groups, bias=bias
    )
    x = torch.randn(images, 8, height, 9)
    assume(height + 2 * (e - 1) > (a - 1) * g)
    assume(layer(x).shape[2] >= 8)
    with torch.no_grad():
        result, _ = lowered(layer, x, scratch)
        torch.testing.assert_close(result, layer(x), rtol=1e-4, atol=1e-4)


@given(
    st.tuples(*[SIZES] * 4), st.integers(0, 1), st.integers(0, 1), st.booleans(),
    st.integers(20, 70),
)  # fmt: skip
@settings(max_examples=12, deadline=None)
def test_pooling(
    numbers: tuple[int, ...], pad: int, across: int, up: bool, height: int
) -> None:
    a, b, c, d = numbers
    pad, across = min(pad, a // 2), min(across, b // 2)
    layer = nn.MaxPool2d((a, b), (c, d), (pad, across), (1, 2), ceil_mode=up)
    x = torch.randn(2, 8, height, 9)
    assume(layer(x).shape[2] >= 8)
    check(layer, x, 1 << 24)


@given(st.integers(1, 3), st.integers(1, 3), st.booleans(), st.integers(8, 33))
@settings(max_examples=10, deadline=None)
def test_transposed_convolutions(step: int, wide: int, bias: bool, height: int) -> None:
    layer = nn.ConvTranspose2d(8, 16, (step, wide), (step, 2), bias=bias, groups=2)
    check(layer, torch.randn(2, 8, height, 9), 1 << 24)


@pytest.mark.parametrize(
    ("layer", "changes"),
    [
        (nn.Conv2d(64, 256, 3, padding=1), True),  # as a product
        (nn.Conv2d(64, 256, 3, padding=1, bias=False), True),
        (nn.Conv2d(64, 256, 3, padding=1, padding_mode="circular"), True),
        (nn.Conv2d(64, 256, 3, padding="same"), False),
        (nn.Conv2d(1, 1, (1, 3), padding=2, dilation=2), False),  # rows of padding
        (nn.ConvTranspose2d(8, 8, 3, 2), False),
    ],
)
def test_kinds(layer: nn.Module, changes: bool) -> None:
    x = torch.randn(1, layer.in_channels, 4, 4)
    with torch.no_grad():
        result, changed = lowered(layer, x, 1 << 20)
        torch.testing.assert_close(result, layer(x), rtol=1e-4, atol=1e-4)
    assert bool(changed) == changes


def test_what_fits_a_budget_stays() -> None:
    layer, x = nn.Conv2d(8, 64, 3, padding=1), torch.randn(1, 8, 32, 32)
    for room, changes in ((0, True), (1 << 20, True), (1 << 22, False)):
        with torch.no_grad():
            result, changed = lowered(layer, x, 1 << 21, room)
            torch.testing.assert_close(result, layer(x), rtol=1e-4, atol=1e-4)
        assert bool(changed) == changes


def test_bad_numbers_stay() -> None:
    """Infinity and NaN in the result are those of the model."""
    layer = nn.MaxPool2d(2)
    x = torch.randn(1, 8, 64, 8)
    x[0, :, ::7] = torch.nan
    x[0, :, ::5] = -torch.inf
    result, changed = lowered(layer, x, 1 << 24)
    assert changed == 1
    assert torch.equal(result.nan_to_num(), layer(x).nan_to_num())


def test_a_network_takes_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "seconds", lambda runs, **_: [1.0, 1.01])
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4)]
    layers += [nn.Conv2d(64, 512, 3, padding=1), nn.ReLU(), nn.Conv2d(512, 512, 3)]
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 3, 96, 96)
    plan = compiled(model, x, options=memplan.CompileOptions(pack=False)).memplan
    assert plan.bytes_after < 0.8 * plan.bytes_before
    assert plan.packed == 0
    assert plan.plan.peak == plan.plan.lower_bound
    assert not memplan.verify(plan.plan)


def test_what_is_too_slow_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.5, 1.5, 1.0])  # what is slow is measured twice
    monkeypatch.setattr(bench, "seconds", lambda runs, **_: [1.0, next(times)])
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 3, 96, 96)
    options = memplan.CompileOptions(pack=False, max_slowdown=1.1)
    module = memplan.compile(model, x, options=options)
    assert list(times) == []
    assert module.memplan.slowdown == 1
