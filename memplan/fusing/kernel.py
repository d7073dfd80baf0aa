"""Stacks as compiled kernels on torch's tensors."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memplan.errors import UsageError
from memplan.fusing.collapse import Stack, sizes
from memplan.fusing.generate import (
    DTYPES,
    LAYOUTS,
    is_depthwise,
    kernel_name,
    source_of,
)
from memplan.fusing.kernels import headers
from memplan.fusing.operators import Pool
from memplan.fusing.patches import band_bytes
from memplan.toolchain.loading import load

WIDEST = 16  # float32 of the widest vector


class TensorRef(NamedTuple):
    """A tensor's address, and elements from image to image and from point to point."""

    tensor: Tensor
    address: int
    image: int
    pixel: int


def dtype_name(x: Tensor) -> str:
    """As in "float32"."""
    return str(x.dtype).removeprefix("torch.")


def place(x: Tensor, layout: str) -> TensorRef | None:
    """A tensor (n, c, h, w) of this layout as it lies in memory; None if it does not.

    Images may lie apart. Channels last, points may too: the tensor may be some of the
    channels of a wider one.
    """
    images, channels, height, width = x.shape
    image, channel, row, column = x.stride()
    if layout == "channels_first":
        pixel = 1
        expected = (height * width, width, 1)
    else:
        pixel = column if width > 1 else row if height > 1 else channels
        if pixel < channels:
            return None
        expected = (1, width * pixel, pixel)
    strides = zip(
        (channels, height, width), (channel, row, column), expected, strict=True
    )
    if any(size > 1 and stride != want for size, stride, want in strides):
        return None
    if images <= 1:
        image = 0
    return TensorRef(x, x.data_ptr(), image, pixel)


def in_layout(x: Tensor, layout: str) -> Tensor:
    """The tensor itself if it is in this layout, else a copy that is."""
    if place(x, layout) is not None:
        return x
    last = layout == "channels_last"
    form = torch.channels_last if last else torch.contiguous_format
    return torch.empty_like(x, memory_format=form).copy_(x)


def operand_ref(
    kind: str, operand: Tensor, shape: tuple[int, ...], x: Tensor, layout: str
) -> TensorRef:
    """An operand of this kind for values of this shape; raises UsageError.

    "channel" is (c) of float32; "image" is (n, c) or (n, c, 1, 1) and "tensor" is of
    the values' own shape, both of the input's dtype. Copied if it lies otherwise.
    """
    wanted = {"channel": shape[1:2], "image": shape[:2], "tensor": shape}[kind]
    dtype = torch.float32 if kind == "channel" else x.dtype
    given = tuple(operand.shape)
    if kind == "image" and given == (*wanted, 1, 1):
        operand, given = operand.flatten(1), wanted
    if given != tuple(wanted) or operand.dtype != dtype:
        raise UsageError(
            f'an operand "{kind}" is {given} of {operand.dtype}, '
            f"expected {tuple(wanted)} of {dtype}"
        )
    if operand.device != x.device:
        raise UsageError(f"an operand is on {operand.device}, the input on {x.device}")
    if kind != "tensor":
        operand = operand.contiguous()
        return TensorRef(
            operand, operand.data_ptr(), shape[1] if kind == "image" else 0, 0
        )
    operand = in_layout(operand, layout)
    found = place(operand, layout)
    assert found is not None
    return found


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


def taps_ref(operand: Tensor, pool: Pool, channels: int) -> TensorRef:
    """The operand "taps" of a depthwise convolution; raises UsageError."""
    rows, columns = prod(pool.kernel) + 1, -(-channels // WIDEST) * WIDEST
    shape, dtype = tuple(operand.shape), operand.dtype
    if shape != (rows, columns) or dtype != torch.float32 or operand.is_cuda:
        raise UsageError(
            f'an operand "taps" is {shape} of {dtype}, '
            f"expected {(rows, columns)} of torch.float32"
        )
    operand = operand.contiguous()
    return TensorRef(operand, operand.data_ptr(), 0, columns)


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


@dataclass(frozen=True)
class Bound:
    """A kernel with its arguments, ready to be called any number of times.

    function: address of a C function `void(const void* call, int threads)`. call: its
    first argument. held: what it points into.
    """

    function: int
    call: ctypes.Structure
    held: tuple[Any, ...]

    def __call__(self, threads: int = 1) -> None:
        """Run it; the global interpreter lock is released."""
        _FUNCTION(self.function)(ctypes.byref(self.call), threads)


_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)


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

    def run(
        self,
        x: Tensor,
        operands: Sequence[Tensor] = (),
        out: Tensor | None = None,
        threads: int | None = None,
    ) -> Tensor:
        """What the stack makes of `x`, a tensor (n, c, h, w), in the kernel's layout.

        operands: in the order in which operations take them; see `OPERATORS`. Inputs
        in another layout are copied to it. out: where to put it, in the kernel's layout
        (a slice of channels of a wider tensor will do), and no part of what is read.
        threads: torch's number if None. Raises UsageError for tensors that do not fit.
        """
        x = in_layout(self._checked(x), self.layout)
        if out is None:
            shape = self.out_shape(x.shape)
            last = self.layout == "channels_last"
            form = torch.channels_last if last else torch.contiguous_format
            out = torch.empty(shape, dtype=x.dtype, memory_format=form)
        bound = self.bind(x, operands, out)
        if out.numel():
            bound(torch.get_num_threads() if threads is None else max(threads, 1))
        return out

    def bind(
        self,
        x: Tensor,
        operands: Sequence[Tensor],
        out: Tensor,
        between: Tensor | None = None,
    ) -> Bound:
        """The call that reads `x` and writes `out`, both in the kernel's layout.

        between: uint8, at least `between_bytes`; made if None. What operands must be
        copied for is copied now, not when it runs. Raises UsageError.
        """
        shape = tuple(self._checked(x).shape)
        source, target = place(x, self.layout), place(out, self.layout)
        if source is None or target is None:
            what = "input" if source is None else "output"
            raise UsageError(f"the {what} is not {self.layout} in memory; copy it")
        if tuple(out.shape) != self.out_shape(shape) or out.dtype != x.dtype:
            raise UsageError(
                f"the output is {tuple(out.shape)} of {out.dtype}, "
                f"expected {self.out_shape(shape)} of {x.dtype}"
            )
        if shape[0] > 1 and target.image < out[0].numel():
            raise UsageError("images of the output share memory; give it its own")
        needed = self.between_bytes(shape)
        if between is None and needed:
            between = torch.empty(needed, dtype=torch.uint8)
        if needed and (between is None or between.numel() < needed):
            raise UsageError(f"sequences need {needed} bytes between them")
        placed = self._operands(x, operands)
        table = (OperandStruct * max(len(placed), 1))()
        for entry, each in zip(table, placed, strict=False):
            entry.data, entry.image, entry.pixel = each.address, each.image, each.pixel
        call = CallStruct(
            *(
                source.address,
                target.address,
                between.data_ptr() if between is not None else None,
            ),
            ctypes.cast(table, ctypes.POINTER(OperandStruct)),
            *shape,
            *(source.image, source.pixel, target.image, target.pixel, self.cache),
        )
        tensors = [each.tensor for each in (source, target, *placed)]
        return Bound(self.function, call, (table, between, *tensors))

    def _checked(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise UsageError(f"a stack takes (n, c, h, w), not {tuple(x.shape)}")
        if x.device.type != "cpu":
            raise UsageError(
                f"this kernel runs on the CPU, and the input is {x.device}"
            )
        if dtype_name(x) != self.dtype:
            raise UsageError(f"this kernel takes {self.dtype}, not {x.dtype}")
        return x

    def _operands(self, x: Tensor, operands: Sequence[Tensor]) -> list[TensorRef]:
        """Operands where kernels find them, checked against the value they meet."""
        if len(operands) != len(self.stack.operands):
            raise UsageError(
                f"the stack takes {len(self.stack.operands)} operands, "
                f"not {len(operands)}"
            )
        found, rest, at = [], iter(operands), tuple(x.shape[2:])
        for operation in self.stack.operations:
            if operation.pool is not None:
                at = operation.pool.size(*at)
                if operation.operands:
                    found.append(taps_ref(next(rest), operation.pool, x.shape[1]))
                continue
            for kind in operation.operands:
                shape = (*x.shape[:2], *at)
                found.append(operand_ref(kind, next(rest), shape, x, self.layout))
        return found


_lock = threading.Lock()
_kernels: dict[tuple[str, str, str, str], int] = {}


def compiled(
    stack: Stack, dtype: str, layout: str, instructions: str = "native"
) -> Kernel:
    """The kernel of a stack; raises NoCompilerError or CompileError.

    dtype: one of `generate.DTYPES`; layout: one of `generate.LAYOUTS`; instructions:
    see `memplan.toolchain.loading.load`. Stacks of one signature share one kernel.
    """
    return compiled_many([stack], dtype, layout, instructions)[0]


def compiled_many(
    stacks: Sequence[Stack], dtype: str, layout: str, instructions: str = "native"
) -> list[Kernel]:
    """Kernels of several stacks, which takes less time than one by one: those that are
    not there yet are compiled together."""
    if dtype not in DTYPES or layout not in LAYOUTS:
        raise UsageError(f"no kernels for {dtype}, {layout}")
    with _lock:
        missing = {
            stack.signature: stack
            for stack in stacks
            if (stack.signature, dtype, layout, instructions) not in _kernels
        }
        if missing:
            source = source_of(missing.values(), dtype, layout)
            files = headers("stack_")
            if any(map(is_depthwise, missing.values())):
                files |= headers("depthwise_")
            library = load(source, files, instructions)
            for signature, stack in missing.items():
                function = getattr(library, kernel_name(stack, dtype, layout))
                address = ctypes.cast(function, ctypes.c_void_p).value
                assert address is not None
                _kernels[signature, dtype, layout, instructions] = address
        return [
            Kernel(
                stack,
                dtype,
                layout,
                _kernels[stack.signature, dtype, layout, instructions],
            )
            for stack in stacks
        ]
