"""Triton kernels of stacks, run on the CPU by Triton's interpreter, against torch."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from memplan.errors import EnvironmentUnfitError, UsageError
from memplan.fusing.collapse import Stack
from memplan.fusing.operators import OPERATORS, Operation, Pool
from memplan.fusing.triton_stack import TritonStack
from tests.fusing.random_stacks import (
    differences,
    fitting,
    random_operations,
    random_stack,
    random_tensors,
    sprinkle,
)

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402

from memplan.compiling.on_gpu import OnGPU  # noqa: E402
from memplan.fusing.reference import reference  # noqa: E402
from memplan.graph.call import Inputs  # noqa: E402
from memplan.graph.capture import capture  # noqa: E402

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture(scope="module", autouse=True)
def interpreted() -> Iterator[None]:
    pytest.importorskip("triton")
    numpy = pytest.importorskip("numpy")
    with pytest.MonkeyPatch.context() as patch, numpy.errstate(all="ignore"):
        patch.setenv("TRITON_INTERPRET", "1")
        yield


def check(stack: Stack, x: Any, operands: list[Any]) -> Any:
    found = TritonStack(stack.operations)(x, operands)
    expected = reference(stack, x.float(), operands)
    assert found.dtype == x.dtype
    assert not differences(found, expected.to(x.dtype), TOLERANCE[x.dtype])
    return found


@pytest.mark.parametrize("kind", sorted(OPERATORS))
def test_each_operator(kind: str) -> None:
    stack = Stack(tuple(random_operations(random.Random(kind), kind)))
    x, operands = random_tensors(stack, (2, 3, 5, 4), torch.float32, 1)
    x *= 2
    if kind != "gelu":  # torch makes NaN of infinity
        sprinkle(x, 2)
    check(stack, x, operands)


@pytest.mark.parametrize("seed", range(8))
def test_random_stacks(seed: int) -> None:
    draw = random.Random(seed)
    stack = random_stack(draw)
    plane = fitting(stack, draw.randint(4, 16), draw.randint(4, 16))
    dtype = draw.choice(list(TOLERANCE))
    x, operands = random_tensors(stack, (2, draw.choice([1, 3]), *plane), dtype, seed)
    check(stack, x, operands)


def pooled(*operations: Operation, **numbers: Any) -> Stack:
    """A stack of these operations and a pool behind the first of them."""
    pool = Pool(**{"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1), **numbers})
    first, *rest = operations
    return Stack((first, Operation("pool", pool=pool), *rest))


@pytest.mark.parametrize(
    "numbers",
    [
        {"mode": "max", "dilation": (4, 4), "kernel": (2, 2)},  # windows of padding
        {"mode": "max", "ceil": True, "stride": (3, 2)},
        {"mode": "average"},
        {"mode": "average", "count_padding": False, "ceil": True},
        {"mode": "average", "divisor": 5},
        {"mode": "average", "kernel": (9, 7), "padding": (0, 0)},  # the whole plane
    ],
    ids=str,
)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_pools_between_operands(numbers: dict[str, Any], order: Any) -> None:
    kinds = ("affine", "gate", "add", "relu")
    stack = pooled(*(Operation(kind) for kind in (*kinds[:1], *kinds)), **numbers)
    x, operands = random_tensors(stack, (2, 3, 9, 7), torch.float32, 4)
    operands = [each[..., None, None] if each.dim() == 2 else each for each in operands]
    found = check(stack, x.contiguous(memory_format=order), operands)
    assert found.is_contiguous(memory_format=order)


def test_values_that_lie_otherwise() -> None:
    stack = pooled(Operation("add"), mode="max")
    x, operands = random_tensors(stack, (2, 3, 9, 7), torch.float32, 5)
    turned = [each.transpose(2, 3).contiguous().transpose(2, 3) for each in operands]
    check(stack, x.transpose(2, 3).contiguous().transpose(2, 3), turned)


@pytest.mark.parametrize("shape", [(0, 3, 9, 7), (2, 0, 9, 7)])
def test_nothing_goes_in(shape: tuple[int, ...]) -> None:
    stack = pooled(Operation("relu"), mode="max")
    assert TritonStack(stack.operations)(torch.empty(shape)).numel() == 0


def test_tensors_that_do_not_fit_are_refused() -> None:
    stack = TritonStack([Operation("affine"), Operation("add")])
    x, channel = torch.randn(2, 3, 4, 4), torch.randn(3)
    for operands, says in [
        ([channel, channel], "3 operands, not 2"),
        ([channel, channel[:2], x], r"channel is \(2,\)"),
        ([channel, channel, x.bfloat16()], "bfloat16"),
        ([channel, channel, x.to("meta")], "on meta"),
    ]:
        with pytest.raises(UsageError, match=says):
            stack(x, operands)
    for value in (x[0], x.double()):
        with pytest.raises(UsageError, match="a stack takes"):
            stack(value, [channel, channel, value])


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(EnvironmentUnfitError, match="need Triton"):
        TritonStack([Operation("relu")])


def test_a_network_s_stacks() -> None:
    model = nn.Sequential(
        *(nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(3, 1, 1)),
        *(nn.Conv2d(3, 4, 1), nn.Sigmoid(), nn.AvgPool2d(2)),
    ).eval()
    x = torch.randn(2, 3, 8, 8)
    target = capture(model, Inputs((x,), {}), quick=True)
    made = OnGPU(target)
    with torch.no_grad():
        assert made.fuses()
        torch.testing.assert_close(made.run(Inputs((x,), {})), model(x))
        model[3].weight.mul_(2)
        model[0].running_mean.add_(1)
        torch.testing.assert_close(made.run(Inputs((x,), {})), model(x))
        assert not made.stale()
        model[0].eps = 0.5
        assert made.stale()
