"""Stacks run on tensors: each sequence one launch, compiled for what it first meets.

On a GPU it has not run; on tensors of a CPU it has, with a stand-in for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch

from memplan.errors import UsageError
from memplan.fusing.collapse import collapse
from memplan.fusing.cuda.emit import emit
from memplan.fusing.cuda.form import Form, Kernel, Operand
from memplan.fusing.cuda.gpu import Launch
from memplan.fusing.kernel import dtype_name
from memplan.fusing.operators import Operation
from memplan.fusing.patches import Device

# Bytes that memory moves while a value of a step is made; reckoned, not timed.
_WORK = 4.0
# Elements that one launch reads or writes at most: the step to a thread's next one
# then still fits in 32 bits.
_MOST_ELEMENTS = 1 << 30


class Ready(Protocol):
    """A device that kernels can be made ready for, as `Gpu` is.

    device: what torch calls it. limit: bytes of shared memory that suit a block.
    """

    device: str
    limit: int

    def ready(self, kernel: Kernel) -> Launch: ...


class CudaStack:
    """A stack that runs on a GPU, whatever sizes of tensors it is called with."""

    def __init__(
        self,
        operations: Sequence[Operation],
        gpu: Ready,
        limit: int | None = None,
        max_steps: int | None = None,
    ) -> None:
        """limit: bytes of shared memory of a block; the device's own if None.
        max_steps: the most steps of a sequence, None for any number.

        Raises UsageError if there are no operations.
        """
        if not operations:
            raise UsageError("a stack needs at least one operation")
        self.operations, self.gpu = tuple(operations), gpu
        self.limit = gpu.limit if limit is None else limit
        self.max_steps = max_steps
        self._ready: dict[tuple[Form, bool], list[tuple[Kernel, Launch]]] = {}

    def __call__(
        self, value: torch.Tensor, operands: Sequence[torch.Tensor] = ()
    ) -> torch.Tensor:
        """What the stack makes of `value`, (n, c, h, w), a new tensor of its type.

        operands: of all operations, in their order; those of kind "channel" are
        float32 (c,), "image" (n, c) and "tensor" of the shape that the value has
        there, both of the value's type. Channels-last tensors stay so; what lies
        otherwise is copied first. Raises UsageError for unsuitable tensors, and what
        `Gpu.ready` raises where a kernel is needed for the first time.
        """
        if value.dim() != 4:
            raise UsageError(f"a stack takes 4 dimensions, not {value.dim()}")
        if str(value.device) != self.gpu.device:
            raise UsageError(f"the stack is for {self.gpu.device}, not {value.device}")
        value, given, form = _laid_out(value, operands)
        kernels = self._kernels(form, value.numel() == 0)
        _check(value, given, [one for each, _ in kernels for one in each.operands])
        order = torch.channels_last if form.channels_last else torch.contiguous_format
        for kernel, launch in kernels:
            taken, given = given[: len(kernel.operands)], given[len(kernel.operands) :]
            out = torch.empty(
                (*value.shape[:2], *kernel.out),
                dtype=value.dtype,
                device=value.device,
                memory_format=order,
            )
            if out.numel():
                _launch(kernel, launch, value, out, taken)
            value = out
        return value

    def _kernels(self, form: Form, empty: bool) -> list[tuple[Kernel, Launch]]:
        """Of each sequence its kernel, made ready when it is first asked for."""
        found = self._ready.get((form, empty))
        if found is None:
            plane = (form.height, form.width)
            device = Device(self.limit, form.lanes, _WORK)
            stack = collapse(self.operations, plane, device, self.max_steps)
            found = []
            for sequence in stack.sequences:
                operations = [one for step in sequence.steps for one in step.operations]
                at = replace(form, height=plane[0], width=plane[1])
                kernel = emit(operations, at, sequence.patch, self.limit)
                found.append((kernel, _never if empty else self.gpu.ready(kernel)))
                plane = kernel.out
            self._ready[form, empty] = found
        return found


def _never(blocks: int, pointers: Sequence[int], numbers: Sequence[int]) -> None:
    """The launch of a kernel that has nothing to do."""


def _laid_out(
    value: torch.Tensor, operands: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor], Form]:
    """The tensors as kernels read them, copied where they lie otherwise."""
    usual = torch.contiguous_format
    last = not value.is_contiguous() and value.is_contiguous(
        memory_format=torch.channels_last
    )
    order = torch.channels_last if last else usual
    value = value.contiguous(memory_format=order)
    given = [
        each.contiguous(memory_format=order if each.dim() == 4 else usual)
        for each in operands
    ]
    aligned = all(each.data_ptr() % 16 == 0 for each in (value, *given))
    _, channels, height, width = value.shape
    return value, given, Form(dtype_name(value), channels, height, width, last, aligned)


def _check(
    value: torch.Tensor, given: Sequence[torch.Tensor], taken: Sequence[Operand]
) -> None:
    if len(given) != len(taken):
        raise UsageError(f"the stack takes {len(taken)} operands, not {len(given)}")
    images, channels = value.shape[:2]
    for each, operand in zip(given, taken, strict=True):
        type_ = torch.float32 if operand.kind == "channel" else value.dtype
        if each.dtype != type_ or each.device != value.device:
            raise UsageError(
                f"{operand.kind}: {each.dtype} on {each.device}, not {type_} "
                f"on {value.device}"
            )
        size = {"channel": channels, "image": images * channels}
        size["tensor"] = images * channels * operand.plane
        if each.numel() != size[operand.kind]:
            raise UsageError(
                f"an operand of shape {tuple(each.shape)} is no {operand.kind} "
                f"of values of shape {tuple(value.shape)}"
            )


def _launch(
    kernel: Kernel,
    launch: Launch,
    value: torch.Tensor,
    out: torch.Tensor,
    operands: Sequence[torch.Tensor],
) -> None:
    """One launch, or several of as many images as indices of 32 bits can tell apart."""
    images, channels, height, width = value.shape
    plane = height * width
    largest = channels * max(plane, kernel.out[0] * kernel.out[1])
    at_once = _MOST_ELEMENTS // largest
    if not at_once:
        raise UsageError(f"an image of {largest} elements is too large for one launch")
    width = value.element_size()
    sizes = [plane, kernel.out[0] * kernel.out[1]]
    sizes += [0 if each.kind == "channel" else each.plane for each in kernel.operands]
    tensors = (value, out, *operands)
    for start in range(0, images, at_once):
        count = min(at_once, images - start)
        pointers = [
            each.data_ptr() + start * channels * size * width
            for each, size in zip(tensors, sizes, strict=True)
        ]
        launch(kernel.blocks(count, channels), pointers, (count, channels, plane))
