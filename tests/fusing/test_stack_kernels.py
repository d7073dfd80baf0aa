"""Kernels of stacks give what torch gives, layer by layer."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_stacks import (
    CPU,
    differences,
    fitting,
    random_operations,
    random_stack,
    random_tensors,
    run,
    sprinkle,
)

from memplan.fusing.collapse import Stack, collapse
from memplan.fusing.generate import DTYPES, LAYOUTS
from memplan.fusing.kernel import Kernel, compiled_many
from memplan.fusing.operators import OPERATORS, Operation, Pool
from memplan.fusing.reference import reference
from memplan.toolchain.compiler import find_compiler
from memplan.toolchain.instructions import supported

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler"),
]

TOLERANCES = {"float32": 1e-5, "bfloat16": 1.2 * 2**-8}


def stacks_to_try(count: int, seed: int) -> list[Stack]:
    draw = random.Random(seed)
    return [random_stack(draw) for _ in range(count)]


def placed(x: Any, layout: str, form: str) -> Any:
    """The same values, as they may come: packed, apart, or part of a wider tensor."""
    last = layout == "channels_last"
    memory = torch.channels_last if last else torch.contiguous_format
    if form == "packed":
        return x.contiguous(memory_format=memory)
    if form == "turned":
        return x.transpose(2, 3).contiguous().transpose(2, 3)
    images, channels, height, width = x.shape
    wide = torch.full((images, channels + 5, height, width), torch.nan, dtype=x.dtype)
    wide = wide.contiguous(memory_format=memory)
    part = wide[:, 2 : 2 + channels]
    part.copy_(x)
    return part


FORMS = st.sampled_from(["packed", "turned", "sliced"])
CASES = {
    "images": st.integers(1, 3),
    "channels": st.sampled_from([1, 2, 3, 5, 16, 17, 40]),
    "height": st.integers(1, 40),
    "width": st.integers(1, 40),
    "form": FORMS,
    "special": st.booleans(),
    "cache": st.sampled_from([0, 6000, 43008]),
    "threads": st.sampled_from([1, 1, 2, 3]),
    "seed": st.integers(0, 2**30),
}


def check(
    stack: Stack, kernel: Kernel, images: int, channels: int, height: int, width: int,
    form: str, special: bool, cache: int, threads: int, seed: int,
) -> None:  # fmt: skip
    dtype = getattr(torch, kernel.dtype)
    shape = (images, channels, *fitting(stack, height, width))
    x, operands = random_tensors(stack, shape, dtype, seed)
    # Of gelu's infinity torch makes NaN or infinity, as the vector happens to end.
    if special and "gelu" not in {each.kind for each in stack.operations}:
        sprinkle(x, seed)
        for operand in operands[:1]:
            sprinkle(operand, seed + 1)
    want = reference(stack, x.float(), [operand.float() for operand in operands])
    kernel = replace(kernel, cache=cache)
    out = placed(torch.full(kernel.out_shape(shape), torch.nan, dtype=dtype),
                 kernel.layout, "packed" if form == "turned" else form)  # fmt: skip
    got = run(kernel, placed(x, kernel.layout, form), operands, out, threads)
    tolerance = TOLERANCES[kernel.dtype] * len(stack.sequences)
    assert not differences(got.float(), want, tolerance), str(stack)


def compiled_all(stacks: list[Stack], instructions: str = "native") -> list[Kernel]:
    """Kernels of the first stack in all dtypes and layouts, of the second, …"""
    found = [
        compiled_many(stacks, dtype, layout, instructions)
        for dtype in DTYPES
        for layout in LAYOUTS
    ]
    return [kernel for several in zip(*found, strict=True) for kernel in several]


@functools.cache
def kernels() -> list[Kernel]:
    return compiled_all(stacks_to_try(3, 5))


@settings(max_examples=50, deadline=None)
@given(which=st.integers(0, 10**6), **CASES)
def test_random_stacks_equal_torch(which: int, **case: Any) -> None:
    kernel = kernels()[which % len(kernels())]
    check(kernel.stack, kernel, **case)


@pytest.mark.soak
def test_three_hundred_different_stacks_equal_torch() -> None:
    draw = random.Random(11)
    stacks = stacks_to_try(300, 12)
    for start in range(0, len(stacks), 10):
        some = stacks[start : start + 10]
        for kernel in compiled_many(some, draw.choice(DTYPES), draw.choice(LAYOUTS)):
            for _ in range(3):
                check(
                    kernel.stack, kernel, images=2,
                    channels=draw.choice([1, 7, 16, 33]),
                    height=draw.randint(1, 40), width=draw.randint(1, 40),
                    form=draw.choice(["packed", "sliced"]), special=draw.random() < 0.5,
                    cache=draw.choice([0, 6000, 43008]), threads=1,
                    seed=draw.randrange(2**30),
                )  # fmt: skip


@pytest.mark.parametrize("instructions", ["portable", "avx2", "avx512"])
def test_every_instruction_set_equals_torch(instructions: str) -> None:
    if not supported(instructions):
        pytest.skip(f"this CPU has no {instructions}")
    stacks = stacks_to_try(2, 3)
    draw = random.Random(4)
    for dtype, layout in (("float32", LAYOUTS[0]), ("bfloat16", LAYOUTS[1])):
        for kernel in compiled_many(stacks, dtype, layout, instructions):
            for form in ("packed", "sliced"):
                check(
                    kernel.stack, kernel, images=2, channels=19, height=21, width=37,
                    form=form, special=form == "packed", cache=6000, threads=1,
                    seed=draw.randrange(2**30),
                )  # fmt: skip


@pytest.fixture(scope="module")
def elementwise() -> dict[str, list[Kernel]]:
    stacks = {
        kind: collapse(random_operations(random.Random(1), kind), (8, 8), CPU)
        for kind in OPERATORS
    }
    found = [compiled_many(list(stacks.values()), "float32", each) for each in LAYOUTS]
    return dict(zip(stacks, map(list, zip(*found, strict=True)), strict=True))


@pytest.mark.parametrize("kind", sorted(OPERATORS))
def test_a_row_without_a_rule_of_its_own_names_an_operator_of_torch(kind: str) -> None:
    # Torch composes some functions of others: a row for one of those would never hold.
    if OPERATORS[kind].called:
        packet = getattr(torch.ops.aten, kind)
        schemas = [getattr(packet, each)._schema for each in packet.overloads()]
        names = [{argument.name for argument in each.arguments} for each in schemas]
        assert any(set(OPERATORS[kind].numbers) <= each for each in names)


@pytest.mark.parametrize("kind", sorted(OPERATORS))
def test_an_operation_is_exact_over_all_floats(
    elementwise: dict[str, list[Kernel]], kind: str
) -> None:
    bits = torch.arange(-(2**31), 2**31, 2**31 // 60_000 | 1, dtype=torch.int64)
    x = bits.to(torch.int32).view(torch.float32)[: 64 * 1872]
    x = x.reshape(2, 32, 36, 52).clone()
    special = [torch.nan, torch.inf, -torch.inf, -0.0]
    if kind != "gelu":
        x.view(-1)[:64] = torch.tensor(special).repeat(16)
    near = torch.linspace(-30, 30, x.numel()).reshape(x.shape)
    for kernel in elementwise[kind]:
        for values in (x, near):
            _, operands = random_tensors(
                kernel.stack, tuple(values.shape), torch.float32, 1
            )
            got = run(kernel, values, operands)
            want = reference(kernel.stack, values.double(), operands).float()
            both = reference(kernel.stack, values, operands)
            close = (got - want).abs() <= 4e-6 * want.abs() + 2e-7
            fine = close | (got == want) | (got == both) | (got.isnan() & both.isnan())
            assert fine.all(), (values[~fine][:4], got[~fine][:4], both[~fine][:4])
            kept = got.is_contiguous(memory_format=torch.channels_last)
            assert kept == (kernel.layout == "channels_last")


BLOCK = [
    Operation("pool", pool=Pool("max", (3, 3), (1, 1), (1, 1))),
    Operation("affine"),
    Operation("relu"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("plane", [(300, 517), (7, 7), (1, 1), (56, 1030)])
@pytest.mark.parametrize("special", [False, True])
def test_planes_of_all_sizes(
    layout: str, plane: tuple[int, int], special: bool
) -> None:
    stack = collapse(BLOCK * 6, plane, CPU)
    (kernel,) = compiled_many([stack], "float32", layout)
    x, operands = random_tensors(stack, (1, 3, *plane), torch.float32, 1)
    if special:
        sprinkle(x, 4)
    want = reference(stack, x, operands)
    results = [
        run(kernel, placed(x, layout, "packed"), operands, n=n) for n in (1, 2, 5)
    ]
    for got in results:
        assert not differences(got, want, 1e-5)
        assert torch.equal(got.nan_to_num(), results[0].nan_to_num())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_nan_that_comes_up_on_the_way_is_not_lost(layout: str) -> None:
    """Finite input, an overflow to infinity, infinity times nought, a maximum of it."""
    pool = BLOCK[0]
    operations = [
        pool,
        Operation("mul_number", (1e30,)),
        Operation("affine"),
        pool,
        pool,
    ]
    stack = collapse(operations, (9, 11), CPU)
    x = torch.rand(2, 5, 9, 11) * 1e-3
    x[1, 3, 4, 4] = 1e9
    operands = [torch.zeros(5), torch.ones(5)]
    want = reference(stack, x, operands)
    assert 0 < want.isnan().sum() < want.numel()
    (kernel,) = compiled_many([stack], "float32", layout)
    got = run(kernel, x, operands)
    assert not differences(got, want, 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_stack_without_pools_may_write_over_its_input(layout: str) -> None:
    draw = random.Random(3)
    stacks = [
        collapse([x for _ in range(4) for x in random_operations(draw)], (99, 99), CPU)
        for _ in range(12)
    ]
    form = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    for kernel in compiled_many(stacks, "float32", layout):
        x, operands = random_tensors(kernel.stack, (2, 19, 9, 7), torch.float32, 1)
        x = x.contiguous(memory_format=form)
        expected = run(kernel, x, operands).nan_to_num()
        assert torch.equal(run(kernel, x, operands, x).nan_to_num(), expected)
