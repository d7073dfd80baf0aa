"""Convolutions by memplan's own kernels: float32, channels last, on the CPU."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from memplan.errors import UsageError
from memplan.fusing.kernel import Bound, TensorRef, place
from memplan.fusing.kernels import convolution_library
from memplan.fusing.memory import PageAllocator

Pair = tuple[int, int]

ALGORITHMS = ("direct", "winograd2", "winograd4")


@dataclass(frozen=True)
class Geometry:
    """A convolution with groups = 1 over planes; pairs are (height, width)."""

    channels_in: int
    channels_out: int
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    def __post_init__(self) -> None:
        sizes = (*self.kernel, *self.stride, *self.dilation)
        least = min(self.channels_in, self.channels_out, *sizes)
        if least < 1 or min(self.padding) < 0:
            raise UsageError(f"{self}: sizes are at least 1, padding at least 0")

    def size(self, height: int, width: int) -> Pair:
        """Height and width of the output for an input of this size.

        Raises UsageError if the kernel is larger than the padded input.
        """
        return self._along(0, height), self._along(1, width)

    def _along(self, axis: int, size: int) -> int:
        reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
        room = size + 2 * self.padding[axis] - reach
        if size < 1 or room < 0:
            raise UsageError(
                f"an input {size} wide or high is too small for a kernel that reaches "
                f"{reach} with padding {self.padding[axis]}"
            )
        return room // self.stride[axis] + 1


def algorithms(geometry: Geometry) -> list[str]:
    """The algorithms that can do it, of ALGORITHMS: "direct" can do all.

    "winograd2" and "winograd4" are F(2x2, 3x3) and F(4x4, 3x3) of Lavin and Gray
    (2016): 2.25 and 4 times fewer multiplications, and a larger rounding error.
    """
    small = (
        geometry.kernel == (3, 3)
        and geometry.stride == (1, 1)
        and geometry.dilation == (1, 1)
        and max(geometry.padding) <= 1
    )
    return list(ALGORITHMS) if small else ["direct"]


@dataclass(frozen=True)
class Packed:
    """Weights and bias of one convolution, for one algorithm and set of instructions.

    weights, plain, bias: flat float32 tensors; `plain` are the weights as "direct" has
    them, where a Winograd kernel needs those for input that is not finite. What was
    packed is a copy: later changes of the layer's own weights are not seen.
    """

    geometry: Geometry
    algorithm: str
    instructions: str
    weights: torch.Tensor
    plain: torch.Tensor | None
    bias: torch.Tensor | None


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
    geometry: Geometry,
    algorithm: str = "direct",
    instructions: str = "native",
    room: PageAllocator | None = None,
) -> Packed:
    """Lay out float32 weights (out, in, kernel height, kernel width) and a bias (out).

    room: memory that they share with others; their own if None.
    Weights of a linear layer are those of a 1x1 convolution. Raises UsageError if the
    tensors do not fit the geometry or the algorithm cannot do it; NoCompilerError and
    others as `convolution_library` does.
    """
    if algorithm not in algorithms(geometry):
        can = ", ".join(algorithms(geometry))
        raise UsageError(f"{algorithm}: does not support {geometry}; use {can}")
    shape = (geometry.channels_out, geometry.channels_in, *geometry.kernel)
    if tuple(weight.shape) != shape:
        raise UsageError(f"weights of shape {tuple(weight.shape)}; expected {shape}")
    if bias is not None and tuple(bias.shape) != shape[:1]:
        raise UsageError(f"bias of shape {tuple(bias.shape)}; expected {shape[:1]}")
    for tensor in (weight, bias):
        if tensor is not None and not _plain_float(tensor):
            raise UsageError("weights and bias must be float32 on the CPU")
    with torch.no_grad():
        weight = weight.detach().contiguous()
        room = room or PageAllocator()
        plain = None
        if algorithm != "direct":
            plain = _packed(weight, "direct", instructions, room)
        laid = _packed(weight, algorithm, instructions, room)
        start = _padded(bias, instructions, room)
        return Packed(geometry, algorithm, instructions, laid, plain, start)


def blank(geometry: Geometry, algorithm: str) -> Packed:
    """Weights and a bias in their layout that are all the same: for timing alone."""
    columns = padded_columns(geometry.channels_out, "native")
    taps = math.prod(geometry.kernel)

    def filled(count: int) -> torch.Tensor:
        return PageAllocator().floats(columns * count).fill_(0.5)

    plain = None
    if algorithm != "direct":
        plain = filled(geometry.channels_in * taps)
    laid = filled(geometry.channels_in * _MATRICES.get(algorithm, taps))
    return Packed(geometry, algorithm, "native", laid, plain, filled(1))


def _plain_float(tensor: torch.Tensor) -> bool:
    return bool(tensor.dtype == torch.float32) and tensor.device.type == "cpu"


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

_POINTERS = ("input", "output", "add", "weights", "plain", "bias", "scale", "shift")
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


class Epilogue(NamedTuple):
    """What is done to the sums before they are stored: `add` added, ReLU, clamped.

    add: a tensor of the output's shape; it may be the output itself. clamp: (low,
    high), as of torch.nn.functional.hardtanh.
    """

    add: torch.Tensor | None = None
    relu: bool = False
    clamp: tuple[float, float] | None = None


def bind(
    packed: Packed,
    x: torch.Tensor,
    out: torch.Tensor,
    prologue: Prologue | None = None,
    epilogue: Epilogue | None = None,
) -> Bound:
    """The kernel that computes `out` (n, k, oh, ow) of `x` (n, c, h, w).

    Both are float32 and channels last; neighbouring pixels may lie further apart than
    their channels, as in a slice of a concatenation. `out` may share no memory with
    `x`. Raises UsageError for tensors that do not fit.
    """
    prologue, epilogue = prologue or Prologue(), epilogue or Epilogue()
    geometry = packed.geometry
    n, c, h, w = _four(x, "input")
    if c != geometry.channels_in:
        raise UsageError(f"input of {c} channels; expected {geometry.channels_in}")
    oh, ow = geometry.size(h, w)
    shape = (n, geometry.channels_out, oh, ow)
    add = epilogue.add
    for tensor, name in ((out, "output"), (add, "added tensor")):
        if tensor is not None and tuple(tensor.shape) != shape:
            raise UsageError(f"{name} of shape {tuple(tensor.shape)}; expected {shape}")
    scale, shift = _channels(prologue, c)
    call = Call(n=n, h=h, w=w, c=c, k=geometry.channels_out, oh=oh, ow=ow)
    _place(call, geometry)
    for name, prefix, tensor in (
        ("input", "in", x), ("output", "out", out), ("added tensor", "add", add)
    ):  # fmt: skip
        if tensor is not None:
            placed = _placed(tensor, name)
            setattr(call, f"{prefix}_pixel", placed.pixel)
            setattr(call, f"{prefix}_image", placed.image)
    tensors = (x, out, add, packed.weights, packed.plain, packed.bias, scale, shift)
    for name, tensor in zip(_POINTERS, tensors, strict=True):
        setattr(call, name, None if tensor is None else tensor.data_ptr())
    _flag(call, prologue, epilogue)
    library = convolution_library(packed.instructions)
    kernel = library[f"memplan_conv_{packed.algorithm}"]
    address = ctypes.cast(kernel, ctypes.c_void_p).value
    assert address is not None
    return Bound(address, call, tensors)


def _placed(tensor: torch.Tensor, name: str) -> TensorRef:
    """A float32 tensor (n, c, h, w) on the CPU, channels last; else UsageError."""
    _four(tensor, name)
    if not _plain_float(tensor):
        raise UsageError(
            f"{name}: {tensor.dtype} on {tensor.device}; needs CPU float32"
        )
    found = place(tensor, "channels_last")
    if found is None:
        raise UsageError(
            f"{name}: strides {tuple(tensor.stride())} are not channels last; "
            "convert it by .contiguous(memory_format=torch.channels_last)"
        )
    return found


def _four(tensor: torch.Tensor, name: str) -> tuple[int, int, int, int]:
    if tensor.dim() != 4:
        raise UsageError(f"{name} of {tensor.dim()} dimensions; expected (n, c, h, w)")
    n, c, h, w = tensor.shape
    return n, c, h, w


def _channels(
    prologue: Prologue, channels: int
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Scale and shift, each checked and dense."""

    def checked(tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None:
            return None
        if tuple(tensor.shape) != (channels,) or tensor.dtype != torch.float32:
            raise UsageError(
                f"scale or shift: {tensor.dtype} of shape {tuple(tensor.shape)}; "
                f"needs {channels} values of float32"
            )
        return tensor.detach().contiguous()

    return checked(prologue.scale), checked(prologue.shift)


def _place(call: Call, geometry: Geometry) -> None:
    for pair in _PAIRS:
        for axis, value in zip("hw", getattr(geometry, pair), strict=True):
            setattr(call, f"{pair}_{axis}", value)


def _flag(call: Call, prologue: Prologue, epilogue: Epilogue) -> None:
    call.flags = (_RELU_IN if prologue.relu else 0) | (
        _RELU_OUT if epilogue.relu else 0
    )
    if epilogue.clamp is None:
        return
    call.low, call.high = epilogue.clamp
    if math.isnan(call.low) or math.isnan(call.high) or call.low > call.high:
        raise UsageError(f"clamp {epilogue.clamp}: needs low <= high")
    call.flags |= _CLAMP_OUT
