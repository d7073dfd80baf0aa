"""Weights of a convolution laid out once, as its kernel reads them."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.errors import UsageError
from memplan.fusing.geometry import Geometry, algorithms
from memplan.fusing.kernels import convolution_library
from memplan.fusing.memory import Room

if TYPE_CHECKING:
    import torch


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
    room: Room | None = None,
) -> Packed:
    """Lay out float32 weights (out, in, kernel height, kernel width) and a bias (out).

    room: memory that they share with others; their own if None.
    Weights of a linear layer are those of a 1x1 convolution. Raises UsageError if the
    tensors do not fit the geometry or the algorithm cannot do it; NoCompilerError and
    others as `convolution_library` does.
    """
    import torch

    if algorithm not in algorithms(geometry):
        can = ", ".join(algorithms(geometry))
        raise UsageError(f"{algorithm}: cannot do {geometry}; what can: {can}")
    shape = (geometry.channels_out, geometry.channels_in, *geometry.kernel)
    if tuple(weight.shape) != shape:
        raise UsageError(f"weights of shape {tuple(weight.shape)}; expected {shape}")
    if bias is not None and tuple(bias.shape) != shape[:1]:
        raise UsageError(f"bias of shape {tuple(bias.shape)}; expected {shape[:1]}")
    for tensor in (weight, bias):
        if tensor is not None and not _plain_float(tensor):
            raise UsageError("weights and bias are to be float32 on the CPU")
    with torch.no_grad():
        weight = weight.detach().contiguous()
        room = room or Room()
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
        return Room().floats(columns * count).fill_(0.5)

    plain = None
    if algorithm != "direct":
        plain = filled(geometry.channels_in * taps)
    laid = filled(geometry.channels_in * _MATRICES.get(algorithm, taps))
    return Packed(geometry, algorithm, "native", laid, plain, filled(1))


def _plain_float(tensor: torch.Tensor) -> bool:
    import torch

    return bool(tensor.dtype == torch.float32) and tensor.device.type == "cpu"


def padded_columns(channels_out: int, instructions: str) -> int:
    """Output channels that weights and bias are padded to."""
    function = convolution_library(instructions).memplan_padded_columns
    function.restype, function.argtypes = ctypes.c_int64, (ctypes.c_int64,)
    return int(function(channels_out))


_MATRICES = {"winograd2": 16, "winograd4": 36}  # instead of the kernel's taps


def _packed(
    weight: torch.Tensor, algorithm: str, instructions: str, room: Room
) -> torch.Tensor:
    import torch

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
    bias: torch.Tensor | None, instructions: str, room: Room
) -> torch.Tensor | None:
    if bias is None:
        return None
    padded = room.floats(padded_columns(len(bias), instructions)).zero_()
    padded[: len(bias)] = bias.detach()
    return padded
