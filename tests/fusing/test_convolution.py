"""Convolution kernels against torch in float64: any geometry, any instructions."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memplan.errors import UsageError
from memplan.fusing.convolution import (
    ALGORITHMS,
    Packed,
    Prologue,
    algorithms,
    bind,
    pack,
)
from memplan.fusing.kernels import tape
from memplan.fusing.layers import Convolution
from memplan.toolchain.compiler import find_compiler
from memplan.toolchain.instructions import supported

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler"),
]
INSTRUCTIONS = [name for name in ("native", "avx2", "portable") if supported(name)]


@dataclass(frozen=True)
class Geometry:
    """A convolution without groups over planes; pairs are (height, width)."""

    channels_in: int
    channels_out: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def weight(self) -> tuple[int, ...]:
        return self.channels_out, self.channels_in, *self.kernel

    @property
    def convolution(self) -> Convolution:
        numbers = self.stride, self.padding, self.dilation
        return Convolution("weight", None, *numbers, groups=1)

    def out(self, images: int, size: tuple[int, int]) -> tuple[int, int, int, int]:
        """The shape of what comes out."""
        height, width = (
            (
                size[i]
                + 2 * self.padding[i]
                - self.dilation[i] * (self.kernel[i] - 1)
                - 1
            )
            // self.stride[i]
            + 1
            for i in (0, 1)
        )
        return images, self.channels_out, height, width


def convolve(x: Any, packed: Packed, *more: Any) -> Any:
    """The convolution of `x` (n, c, h, w), of windows that leave planes as they are."""
    last = torch.channels_last
    x = x.contiguous(memory_format=last)
    size = len(x), packed.shape[0], *x.shape[2:]
    out = torch.empty(size, memory_format=last)
    bind(packed, x, out, *more)(torch.get_num_threads())
    return out


@dataclass(frozen=True)
class Case:
    """A convolution, its input and what is asked of the kernel."""

    geometry: Geometry
    images: int
    size: tuple[int, int]
    slack: tuple[int, int, int]  # more floats a pixel: of input, output, addition
    bias: bool
    prologue: str
    epilogue: str
    threads: int
    seed: int


def geometries() -> st.SearchStrategy[Geometry]:
    """Of any kind, or such as Winograd's algorithms can do."""
    channels = st.sampled_from([1, 2, 3, 15, 16, 31, 33, 48, 70])
    small = st.integers(1, 3)
    any_kind = st.builds(
        Geometry,
        channels,
        channels,
        st.tuples(st.integers(1, 5), st.integers(1, 5)),
        st.tuples(small, small),
        st.tuples(st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.integers(1, 2), st.integers(1, 2)),
    )
    padding = st.tuples(st.integers(0, 1), st.integers(0, 1))
    square = st.builds(
        lambda c, k, pad: Geometry(c, k, (3, 3), padding=pad),
        channels,
        channels,
        padding,
    )
    return any_kind | square


@st.composite
def cases(draw: st.DrawFn) -> Case:
    geometry = draw(geometries())
    least = [
        max(1, geometry.dilation[i] * (geometry.kernel[i] - 1) + 1)
        - min(2 * geometry.padding[i], geometry.dilation[i] * (geometry.kernel[i] - 1))
        for i in range(2)
    ]
    slack = st.sampled_from([0, 0, 1, 7])
    return Case(
        geometry,
        draw(st.integers(1, 3)),
        (least[0] + draw(st.integers(0, 18)), least[1] + draw(st.integers(0, 18))),
        (draw(slack), draw(slack), draw(slack)),
        draw(st.booleans()),
        draw(st.sampled_from(["", "affine", "affine relu", "scale", "relu"])),
        draw(st.sampled_from(["", "relu", "add", "add relu", "clamp", "in place"])),
        draw(st.integers(1, 3)),
        draw(st.integers(0, 1 << 16)),
    )


def planes(
    generator: Any, shape: tuple[int, int, int, int], slack: int = 0
) -> torch.Tensor:
    """Random values, channels last, with `slack` other floats behind every pixel."""
    n, c, h, w = shape
    wide = torch.randn(n, h, w, c + slack, generator=generator)
    return wide[..., :c].permute(0, 3, 1, 2)


class Run:
    """A case with its tensors, and what torch computes of it in float64."""

    def __init__(self, case: Case) -> None:
        self.case, g = case, case.geometry
        random = torch.Generator().manual_seed(case.seed)
        self.x = planes(random, (case.images, g.channels_in, *case.size), case.slack[0])
        shape = g.out(case.images, case.size)
        self.out = planes(random, shape, case.slack[1])
        self.add = planes(random, shape, case.slack[2])
        self.weight = torch.randn(g.weight, generator=random)
        vector = torch.randn(2, g.channels_in, generator=random)
        self.bias = torch.randn(g.channels_out, generator=random) if case.bias else None
        affine = "affine" in case.prologue
        self.prologue = Prologue(
            vector[0] if affine or "scale" in case.prologue else None,
            vector[1] if affine else None,
            "relu" in case.prologue,
        )
        addend = {"add": self.add, "in place": self.out}
        self.added = addend.get(case.epilogue.removesuffix(" relu"))
        relu = (0.0, float("inf")) if "relu" in case.epilogue else None
        self.clamp = (-0.5, 6.0) if case.epilogue == "clamp" else relu

    def expected(self) -> torch.Tensor:
        x, g = self.x.double(), self.case.geometry
        scale, shift, relu = self.prologue
        if scale is not None:
            x = x * scale.double()[:, None, None]
        if shift is not None:
            x = x + shift.double()[:, None, None]
        bias = None if self.bias is None else self.bias.double()
        y = torch.nn.functional.conv2d(
            x.relu() if relu else x,
            self.weight.double(),
            bias,
            g.stride,
            g.padding,
            g.dilation,
        )
        self.magnitude = 1.0 + float(y.abs().max())  # of the sums, whose errors show
        y = y if self.added is None else y + self.added
        return y.clamp(*self.clamp) if self.clamp else y

    def actual(self, algorithm: str, instructions: str) -> torch.Tensor:
        g = self.case.geometry
        packed = pack(self.weight, self.bias, g.convolution, algorithm, instructions)
        end = self.added, self.clamp
        bind(packed, self.x, self.out, self.prologue, *end)(self.case.threads)
        return self.out


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@settings(max_examples=50)
@given(case=cases())
@example(Case(Geometry(70, 70, (1, 1)), 3, (1, 1), (7, 1, 0), True, "", "", 2, 1))
@example(Case(Geometry(600, 40, (1, 1)), 2, (7, 7), (0, 0, 0), True, "", "", 2, 1))
@example(
    Case(
        Geometry(6000, 40, (1, 1)), 2, (1, 9), (0, 0, 0), True, "relu", "add relu", 1, 1
    )
)
@example(Case(Geometry(3, 70, (3, 3)), 1, (3, 300), (0, 0, 0), True, "", "", 2, 1))
@example(
    Case(
        Geometry(150, 130, (3, 3), padding=(1, 1)),
        *(2, (29, 30), (0, 0, 0), True, "affine relu", "in place", 3, 1),
    )
)
def test_a_kernel_computes_what_torch_does(instructions: str, case: Case) -> None:
    geometry = case.geometry
    for algorithm in algorithms(geometry.weight, geometry.convolution):
        run = Run(case)
        expected = run.expected()
        error = (run.actual(algorithm, instructions) - expected).abs().max()
        assert float(error) <= 5e-6 * run.magnitude, algorithm


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_only_the_output_is_written(algorithm: str) -> None:
    geometry = Geometry(20, 37, (3, 3), padding=(1, 1))
    wide = torch.full((2, 9, 11, 50), 3.0)
    packed = pack(torch.ones(37, 20, 3, 3), None, geometry.convolution, algorithm)
    x = torch.ones(2, 9, 11, 20).permute(0, 3, 1, 2)
    bind(packed, x, slice_of(wide, 5, 37))()
    assert (wide[..., :5] == 3).all()
    assert (wide[..., 42:] == 3).all()
    assert float(wide[0, 4, 4, 5]) == pytest.approx(180)


def slice_of(wide: torch.Tensor, start: int, count: int) -> torch.Tensor:
    return wide[..., start : start + count].permute(0, 3, 1, 2)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("relu", [False, True])
def test_what_is_not_finite_goes_where_it_goes_in_torch(
    algorithm: str, value: float, relu: bool
) -> None:
    torch.manual_seed(3)
    x = torch.randn(1, 19, 18, 17).contiguous(memory_format=torch.channels_last)
    x[0, 4, 6, 7] = value
    x[0, 18, 17, 16] = value
    weight, geometry = (
        torch.randn(35, 19, 3, 3),
        Geometry(19, 35, (3, 3), (1, 1), (1, 1)),
    )
    expected = torch.nn.functional.conv2d(x, weight, padding=1)
    expected = expected.relu() if relu else expected
    packed = pack(weight, None, geometry.convolution, algorithm)
    clamp = (0.0, float("inf")) if relu else None
    actual = convolve(x, packed, None, None, clamp)
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual.isinf(), expected.isinf())
    near = expected.isfinite() & (expected.abs() < 1e30)
    torch.testing.assert_close(actual[near], expected[near], rtol=1e-5, atol=1e-4)


class Entry(ctypes.Structure):
    _fields_ = (("kernel", ctypes.c_void_p), ("call", ctypes.c_void_p))


def test_a_tape_runs_calls_in_order() -> None:
    given = Geometry(3, 3, (1, 1)).convolution
    packed = pack(torch.full((3, 3, 1, 1), 2.0), None, given)
    planes = torch.ones(3, 1, 4, 4, 3).permute(0, 1, 4, 2, 3)
    steps = [bind(packed, planes[i], planes[i + 1]) for i in range(2)]
    entries = (Entry * 2)(*((s.function, ctypes.addressof(s.call)) for s in steps))
    tape()(ctypes.addressof(entries), 2, 2)
    assert (planes[2] == 36).all()


def test_winograd_is_for_small_kernels_that_do_not_skip() -> None:
    plain = Geometry(3, 4, (3, 3))
    assert algorithms(plain.weight, plain.convolution) == list(ALGORITHMS)
    for other in (
        Geometry(3, 4, (1, 3)),
        Geometry(3, 4, (3, 3), stride=(1, 2)),
        Geometry(3, 4, (3, 3), dilation=(2, 1)),
    ):
        assert algorithms(other.weight, other.convolution) == ["direct"]
        with pytest.raises(UsageError, match="winograd4: does not support"):
            pack(torch.ones(other.weight), None, other.convolution, "winograd4")


def test_tensors_that_do_not_fit_are_refused() -> None:
    given = Geometry(3, 4, (2, 2)).convolution
    with pytest.raises(UsageError, match="the bias is"):
        pack(torch.ones(4, 3, 1, 1), torch.ones(3), given)
    with pytest.raises(UsageError, match="float64"):
        pack(torch.ones(4, 3, 1, 1).double(), None, given)
    packed = pack(torch.ones(4, 3, 2, 2), None, given)
    x = torch.ones(1, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    y = torch.ones(1, 4, 4, 4).contiguous(memory_format=torch.channels_last)
    for arguments, message in (
        ((x[0], y), "takes .n, c, h, w."),
        ((x[:, :2], y), "the input is .1, 2, 5, 5."),
        ((x[:, :, :1], y), "too small"),
        ((x, x), "the output is"),
        ((torch.ones(1, 3, 5, 5), y), "not channels_last in memory"),
        ((x.double(), y), "float32"),
        ((x, y, Prologue(scale=torch.ones(4))), "expected .3,. of torch.float32"),
        ((x, y, None, x), "the added tensor is"),
        ((x, y, None, None, (6.0, 0.0)), "low <= high"),
    ):
        with pytest.raises(UsageError, match=message):
            bind(packed, *arguments)
