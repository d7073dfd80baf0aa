"""What a stack is made of: element-wise operations and pooling (BrainSlug, 4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# Element-wise operations: how many numbers each takes, and which operands.
# "channel": a float32 vector of one value a channel. "image": a tensor (n, c), one
# value a channel of each image. "tensor": a tensor of the shape that the value has.
ELEMENTWISE: dict[str, tuple[int, tuple[str, ...]]] = {
    "affine": (0, ("channel", "channel")),  # x * scale + shift
    "prelu": (0, ("channel",)),
    "relu": (0, ()),
    "clamp": (2, ()),  # low, high
    "leaky_relu": (1, ()),  # slope
    "elu": (1, ()),  # alpha
    "sigmoid": (0, ()),
    "tanh": (0, ()),
    "silu": (0, ()),
    "gelu": (0, ()),
    "gelu_tanh": (0, ()),
    "mish": (0, ()),
    "softplus": (2, ()),  # beta, threshold
    "hardswish": (0, ()),
    "hardsigmoid": (0, ()),
    "abs": (0, ()),
    "exp": (0, ()),
    "add_number": (1, ()),
    "mul_number": (1, ()),
    "add": (0, ("tensor",)),
    "sub": (0, ("tensor",)),
    "mul": (0, ("tensor",)),
    "gate": (0, ("image",)),  # x * one value a channel of each image
}


class Pool(NamedTuple):
    """Pooling over windows of a plane, its numbers as in `torch.nn`; (height, width).

    divisor: what averages are divided by instead of the number of elements.
    """

    mode: str  # "max" or "average"
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    ceil: bool = False
    count_padding: bool = True
    divisor: int | None = None

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of what comes out of a plane of this size, as torch has it:
        with `ceil`, a window may not start in the padding behind."""
        return self._along(0, height), self._along(1, width)

    def _along(self, axis: int, size: int) -> int:
        stride, padding = self.stride[axis], self.padding[axis]
        reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
        room = size + 2 * padding - reach
        count = (room + (stride - 1 if self.ceil else 0)) // stride + 1
        if self.ceil and (count - 1) * stride >= size + padding:
            count -= 1
        return count


@dataclass(frozen=True)
class Operation:
    """One operation of a stack: element-wise, one of ELEMENTWISE, or kind "pool"."""

    kind: str
    numbers: tuple[float, ...] = ()
    pool: Pool | None = None

    @property
    def elementwise(self) -> bool:
        return self.kind != "pool"

    @property
    def operands(self) -> tuple[str, ...]:
        """Kinds of what it takes beside the value, in order: see ELEMENTWISE."""
        return () if self.pool is not None else ELEMENTWISE[self.kind][1]
