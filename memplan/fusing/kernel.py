"""Stacks as compiled kernels on torch's tensors."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memplan.errors import UsageError
from memplan.fusing.caches import band_bytes
from memplan.fusing.collapse import Stack, sizes
from memplan.fusing.generate import (
    DTYPES,
    LAYOUTS,
    is_depthwise,
    kernel_name,
    source_of,
)
from memplan.fusing.kernels import headers
from memplan.fusing.operands import (
    Placed,
    dtype_name,
    in_layout,
    place,
    placed_operand,
    placed_taps,
)
from memplan.toolchain.loading import load

if TYPE_CHECKING:
    from torch import Tensor


class OperandStruct(ctypes.Structure):
    """`memplan::Operand` of kernels/stack_call.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("image", ctypes.c_int64),
        ("pixel", ctypes.c_int64),
    )


class CallStruct(ctypes.Structure):
    """`memplan::Call` of kernels/stack_call.h: all that a kernel is told."""

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
    first argument. held: the tensors whose memory it points to.
    """

    function: int
    call: CallStruct
    held: tuple[Any, ...]

    def __call__(self, threads: int) -> None:
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

        operands: in the order in which operations take them; see `ELEMENTWISE`. Inputs
        in another layout are copied to it. out: where to put it, in the kernel's layout
        (a slice of channels of a wider tensor will do), and no part of what is read.
        threads: torch's number if None. Raises UsageError for tensors that do not fit.
        """
        import torch

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
        copied for is copied now, and not when it runs. Raises UsageError.
        """
        import torch

        shape = tuple(self._checked(x).shape)
        source, target = place(x, self.layout), place(out, self.layout)
        if source is None or target is None:
            what = "input" if source is None else "output"
            raise UsageError(f"the {what} is not {self.layout} in memory; copy it")
        if tuple(out.shape) != self.out_shape(shape) or out.dtype != x.dtype:
            raise UsageError(
                f"the output is {tuple(out.shape)} of {out.dtype}, "
                f"and should be {self.out_shape(shape)} of {x.dtype}"
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
            raise UsageError(f"a stack takes (n, c, h, w), and not {tuple(x.shape)}")
        if x.device.type != "cpu":
            raise UsageError(
                f"this kernel runs on the CPU, and the input is {x.device}"
            )
        if dtype_name(x) != self.dtype:
            raise UsageError(f"this kernel takes {self.dtype}, and not {x.dtype}")
        return x

    def _operands(self, x: Tensor, operands: Sequence[Tensor]) -> list[Placed]:
        """Operands where kernels find them, checked against the value they meet."""
        if len(operands) != len(self.stack.operands):
            raise UsageError(
                f"the stack takes {len(self.stack.operands)} operands, "
                f"and not {len(operands)}"
            )
        found, rest, at = [], iter(operands), tuple(x.shape[2:])
        for operation in self.stack.operations:
            if operation.pool is not None:
                at = operation.pool.size(*at)
                if operation.operands:
                    found.append(placed_taps(next(rest), operation.pool, x.shape[1]))
                continue
            for kind in operation.operands:
                shape = (*x.shape[:2], *at)
                found.append(placed_operand(kind, next(rest), shape, x, self.layout))
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
