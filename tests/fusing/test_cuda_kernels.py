"""Kernels of the CUDA back end: their own source, run on a CPU, against torch."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memplan.errors import UsageError
from memplan.fusing.cuda.form import Kernel
from memplan.fusing.cuda.run import CudaStack
from memplan.fusing.operators import OPERATORS, Operation, Pool
from tests.fusing.cuda_on_cpu import Cpu
from tests.fusing.cuda_stacks import (
    by_torch,
    operands_for,
    random_elementwise,
    random_operations,
)

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TOLERANCE = {torch.float32: 5e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, 50.0, -50.0]


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Cpu:
    return Cpu(tmp_path_factory.mktemp("kernels"))


def values(shape: tuple[int, ...], chance: random.Random, special: float = 0.0) -> Any:
    """Random numbers, some of which are what numbers seldom are."""
    torch.manual_seed(chance.randint(0, 1 << 30))
    found = torch.randn(shape) * 2
    where = torch.rand(shape) < special
    found[where] = torch.tensor(
        [chance.choice(SPECIAL) for _ in range(int(where.sum()))]
    )
    return found


def compare(
    stack: CudaStack, operations: list[Operation], value: Any, operands: Sequence[Any]
) -> None:
    found = stack(value, operands)
    expected = by_torch(operations, value.float(), list(operands))
    assert found.dtype == value.dtype
    assert found.shape == expected.shape
    last = not value.is_contiguous() and value.is_contiguous(
        memory_format=torch.channels_last
    )
    assert found.is_contiguous(
        memory_format=torch.channels_last if last else torch.contiguous_format
    )
    tolerance = TOLERANCE[value.dtype]
    torch.testing.assert_close(
        found, expected.to(value.dtype), rtol=tolerance, atol=tolerance, equal_nan=True
    )


@settings(max_examples=12, suppress_health_check=list(HealthCheck), derandomize=True)
@given(seed=st.integers(0, 1 << 30))
def test_random_stacks(cpu: Cpu, seed: int) -> None:
    check_random_stack(cpu, seed)


def check_random_stack(cpu: Cpu, seed: int) -> None:
    chance = random.Random(seed)
    shape = (
        *(chance.randint(1, 3), chance.choice([1, 3, 5, 33])),
        *(chance.randint(1, 23), chance.randint(1, 23)),
    )
    operations = random_operations(chance, *shape[2:], chance.randint(0, 4))
    # The less shared memory, the more and the smaller patches.
    limit = chance.choice([512, 2048, 8192, 48 << 10])
    stack = CudaStack(operations, cpu, limit, chance.choice([None, None, 1, 2]))
    dtype = chance.choice([torch.float32, torch.float16, torch.bfloat16])
    operands = operands_for(operations, shape, dtype)
    order = chance.choice([torch.contiguous_format, torch.channels_last])
    value = values(shape, chance, chance.choice([0.0, 0.05])).to(dtype)
    compare(stack, operations, value.contiguous(memory_format=order), operands)


@pytest.mark.parametrize("kind", sorted(OPERATORS))
def test_each_operation_alone(cpu: Cpu, kind: str) -> None:
    chance = random.Random(kind)
    while (operation := random_elementwise(chance)).kind != kind:
        pass
    shape = (2, 3, 5, 4)
    value = values(shape, chance, 0.3)
    compare(
        CudaStack([operation], cpu),
        [operation],
        value,
        operands_for([operation], shape, value.dtype),
    )


@pytest.mark.parametrize("order", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("float32", (2, 8, 4, 4)),
        ("float16", (3, 5, 7, 3)),
        ("float16", (2, 8, 4, 4)),
        ("bfloat16", (1, 4, 2, 3)),
    ],
)
def test_elements_several_at_a_time(
    cpu: Cpu, dtype: str, order: str, shape: tuple[int, ...]
) -> None:
    kinds = ("affine", "gate", "add", "relu")
    operations = [Operation(kind) for kind in kinds]
    stack = CudaStack(operations, cpu)
    type_ = getattr(torch, dtype)
    value = values(shape, random.Random(1)).to(type_)
    operands = operands_for(operations, shape, type_)
    format_ = getattr(torch, order)
    compare(stack, operations, value.contiguous(memory_format=format_), operands)
    # One that starts where nothing is aligned.
    moved = torch.empty(value.numel() + 1, dtype=type_)[1:].view(value.shape)
    compare(stack, operations, moved.copy_(value), operands)


def paper_stack(count: int) -> list[Operation]:
    """The stack of the paper's Figure 10."""
    pool = Pool("max", (3, 3), (1, 1), (1, 1))
    return [
        Operation("pool", pool=pool),
        Operation("affine"),
        Operation("relu"),
    ] * count


@pytest.mark.parametrize("limit", [4 << 10, 14 << 10, 227 << 10])
@pytest.mark.parametrize("order", ["contiguous_format", "channels_last"])
def test_the_paper_s_stack(cpu: Cpu, limit: int, order: str) -> None:
    operations = paper_stack(5)
    shape = (2, 3, 28, 28)
    value = values(shape, random.Random(2), 0.01)
    operands = operands_for(operations, shape, torch.float32)
    value = value.contiguous(memory_format=getattr(torch, order))
    compare(CudaStack(operations, cpu, limit), operations, value, operands)


@pytest.mark.parametrize("mode", ["max", "average"])
def test_a_window_of_the_whole_plane(cpu: Cpu, mode: str) -> None:
    pool = Pool(mode, (7, 9), (7, 9))
    operations = [Operation("relu"), Operation("pool", pool=pool), Operation("affine")]
    shape = (3, 4, 7, 9)
    operands = operands_for(operations, shape, torch.float32)
    compare(
        CudaStack(operations, cpu),
        operations,
        values(shape, random.Random(3)),
        operands,
    )


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("pools", [1, 2])
def test_what_is_no_number_stays(cpu: Cpu, special: float, pools: int) -> None:
    operations = [
        Operation("pool", pool=Pool("max", (3, 2), (2, 1), (1, 1))),
        *[Operation("pool", pool=Pool("average", (2, 2), (1, 1)))] * (pools - 1),
    ]
    value = torch.zeros(1, 1, 9, 9)
    value[0, 0, 4, 4] = special
    compare(CudaStack(operations, cpu), operations, value, [])


def test_windows_that_are_all_padding(cpu: Cpu) -> None:
    operations = [
        Operation("pool", pool=Pool("max", (2, 2), (1, 1), (1, 1), (4, 4))),
        Operation("pool", pool=Pool("max", (1, 1), (1, 1))),
    ]
    compare(CudaStack(operations, cpu), operations, torch.randn(1, 2, 3, 4), [])


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_of_a_block_wait_for_each_other(tmp_path: Path, threads: int) -> None:
    several = Cpu(tmp_path, threads)
    for seed in range(2):
        check_random_stack(several, seed)
    operations = paper_stack(4)
    shape = (2, 2, 20, 21)
    operands = operands_for(operations, shape, torch.float32)
    stack = CudaStack(operations, several, 6 << 10)
    for seed in range(3):
        compare(stack, operations, values(shape, random.Random(seed)), operands)


def test_a_stack_is_ready_once(cpu: Cpu) -> None:
    made: list[Kernel] = []

    class Counting(Cpu):
        def ready(self, kernel: Kernel) -> Any:
            made.append(kernel)
            return super().ready(kernel)

    operations = paper_stack(2)
    stack = CudaStack(operations, Counting(cpu.folder))
    for images in (1, 4, 2):
        shape = (images, 3, 8, 8)
        operands = operands_for(operations, shape, torch.float32)
        compare(stack, operations, torch.randn(shape), operands)
    assert len(made) == 1
    stack(torch.randn(1, 3, 9, 8), operands)
    assert len(made) == 2


def test_values_that_lie_otherwise(cpu: Cpu) -> None:
    operations = paper_stack(1)
    shape = (2, 3, 8, 6)
    operands = operands_for(operations, shape, torch.float32)
    value = torch.randn(2, 3, 6, 8).transpose(2, 3)
    stack = CudaStack(operations, cpu)
    torch.testing.assert_close(
        stack(value, operands), by_torch(operations, value, operands)
    )


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 0, 8, 8)])
def test_nothing_goes_in(cpu: Cpu, shape: tuple[int, ...]) -> None:
    operations = [Operation("pool", pool=Pool("max", (2, 2), (2, 2)))]
    assert CudaStack(operations, cpu)(torch.empty(shape)).shape == (*shape[:2], 4, 4)


def test_many_images_are_several_launches(
    cpu: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memplan.fusing.cuda.run._MOST_ELEMENTS", 2 * 3 * 8 * 8)
    operations = [*paper_stack(2), Operation("gate"), Operation("add")]
    shape = (5, 3, 8, 8)
    operands = operands_for(operations, shape, torch.float32)
    value = torch.randn(shape)
    compare(CudaStack(operations, cpu), operations, value, operands)
    with pytest.raises(UsageError, match="too large for one launch"):
        CudaStack([Operation("relu")], cpu)(torch.randn(1, 3, 16, 16))


def test_tensors_that_do_not_fit_are_refused(cpu: Cpu) -> None:
    stack = CudaStack([Operation("affine"), Operation("add")], cpu)
    value, channel = torch.randn(2, 3, 4, 4), torch.randn(3)
    for given_, says in [
        ([channel, channel], "3 operands, not 2"),
        ([channel, channel[:2], value], "is no channel"),
        ([channel, channel, value[:1]], "is no tensor"),
        ([channel, channel, value.bfloat16()], "bfloat16"),
    ]:
        with pytest.raises(UsageError, match=says):
            stack(value, given_)
    with pytest.raises(UsageError, match="4 dimensions"):
        stack(value[0], [channel, channel, value[0]])
    with pytest.raises(UsageError, match="float64: kernels take float32"):
        stack(value.double(), [channel, channel, value.double()])
    with pytest.raises(UsageError, match="is for cpu, not meta"):
        stack(value.to("meta"), [])
    with pytest.raises(UsageError, match="at least one"):
        CudaStack([], cpu)
