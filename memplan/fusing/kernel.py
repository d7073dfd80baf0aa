"""Stacks as compiled kernels on torch's tensors."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from memplan.errors import UsageError
from memplan.fusing.collapse import Stack, sizes
from memplan.fusing.generate import is_depthwise, kernel_name, source_of
from memplan.fusing.kernels import headers
from memplan.fusing.operators import Pool
from memplan.fusing.patches import band_bytes
from memplan.graph.native import Bound
from memplan.toolchain.loading import load

WIDEST = 16  # float32 of the widest vector


class TensorRef(NamedTuple):
    """A tensor's address, and elements from image to image and from point to point."""

    tensor: Tensor
    address: int
    image: int
    pixel: int


def spacing(
    shape: Sequence[int], strides: Sequence[int], layout: str
) -> tuple[int, int] | None:
    """Elements from image to image and from point to point of a tensor (n, c, h, w)
    that lies so; None if that is not this layout.

    Images may lie apart. Channels last, points may too: the tensor may be some of the
    channels of a wider one.
    """
    images, channels, height, width = shape
    image, channel, row, column = strides
    if layout == "channels_first":
        pixel = 1
        expected = (height * width, width, 1)
    else:
        pixel = column if width > 1 else row if height > 1 else channels
        if pixel < channels:
            return None
        expected = (1, width * pixel, pixel)
    pairs = zip(
        (channels, height, width), (channel, row, column), expected, strict=True
    )
    if any(size > 1 and stride != want for size, stride, want in pairs):
        return None
    return 0 if images <= 1 else image, pixel


def place(x: Tensor, layout: str) -> TensorRef | None:
    """A tensor (n, c, h, w) of this layout as it lies in memory; None if it does not:
    see `spacing`."""
    found = spacing(x.shape, x.stride(), layout)
    return None if found is None else TensorRef(x, x.data_ptr(), *found)


def check(
    name: str,
    tensor: Tensor,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> None:
    """Raise UsageError for a tensor of another shape, dtype or device."""
    found = tuple(tensor.shape), tensor.dtype, str(tensor.device)
    if found != (tuple(shape), dtype, device):
        given, wanted = (
            f"{size} of {kind} on {where}"
            for size, kind, where in (found, (tuple(shape), dtype, device))
        )
        raise UsageError(f"the {name} is {given}, expected {wanted}")


def lying(
    name: str,
    tensor: Tensor,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    layout: str = "channels_last",
) -> TensorRef:
    """Where a tensor on the CPU lies. Raises UsageError if it is not of this shape,
    dtype and, with four dimensions, layout."""
    check(name, tensor, shape, dtype)
    if tensor.dim() < 4:  # of one value a channel, or of rows of these
        tensor, row = tensor.detach().contiguous(), shape[1] if len(shape) > 1 else 0
        return TensorRef(tensor, tensor.data_ptr(), row, row)
    found = place(tensor, layout)
    if found is None:
        raise UsageError(
            f"the {name} with strides {tensor.stride()} is not {layout} in memory; "
            "copy it"
        )
    return found


def operand_shape(
    kind: str, shape: tuple[int, ...], pool: Pool | None = None
) -> tuple[int, ...]:
    """The shape of an operand of this kind for values of this shape (n, c, h, w):
    "channel" is (c), "image" (n, c), "tensor" the values' own; "taps", of a pool, see
    `taps`."""
    if pool is not None:
        return prod(pool.kernel) + 1, -(-shape[1] // WIDEST) * WIDEST
    return {"channel": shape[1:2], "image": shape[:2], "tensor": shape}[kind]


def taps(weight: Tensor, bias: Tensor | None) -> Tensor:
    """Weights (c, 1, height, width) and bias (c) of a depthwise convolution as kernels
    read them: float32 (height * width + 1, c or more), a row for each tap and one for
    the bias, zeros behind the channels up to a whole vector."""
    channels, _, height, width = weight.shape
    area = height * width
    found = torch.zeros(area + 1, -(-channels // WIDEST) * WIDEST)
    found[:area, :channels] = weight.detach().reshape(channels, area).T
    if bias is not None:
        found[area, :channels] = bias.detach()
    return found


class OperandStruct(ctypes.Structure):
    """`memplan::Operand` of kernels/stack_call.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("image", ctypes.c_int64),
        ("pixel", ctypes.c_int64),
    )


class CallStruct(ctypes.Structure):
    """`memplan::Call` of kernels/stack_call.h: the argument of a kernel."""

    _fields_ = (
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("between", ctypes.c_void_p),
        ("operands", ctypes.POINTER(OperandStruct)),
        ("images", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("in_image", ctypes.c_int64),
        ("in_pixel", ctypes.c_int64),
        ("out_image", ctypes.c_int64),
        ("out_pixel", ctypes.c_int64),
        ("cache", ctypes.c_int64),
    )


def address(library: ctypes.CDLL, name: str) -> int:
    """Of a function in a library."""
    found = ctypes.cast(library[name], ctypes.c_void_p).value
    assert found is not None
    return found


@dataclass(frozen=True)
class Kernel:
    """A stack compiled for one dtype and layout, for tensors of any sizes.

    Kernels compute without gradients; the layout is one of `generate.LAYOUTS`.
    """

    stack: Stack
    dtype: str
    layout: str
    function: int
    cache: int = field(default_factory=band_bytes)

    def out_shape(self, shape: Sequence[int]) -> tuple[int, int, int, int]:
        """(n, c, h, w) of what comes out; raises UsageError if that is nothing."""
        images, channels, height, width = shape
        return (images, channels, *self.stack.out_size(height, width))

    def between_bytes(self, shape: Sequence[int]) -> int:
        """Bytes that `bind` wants between sequences, for an input (n, c, h, w)."""
        images, channels, height, width = shape
        places, value = [0, 0], 4 if self.dtype == "float32" else 2
        for index, sequence in enumerate(self.stack.sequences[:-1]):
            height, width = sizes(sequence.pools, height, width)[-1]
            count = -(-images * channels * height * width // 64) * 64
            places[index % 2] = max(places[index % 2], count)
        return sum(places) * value

    def bind(
        self,
        x: Tensor,
        operands: Sequence[Tensor],
        out: Tensor,
        between: Tensor | None = None,
    ) -> Bound:
        """The call that reads `x` (n, c, h, w) and writes `out`, both in the kernel's
        dtype and layout; `out` may be a slice of channels of a wider tensor. It may be
        no part of what is read, but for a stack without pools, which may write over its
        input, or over an operand of its shape.

        operands: in the order in which operations take them; see `OPERATORS`. between:
        `between_bytes` bytes; memory of the call's own if None. Raises UsageError for
        tensors that do not fit.
        """
        if x.dim() != 4:
            raise UsageError(f"a stack takes (n, c, h, w), not {tuple(x.shape)}")
        dtype, shape = getattr(torch, self.dtype), tuple(x.shape)
        source = lying("input", x, shape, dtype, self.layout)
        target = lying("output", out, self.out_shape(shape), dtype, self.layout)
        if shape[0] > 1 and target.image < out[0].numel():
            raise UsageError("images of the output share memory; give it its own")
        needed = self.between_bytes(shape)
        if between is None and needed:
            between = torch.empty(needed, dtype=torch.uint8)
        placed = self._operands(shape, operands)
        table = (OperandStruct * max(len(placed), 1))()
        for entry, each in zip(table, placed, strict=False):
            entry.data, entry.image, entry.pixel = each.address, each.image, each.pixel
        call = CallStruct(
            *(source.address, target.address),
            between.data_ptr() if between is not None else None,
            ctypes.cast(table, ctypes.POINTER(OperandStruct)),
            *shape,
            *(source.image, source.pixel, target.image, target.pixel, self.cache),
        )
        tensors = [each.tensor for each in placed]
        return Bound(self.function, call, (table, between, *tensors))

    def _operands(
        self, shape: tuple[int, ...], operands: Sequence[Tensor]
    ) -> list[TensorRef]:
        """Operands where kernels find them, checked against the value they meet."""
        kinds = self.stack.operands
        if len(operands) != len(kinds):
            raise UsageError(
                f"the stack takes {len(kinds)} operands, not {len(operands)}"
            )
        found, rest = [], iter(operands)
        for operation in self.stack.operations:
            pool = operation.pool
            if pool is not None:
                shape = (*shape[:2], *pool.size(shape[2], shape[3]))
            for kind in operation.operands:
                operand = next(rest)
                if kind == "image":
                    operand = operand.flatten(1)
                own = kind in ("image", "tensor")
                dtype = getattr(torch, self.dtype) if own else torch.float32
                wanted = operand_shape(kind, shape, pool)
                found.append(
                    lying(f"operand {kind}", operand, wanted, dtype, self.layout)
                )
        return found


_lock = threading.Lock()
_kernels: dict[tuple[str, str, str, str], int] = {}


def compiled_many(
    stacks: Sequence[Stack], dtype: str, layout: str, instructions: str = "native"
) -> list[Kernel]:
    """Kernels of several stacks; those that are not there yet are compiled together,
    which takes less time. Stacks of one signature share one kernel.

    dtype: one of `generate.DTYPES`; layout: one of `generate.LAYOUTS`; instructions:
    see `memplan.toolchain.loading.load`. Raises NoCompilerError or CompileError.
    """
    keys = [(stack.signature, dtype, layout, instructions) for stack in stacks]
    with _lock:
        missing = {
            key: stack
            for key, stack in zip(keys, stacks, strict=True)
            if key not in _kernels
        }
        if missing:
            source = source_of(missing.values(), dtype, layout)
            files = headers("stack_")
            if any(map(is_depthwise, missing.values())):
                files = {**files, **headers("depthwise_")}
            library = load(source, files, instructions)
            for key, stack in missing.items():
                _kernels[key] = address(library, kernel_name(stack, dtype, layout))
        return [
            Kernel(stack, dtype, layout, _kernels[key])
            for key, stack in zip(keys, stacks, strict=True)
        ]
