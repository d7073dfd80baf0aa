"""Stacks on a GPU: what torch computes there, whatever the sizes."""

from __future__ import annotations

import random

import pytest

from memplan.fusing.collapse import Stack
from memplan.fusing.operators import Operation, Pool
from memplan.fusing.reference import reference
from memplan.fusing.triton_stack import TritonStack
from tests.fusing.random_stacks import (
    differences,
    fitting,
    random_stack,
    random_tensors,
    sprinkle,
)

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

TOLERANCE = {torch.float32: 5e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def check(
    stack: Stack, shape: tuple[int, ...], dtype: torch.dtype, order: object
) -> None:
    x, operands = random_tensors(stack, shape, dtype, 1)
    sprinkle(x, 2)
    x = x.cuda().contiguous(memory_format=order)
    operands = [each.cuda() for each in operands]
    found = TritonStack(stack.operations)(x, operands)
    expected = reference(stack, x.float(), operands).to(dtype)
    assert not differences(found.cpu(), expected.cpu(), TOLERANCE[dtype])


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("count", [1, 5, 20])
def test_the_paper_s_stack(count: int, dtype: torch.dtype, order: object) -> None:
    pool = Operation("pool", pool=Pool("max", (3, 3), (1, 1), (1, 1)))
    operations = [pool, Operation("affine"), Operation("relu")] * count
    # A scale above 1 lets values grow, beyond float16 in 20 steps.
    operations.append(Operation("tanh"))
    check(Stack(tuple(operations)), (4, 40, 56, 56), dtype, order)


@pytest.mark.parametrize("seed", range(40))
def test_random_stacks(seed: int) -> None:
    draw = random.Random(seed)
    stack = random_stack(draw)
    plane = fitting(stack, draw.randint(4, 70), draw.randint(4, 70))
    shape = (draw.randint(1, 5), draw.choice([1, 3, 33, 64]), *plane)
    order = draw.choice([torch.contiguous_format, torch.channels_last])
    check(stack, shape, torch.float32, order)


def test_it_runs_on_the_current_stream() -> None:
    stack = TritonStack([Operation("mul_number", (2.0,))])
    value = torch.ones(64, 64, 128, 128, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = value
        for _ in range(8):
            found = stack(found)
    stream.synchronize()
    assert bool((found == 256).all())
