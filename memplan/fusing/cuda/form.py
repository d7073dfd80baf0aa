"""What a CUDA kernel is written for, what a launch takes, element-wise statements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from memplan.errors import UsageError
from memplan.fusing.operators import Operation

THREADS = 128  # of a block (4.4)
LANES = 32  # threads that run in step, and channels that a block takes, channels last

# Types of values: the name in the source, and bytes.
TYPES: Mapping[str, tuple[str, int]] = {
    "float32": ("float", 4),
    "float16": ("Half", 2),
    "bfloat16": ("Bfloat", 2),
}
ENTRY = "stack"  # the name of every kernel


@dataclass(frozen=True)
class Form:
    """How the value lies that goes into a kernel.

    dtype: one of TYPES. channels_last: channels are innermost, else columns. aligned:
    all tensors start at a multiple of 16 bytes.
    """

    dtype: str
    channels: int
    height: int
    width: int
    channels_last: bool = False
    aligned: bool = True

    def __post_init__(self) -> None:
        if self.dtype not in TYPES:
            raise UsageError(f"{self.dtype}: kernels take {', '.join(TYPES)}")

    @property
    def type(self) -> str:
        """The type of a value in the source."""
        return TYPES[self.dtype][0]

    @property
    def lanes(self) -> int:
        """Channels that a block works on together: one plane, or channels last as
        many as there are up to 32, as a power of two."""
        if not self.channels_last:
            return 1
        return min(LANES, 1 << max(self.channels - 1, 0).bit_length())


@dataclass(frozen=True)
class Operand:
    """What a kernel takes beside the value: a kind of OPERATORS, and of a "tensor"
    the elements that it has for each channel of an image."""

    kind: str
    plane: int = 1


@dataclass(frozen=True)
class Kernel:
    """CUDA C++ of one sequence, and how it is launched.

    Its parameters are pointers to input, output and operands, then as 32-bit integers
    images, channels and elements of an input plane. out: height and width of what
    comes out. shared: bytes of shared memory of a block. items and per_block: each
    block does `per_block` of the `items` there are for each channel of an image; where
    `group` is not 0 it does one item of that many channels.
    """

    source: str
    out: tuple[int, int]
    operands: tuple[Operand, ...]
    items: int
    per_block: int = THREADS
    group: int = 0
    shared: int = 0

    def blocks(self, images: int, channels: int) -> int:
        """How many blocks do all the work."""
        if self.group:
            return images * -(-channels // self.group) * self.items
        return -(-images * channels * self.items // self.per_block)


@cache
def headers() -> Mapping[str, str]:
    """Names and texts of the files that every kernel includes."""
    folder = resources.files("memplan.fusing.cuda")
    return {
        name: folder.joinpath(name).read_text(encoding="utf-8")
        for name in ("device.cuh", "functions.cuh")
    }


@dataclass(frozen=True)
class Group:
    """Element-wise operations that run one after the other in a register.

    first: the number of their first operand among all of the sequence.
    """

    operations: tuple[Operation, ...]
    first: int = 0

    @property
    def kinds(self) -> list[tuple[int, str]]:
        """Number and kind of each operand."""
        kinds = [kind for each in self.operations for kind in each.operands]
        return list(enumerate(kinds, self.first))

    def statements(self, reads: Mapping[int, str]) -> list[str]:
        """Statements that change `v`; `reads` has an expression for each operand."""
        lines, number = [], self.first
        for operation in self.operations:
            taken = len(operation.operands)
            terms = [reads[number + index] for index in range(taken)]
            number += taken
            lines.append(f"v = {operation.code('v', terms)};")
        return lines


def grouped(operations: Iterable[Operation]) -> list[Group]:
    """The element-wise operations before, between and behind the pools."""
    runs: list[list[Operation]] = [[]]
    for operation in operations:
        if operation.elementwise:
            runs[-1].append(operation)
        else:
            runs.append([])
    found, first = [], 0
    for run in runs:
        found.append(Group(tuple(run), first))
        first += len(found[-1].kinds)
    return found


def operands(groups: Sequence[Group], planes: Sequence[int]) -> tuple[Operand, ...]:
    """All operands of the groups; `planes` are the elements of a plane in each."""
    return tuple(
        Operand(kind, plane if kind == "tensor" else 1)
        for group, plane in zip(groups, planes, strict=True)
        for _, kind in group.kinds
    )


def signature(form: Form, taken: Sequence[Operand]) -> str:
    """The head of a kernel, up to its body."""
    types = [
        "const float*" if each.kind == "channel" else f"const {form.type}*"
        for each in taken
    ]
    parameters = [f"const {form.type}* __restrict__ in"]
    parameters += [f"{form.type}* __restrict__ out"]
    parameters += [f"{type_} __restrict__ p{n}" for n, type_ in enumerate(types)]
    parameters += ["int images", "int channels", "int plane"]
    listed = ",\n    ".join(parameters)
    bounds = "__launch_bounds__(THREADS)"
    return f'extern "C" __global__ void {bounds} {ENTRY}(\n    {listed})'
