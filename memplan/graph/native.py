"""Kernels of memplan's own among a program's operators.

Such an operator's target writes its result where it is told. Consecutive ones run as
one operator of a tape, without Python between them.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

OUT = -1  # in the place of an operand's position: the result


class PointerSlot(NamedTuple):
    """A pointer in a ctypes structure, and the tensor whose address it gets: by a name,
    or as an operand's position or OUT."""

    structure: ctypes.Structure
    field: str
    value: Any


@dataclass(slots=True)
class Bound:
    """A kernel with its arguments, ready to be called any number of times.

    function: address of a C function `void(const void* call, int threads)`. call: its
    first argument. held: what it points into beside the tensors of `given`. given:
    pointers to tensors, which may be set before each run.
    """

    function: int
    call: ctypes.Structure
    held: tuple[Any, ...]
    given: list[PointerSlot] = field(default_factory=list)

    def __call__(self, threads: int = 1) -> None:
        """Run it; the global interpreter lock is released."""
        _FUNCTION(self.function)(ctypes.byref(self.call), threads)


_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)
Play = Callable[[Any, int, int], None]
"""Runs an array of functions and arguments, so many, on so many threads."""


class Native(ABC):
    """A target that a tape runs as a kernel.

    over: positions of operands over which the kernel may write its result. into:
    whether its last operand is the memory of the result, a view of a larger value.
    """

    over: tuple[int, ...] = ()
    into = False

    @abstractmethod
    def empty(self) -> Tensor:
        """A tensor for the result."""

    @property
    @abstractmethod
    def scratch(self) -> int:
        """Bytes that it writes to beside its result."""

    @abstractmethod
    def call(self, operands: Sequence[Tensor], out: Tensor, scratch: Tensor) -> Bound:
        """The kernel on these tensors, `scratch` one of as many bytes as it wants; its
        slots are of operands and OUT.

        Raises UsageError for tensors that lie otherwise than it reads or writes them.
        """

    @property
    @abstractmethod
    def play(self) -> Play:
        """What runs it together with others."""

    def __call__(self, *operands: Tensor) -> Tensor:
        out = operands[-1] if self.into else self.empty()
        if not isinstance(out, FakeTensor):
            scratch = torch.empty(self.scratch, dtype=torch.uint8)
            Segment(self.play, [self.call(operands, out, scratch)])()
        return out


class Assembled:
    """A target whose value are others, side by side in its first operand.

    copies: positions of operands that are copied there, and the dimension and range
    where they go; the others lie there already.
    """

    __name__ = "memplan.assembled"

    def __init__(self, copies: dict[int, tuple[int, int, int]]) -> None:
        self.copies = copies

    def __call__(self, *operands: Tensor) -> Tensor:
        for position, (dim, low, high) in self.copies.items():
            operands[0].narrow(dim, low, high - low).copy_(operands[position])
        return operands[0]


class _Entry(ctypes.Structure):
    _fields_ = (("function", ctypes.c_void_p), ("call", ctypes.c_void_p))


class Segment:
    """Kernels that run one after another; one call at a time.

    slots: pointers that are set before each run, by positions among the tensors that it
    is called with.
    """

    def __init__(
        self, play: Play, kernels: Sequence[Bound], slots: Sequence[PointerSlot] = ()
    ) -> None:
        self._play, self._kernels, self._slots = play, list(kernels), list(slots)
        self._entries = (_Entry * len(kernels))(
            *(_Entry(each.function, ctypes.addressof(each.call)) for each in kernels)
        )
        self.number = next(_numbers)
        _segments[self.number] = self

    def __call__(self, tensors: Sequence[Tensor] = ()) -> None:
        """Run all; the global interpreter lock is released meanwhile."""
        for structure, name, position in self._slots:
            setattr(structure, name, tensors[position].data_ptr())
        self._play(self._entries, len(self._entries), torch.get_num_threads())


_numbers = itertools.count()
_segments: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()


def _run(tensors: list[Tensor], number: int) -> int:
    _segments[number](tensors)
    return 0


# The operator by which a tape runs a segment. It returns a number because the text of a
# graph has no operators without results.
OPERATOR = "memplan::segment"
_library = torch.library.Library("memplan", "FRAGMENT")
_library.define("segment(Tensor(a!)[] tensors, int number) -> int")
_library.impl("segment", _run, "CompositeExplicitAutograd")
