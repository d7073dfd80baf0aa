"""Stacks on a GPU: what torch computes there, whatever the sizes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from memplan.fusing.cuda.gpu import Gpu, find_nvrtc
from memplan.fusing.cuda.run import CudaStack
from memplan.fusing.operators import Operation, Pool
from memplan.toolchain.cache import Cache
from tests.fusing.cuda_stacks import by_torch, operands_for, random_operations

torch = pytest.importorskip("torch")

TOLERANCE = {torch.float32: 5e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Gpu:
    if find_nvrtc() is None:
        pytest.skip("the test needs NVRTC, and it is not there")
    return Gpu(cache=Cache(tmp_path_factory.mktemp("cubins")))


def check(
    stack: CudaStack, shape: tuple[int, ...], dtype: torch.dtype, order: object
) -> None:
    operations = list(stack.operations)
    value = (2 * torch.randn(shape)).to("cuda", dtype)
    value[torch.rand(shape, device="cuda") < 0.02] = torch.nan
    value = value.contiguous(memory_format=order)
    operands = [each.cuda() for each in operands_for(operations, shape, dtype)]
    found = stack(value, operands)
    expected = by_torch(operations, value.float(), [each.float() for each in operands])
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        found, expected.to(dtype), rtol=tolerance, atol=tolerance, equal_nan=True
    )


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("count", [1, 5, 20])
def test_the_paper_s_stack(
    gpu: Gpu, count: int, dtype: torch.dtype, order: object
) -> None:
    pool = Operation("pool", pool=Pool("max", (3, 3), (1, 1), (1, 1)))
    operations = [pool, Operation("affine"), Operation("relu")] * count
    # A scale above 1 lets values grow, beyond float16 in 20 steps.
    operations.append(Operation("tanh"))
    check(CudaStack(operations, gpu), (4, 40, 56, 56), dtype, order)


@pytest.mark.parametrize("seed", range(40))
def test_random_stacks(gpu: Gpu, seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    shape = (
        *(chance.randint(1, 5), chance.choice([1, 3, 33, 64])),
        *(chance.randint(1, 70), chance.randint(1, 70)),
    )
    operations = random_operations(chance, *shape[2:], chance.randint(0, 4))
    limit = chance.choice([None, gpu.most, 8192, 2048])
    order = chance.choice([torch.contiguous_format, torch.channels_last])
    check(CudaStack(operations, gpu, limit), shape, torch.float32, order)


def test_it_runs_on_the_current_stream(gpu: Gpu) -> None:
    stack = CudaStack([Operation("mul_number", (2.0,))], gpu)
    value = torch.ones(64, 64, 128, 128, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = value
        for _ in range(8):
            found = stack(found)
    stream.synchronize()
    assert bool((found == 256).all())


def test_cubins_are_read_again(gpu: Gpu, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cubins")
    value = torch.randn(2, 3, 8, 8, device="cuda")
    for _ in range(2):
        stack = CudaStack([Operation("relu")], Gpu(cache=cache))
        torch.testing.assert_close(stack(value), value.relu())
    assert len(list(cache.folder.iterdir())) == 1
