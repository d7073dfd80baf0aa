"""Convolutions by memplan's own kernels: float32, channels last, on the CPU."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from memplan.errors import UsageError
from memplan.fusing.kernel import address, check, lying
from memplan.fusing.kernels import convolution_library
from memplan.fusing.layers import Convolution
from memplan.graph.arenas import PageAllocator
from memplan.graph.native import Bound

ALGORITHMS = ("direct", "winograd2", "winograd4")


def algorithms(shape: tuple[int, ...], convolution: Convolution) -> list[str]:
    """The algorithms that can do a convolution without groups, by weights of this
    shape, of ALGORITHMS: "direct" can do all.

    "winograd2" and "winograd4" are F(2x2, 3x3) and F(4x4, 3x3) of Lavin and Gray
    (2016): 2.25 and 4 times fewer multiplications, and a larger rounding error.
    """
    small = (
        shape[2:] == (3, 3)
        and convolution.stride == (1, 1)
        and convolution.dilation == (1, 1)
        and max(convolution.padding) <= 1
        and not any(convolution.behind)
    )
    return list(ALGORITHMS) if small else ["direct"]


@dataclass(frozen=True)
class Packed:
    """Weights and bias of one convolution, for one algorithm and set of instructions.

    shape: of the weights, (out, in, kernel height, kernel width). weights, bias: flat
    float32 tensors, copies: later changes of the layer's own are not seen. plain: the
    layer's own weights, from which a Winograd kernel computes what is not finite; None
    for others. factor: what normalisation multiplies the output channels of `plain` by,
    (out); None for 1.
    """

    shape: tuple[int, ...]
    convolution: Convolution
    algorithm: str
    instructions: str
    weights: torch.Tensor
    bias: torch.Tensor | None
    plain: torch.Tensor | None = None
    factor: torch.Tensor | None = None


class _Job(ctypes.Structure):
    """As Packing in conv_pack.h."""

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("channels_out", ctypes.c_int64),
        ("channels_in", ctypes.c_int64),
        ("kernel_h", ctypes.c_int64),
        ("kernel_w", ctypes.c_int64),
    )


def pack(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    convolution: Convolution,
    algorithm: str = "direct",
    instructions: str = "native",
    room: PageAllocator | None = None,
) -> Packed:
    """Lay out float32 weights (out, in, kernel height, kernel width) and a bias (out).

    room: memory that they share with others; their own if None.
    Raises UsageError if the tensors do not fit or the algorithm cannot do it;
    NoCompilerError and others as `convolution_library` does.
    """
    shape = tuple(weight.shape)
    if algorithm not in algorithms(shape, convolution):
        can = ", ".join(algorithms(shape, convolution))
        raise UsageError(f"{algorithm}: does not support {convolution}; use {can}")
    check("weight", weight, shape)
    if bias is not None:
        check("bias", bias, shape[:1])
    with torch.no_grad():
        weight = weight.detach().contiguous()
        room = room or PageAllocator()
        laid = _packed(weight, algorithm, instructions, room)
        start = _padded(bias, instructions, room)
    plain = None if algorithm == "direct" else weight
    return Packed(shape, convolution, algorithm, instructions, laid, start, plain)


def blank(shape: tuple[int, ...], convolution: Convolution, algorithm: str) -> Packed:
    """Weights of this shape and a bias in their layout that are all the same: for
    timing alone."""
    columns, taps = padded_columns(shape[0], "native"), math.prod(shape[2:])

    def filled(count: int) -> torch.Tensor:
        return PageAllocator().floats(columns * count).fill_(0.5)

    laid = filled(shape[1] * _MATRICES.get(algorithm, taps))
    return Packed(shape, convolution, algorithm, "native", laid, filled(1))


def padded_columns(channels_out: int, instructions: str) -> int:
    """Output channels that weights and bias are padded to."""
    function = convolution_library(instructions).memplan_padded_columns
    function.restype, function.argtypes = ctypes.c_int64, (ctypes.c_int64,)
    return int(function(channels_out))


_MATRICES = {"winograd2": 16, "winograd4": 36}  # instead of the kernel's taps


def _packed(
    weight: torch.Tensor, algorithm: str, instructions: str, room: PageAllocator
) -> torch.Tensor:
    library = convolution_library(instructions)
    out, channels, height, width = weight.shape
    matrices = _MATRICES.get(algorithm, height * width)
    target = room.floats(padded_columns(out, instructions) * channels * matrices)
    job = _Job(weight.data_ptr(), target.data_ptr(), out, channels, height, width)
    function = library[f"memplan_pack_{algorithm}"]
    function.restype, function.argtypes = None, (ctypes.c_void_p, ctypes.c_int)
    function(ctypes.addressof(job), torch.get_num_threads())
    return target


def _padded(
    bias: torch.Tensor | None, instructions: str, room: PageAllocator
) -> torch.Tensor | None:
    if bias is None:
        return None
    padded = room.floats(padded_columns(len(bias), instructions)).zero_()
    padded[: len(bias)] = bias.detach()
    return padded


_RELU_IN, _RELU_OUT, _CLAMP_OUT = 1, 2, 4  # as Flags in conv_call.h

_POINTERS = (
    *("input", "output", "add", "weights", "plain", "factor", "bias"),
    *("scale", "shift"),
)
_SIZES = ("n", "h", "w", "c", "k", "oh", "ow")
_PAIRS = ("kernel", "stride", "padding", "dilation")
_STRIDES = tuple(
    f"{tensor}_{unit}" for tensor in ("in", "out", "add") for unit in ("pixel", "image")
)


class Call(ctypes.Structure):
    """Arguments of a kernel: Convolution in conv_call.h. Pointers may be exchanged
    between runs."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _SIZES),
        *((f"{pair}_{axis}", ctypes.c_int64) for pair in _PAIRS for axis in "hw"),
        *((name, ctypes.c_int64) for name in _STRIDES),
        ("low", ctypes.c_float),
        ("high", ctypes.c_float),
        ("flags", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


class Prologue(NamedTuple):
    """What is done to the input before its padding: scale * x + shift, and ReLU.

    scale, shift: one float32 value a channel; None: 1, 0.
    """

    scale: torch.Tensor | None = None
    shift: torch.Tensor | None = None
    relu: bool = False


def bind(
    packed: Packed,
    x: torch.Tensor,
    out: torch.Tensor,
    prologue: Prologue | None = None,
    added: torch.Tensor | None = None,
    clamp: tuple[float, float] | None = None,
) -> Bound:
    """The kernel that computes `out` (n, k, oh, ow) of `x` (n, c, h, w).

    Both are float32 and channels last; neighbouring pixels may lie further apart than
    their channels, as in a slice of a concatenation. `out` may share no memory with
    `x`. added: to the sums before they are stored, of the shape of `out`; it may be
    `out` itself. clamp: at the end, (low, high), as of torch.nn.functional.hardtanh.
    Raises UsageError for tensors that do not fit.
    """
    prologue, given = prologue or Prologue(), packed.convolution
    if x.dim() != 4:
        raise UsageError(f"a convolution takes (n, c, h, w), not {tuple(x.shape)}")
    k, c, *kernel = packed.shape
    n, _, *plane = x.shape
    pairs = zip(
        *(plane, kernel, given.stride, given.padding, given.behind, given.dilation),
        strict=True,
    )
    made = [
        (size + 2 * padding + behind - dilation * (taps - 1) - 1) // stride + 1
        for size, taps, stride, padding, behind, dilation in pairs
    ]
    if min(made, default=0) < 1:
        raise UsageError(f"planes {tuple(plane)} are too small for {given}")
    sizes = dict(zip(_SIZES, (n, *plane, c, k, *made), strict=True))
    call = Call(**sizes, kernel_h=kernel[0], kernel_w=kernel[1])
    for pair in _PAIRS[1:]:
        for axis, value in zip("hw", getattr(given, pair), strict=True):
            setattr(call, f"{pair}_{axis}", value)
    shape = (n, k, *made)
    for name, prefix, tensor, wanted in (
        ("input", "in", x, (n, c, *plane)),
        ("output", "out", out, shape),
        ("added tensor", "add", added, shape),
    ):
        if tensor is not None:
            placed = lying(name, tensor, wanted)
            setattr(call, f"{prefix}_pixel", placed.pixel)
            setattr(call, f"{prefix}_image", placed.image)
    scale, shift = (
        None if each is None else lying("scale or shift", each, (c,)).tensor
        for each in prologue[:2]
    )
    given_weights = packed.weights, packed.plain, packed.factor, packed.bias
    held = (*given_weights, scale, shift)
    for name, tensor in zip(_POINTERS, (x, out, added, *held), strict=True):
        setattr(call, name, None if tensor is None else tensor.data_ptr())
    call.flags = _RELU_IN if prologue.relu else 0
    if clamp == (0.0, math.inf):
        call.flags |= _RELU_OUT
    elif clamp is not None:
        call.low, call.high = clamp
        if not call.low <= call.high:
            raise UsageError(f"clamp {clamp}: needs low <= high")
        call.flags |= _CLAMP_OUT
    library = convolution_library(packed.instructions)
    return Bound(address(library, f"memplan_conv_{packed.algorithm}"), call, held)
