"""What a kernel is written for, and what a launch of it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from memplan.errors import UsageError

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
    """What a kernel takes beside the value: a kind of ELEMENTWISE, and of a "tensor"
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
