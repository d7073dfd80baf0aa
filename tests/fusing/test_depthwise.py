"""Depthwise convolutions between element-wise operations against torch in float64."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_stacks import run

from memplan.errors import UsageError
from memplan.fusing.collapse import Stack, collapse
from memplan.fusing.generate import source_of
from memplan.fusing.kernel import Kernel, compiled_many
from memplan.fusing.operators import Operation, Pool
from memplan.fusing.patches import cpu_device
from memplan.toolchain.compiler import find_compiler
from memplan.toolchain.instructions import supported

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler"),
]

from memplan.fusing.kernel import taps  # noqa: E402
from memplan.fusing.reference import reference  # noqa: E402

INSTRUCTIONS = [name for name in ("native", "avx2", "portable") if supported(name)]


def window(kernel: Any, *numbers: Any, behind: Any = (0, 0)) -> Pool:
    return Pool("depthwise", kernel, *numbers, behind=behind)


# Of every kind: windows, strides, paddings, dilations; none of them is compiled apart.
WINDOWS = (
    window((3, 3), (1, 1), (1, 1)),
    window((3, 3), (2, 2), (1, 1)),
    window((3, 3), (2, 2), (0, 0), behind=(1, 1)),
    window((3, 3), (1, 1), (2, 2), (2, 2)),
    window((5, 5), (1, 1), (2, 2)),
    window((5, 5), (2, 1), (2, 0)),
    window((7, 7), (1, 1), (3, 3)),
    window((1, 1), (1, 1), (0, 0)),
    window((1, 3), (3, 2), (0, 4)),
    window((4, 2), (1, 3), (1, 0), (3, 1), behind=(2, -1)),
    window((2, 7), (5, 1), (6, 6), (1, 2)),
    window((3, 9), (1, 2), (0, 1), (2, 1)),
)
SIDES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    ((), ()),
    ((), ("relu",)),
    (("silu",), ("hardswish",)),
    (("affine", "relu"), ("affine", "add")),
    (("gate",), ("gelu", "mul")),
)


@cache
def stacks() -> tuple[Stack, ...]:
    """Each window between some of the operations, and the first between all."""
    pairs = [(each, SIDES[i % len(SIDES)]) for i, each in enumerate(WINDOWS)]
    pairs += [(WINDOWS[0], sides) for sides in SIDES[1:]]
    return tuple(stack(*each) for each in pairs)


def stack(pool: Pool, sides: Any = ((), ())) -> Stack:
    before, behind = ([Operation(kind) for kind in side] for side in sides)
    operations = [*before, Operation("pool", pool=pool), *behind]
    return collapse(operations, (40, 40), cpu_device("channels_last"))


def kernels(dtype: str, instructions: str) -> list[Kernel]:
    return compiled_many(stacks(), dtype, "channels_last", instructions)


class Case(NamedTuple):
    """One run: of a kernel, on how many images of which size."""

    index: int
    images: int
    channels: int
    more: tuple[int, int]  # rows and columns than the least
    slack: tuple[int, int]  # elements more a pixel: of input and output
    threads: int
    seed: int


cases = st.builds(
    Case,
    st.integers(0, len(WINDOWS) + len(SIDES) - 2),
    st.integers(1, 3),
    st.sampled_from([1, 2, 7, 8, 15, 16, 17, 33, 48, 72, 130]),
    st.tuples(st.integers(0, 33), st.integers(0, 33)),
    st.tuples(st.sampled_from([0, 0, 3]), st.sampled_from([0, 0, 5])),
    st.integers(1, 3),
    st.integers(0, 1 << 16),
)


def size_of(pool: Pool, more: tuple[int, int]) -> tuple[int, int]:
    least = (
        max(1, pool.reach(axis) - 2 * pool.padding[axis] - pool.behind[axis])
        for axis in (0, 1)
    )
    height, width = (a + b for a, b in zip(least, more, strict=True))
    return height, width


def planes(random: Any, shape: Any, slack: int, dtype: Any = torch.float32) -> Any:
    """Noise (n, c, h, w), channels last, with so many elements behind each pixel."""
    n, c, h, w = shape
    wide = torch.randn(n, h, w, c + slack, generator=random).to(dtype)
    return wide[..., :c].permute(0, 3, 1, 2)


class Run:
    """A case, its tensors, and what a kernel and torch make of them."""

    def __init__(self, case: Case, dtype: Any = torch.float32) -> None:
        self.case, self.stack = case, stacks()[case.index]
        (pool,) = (each.pool for each in self.stack.operations if each.pool)
        self.random = torch.Generator().manual_seed(case.seed)
        size = size_of(pool, case.more)
        shape = (case.images, case.channels, *size)
        self.x = planes(self.random, shape, case.slack[0], dtype)
        made = (case.images, case.channels, *pool.size(*size))
        self.out = planes(self.random, made, case.slack[1], dtype)
        self.operands = [
            self._operand(kind, pool, made, dtype) for kind in self.stack.operands
        ]

    def _operand(self, kind: str, pool: Pool, made: Any, dtype: Any) -> Any:
        images, channels = made[:2]
        if kind == "taps":
            weight = torch.randn(channels, 1, *pool.kernel, generator=self.random)
            return taps(weight, torch.randn(channels, generator=self.random))
        if kind == "channel":
            return torch.randn(channels, generator=self.random)
        if kind == "image":
            return torch.randn(images, channels, generator=self.random).to(dtype)
        return planes(self.random, made, 0, dtype)

    def expected(self) -> Any:
        given = [each.double() for each in self.operands]
        return reference(self.stack, self.x.double(), given)

    def found(self, instructions: str, dtype: str = "float32") -> Any:
        kernel = kernels(dtype, instructions)[self.case.index]
        return run(kernel, self.x, self.operands, self.out, self.case.threads)


@pytest.mark.parametrize(
    "instructions",
    [
        pytest.param(name, marks=[pytest.mark.soak] if name == "avx2" else [])
        for name in INSTRUCTIONS
    ],
)
@settings(max_examples=60)
@given(case=cases)
def test_a_kernel_computes_what_torch_does(instructions: str, case: Case) -> None:
    run = Run(case)
    expected, found = run.expected(), run.found(instructions)
    error = (found - expected).abs().max() / (1 + expected.abs().max())
    assert float(error) <= 5e-6


@settings(max_examples=25)
@given(case=cases)
def test_bfloat16_is_computed_in_float32(case: Case) -> None:
    run = Run(case, torch.bfloat16)
    expected, found = run.expected(), run.found("native", "bfloat16")
    error = (found.double() - expected).abs().max() / (1 + expected.abs().max())
    assert float(error) <= 2**-8  # what rounding the result costs


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("index", range(4))
def test_what_is_not_finite_goes_where_it_goes_in_torch(
    index: int, value: float
) -> None:
    run = Run(Case(index, 2, 19, (12, 15), (0, 0), 1, 3))
    run.x[1, 4, 6, 7] = value
    run.x[0, 18, -1, -1] = value
    expected = reference(run.stack, run.x, run.operands)
    found = run.found("native")
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())


def test_only_the_output_is_written() -> None:
    kernel, c = kernels("float32", "native")[0], 21
    wide = torch.full((2, 30, 31, c + 9), 3.0)
    x = torch.ones(2, c, 30, 31).contiguous(memory_format=torch.channels_last)
    out = wide[..., 4 : c + 4].permute(0, 3, 1, 2)
    run(kernel, x, [taps(torch.ones(c, 1, 3, 3), None)], out, 3)
    assert (wide[..., :4] == 3).all()
    assert (wide[..., c + 4 :] == 3).all()
    assert (out[:, :, 1:-1, 1:-1] == 9).all()
    assert (out[:, :, 0, 0] == 4).all()


def test_operands_that_do_not_fit_are_refused() -> None:
    kernel, x = kernels("float32", "native")[0], torch.ones(1, 20, 9, 9)
    good = taps(torch.ones(20, 1, 3, 3), torch.ones(20))
    assert good.shape == (10, 32)
    for bad in (good[:9], good[:, :20], good.double(), torch.ones(20)):
        with pytest.raises(UsageError, match="operand taps"):
            run(kernel, x, [bad])
    with pytest.raises(UsageError, match="operands"):
        run(kernel, x)


def test_planes_that_are_apart_are_refused() -> None:
    with pytest.raises(UsageError, match="channels last"):
        source_of([stack(WINDOWS[0])], "float32", "channels_first")
