"""What a stack is made of: element-wise operations and pooling (BrainSlug, 4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from memplan.errors import UsageError

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

    mode: "max", "average", or "depthwise", a convolution of each channel by itself: a
    sum whose weights are the operation's operand. divisor: what averages are divided by
    instead of the number of elements. behind: of a depthwise convolution, rows and
    columns of padding more than in front.
    """

    mode: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    ceil: bool = False
    count_padding: bool = True
    divisor: int | None = None
    behind: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        """As in "max 3x3 stride 2 padding 1"; what is as usual is not said."""
        words = [f"{self.mode} {_by(self.kernel)}"]
        usual = (1, 1) if self.mode == "depthwise" else self.kernel
        words += [f"stride {_by(self.stride)}"] if self.stride != usual else []
        words += [f"padding {_by(self.padding)}"] if any(self.padding) else []
        words += [f"and {_by(self.behind)} behind"] if any(self.behind) else []
        words += [f"dilation {_by(self.dilation)}"] if self.dilation != (1, 1) else []
        words += ["ceil"] if self.ceil else []
        if self.mode == "average" and self.divisor is not None:
            words.append(f"over {self.divisor}")
        elif self.mode == "average" and not self.count_padding:
            words.append("padding not counted")
        return " ".join(words)

    def within(self, plane: tuple[int, int]) -> Pool:
        """The same pooling of planes so large by a window no larger than a plane with
        its padding: one that reaches beyond has a single place, and averages do not
        count what lies there."""
        pool = self
        for axis, size in enumerate(plane):
            room = size + 2 * pool.padding[axis]
            if pool.reach(axis) > room:
                most = (room - 1) // pool.dilation[axis] + 1
                pool = pool._replace(
                    kernel=_with(pool.kernel, axis, most),
                    stride=_with(pool.stride, axis, room),
                )
        return pool

    def reach(self, axis: int) -> int:
        """Rows (axis 0) or columns (1) from a window's first to its last, both in."""
        return self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def window(self, axis: int, start: int, stop: int) -> tuple[int, int]:
        """The rows (axis 0) or columns (1) that outputs [start, stop) look at.

        From the first to past the last; below 0 and past the plane is padding.
        """
        first = start * self.stride[axis] - self.padding[axis]
        last = (stop - 1) * self.stride[axis] - self.padding[axis]
        return first, last + self.reach(axis)

    def check(self) -> None:
        """Raise UsageError for numbers that torch would refuse, too."""
        if self.mode not in ("max", "average", "depthwise"):
            raise UsageError(f"a pool takes the max or the average, not {self.mode!r}")
        if min(self.kernel + self.stride + self.dilation) < 1 or min(self.padding) < 0:
            raise UsageError(f"kernels, strides and dilations are 1 or more: {self}")
        if self.mode == "depthwise":
            return
        if any(2 * self.padding[axis] > self.reach(axis) for axis in (0, 1)):
            raise UsageError(f"a pool's padding is at most half its kernel: {self}")
        if self.mode == "average" and self.dilation != (1, 1):
            raise UsageError(f"average pools have no dilation: {self}")
        if self.divisor == 0:
            raise UsageError(f"a pool's divisor is not 0: {self}")

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of what comes out of a plane of this size, as torch has it:
        with `ceil`, a window may not start in the padding behind."""
        return self._along(0, height), self._along(1, width)

    def _along(self, axis: int, size: int) -> int:
        stride, padding = self.stride[axis], self.padding[axis]
        room = size + 2 * padding + self.behind[axis] - self.reach(axis)
        count = (room + (stride - 1 if self.ceil else 0)) // stride + 1
        if self.ceil and (count - 1) * stride >= size + padding:
            count -= 1
        return count


@dataclass(frozen=True)
class Operation:
    """One operation of a stack: element-wise, one of ELEMENTWISE, or kind "pool".

    Raises UsageError for kinds that there are not, and for numbers that are amiss.
    """

    kind: str
    numbers: tuple[float, ...] = ()
    pool: Pool | None = None

    def __post_init__(self) -> None:
        if self.kind == "pool":
            if self.pool is None or self.numbers:
                raise UsageError("a pool's numbers are those of its Pool")
            self.pool.check()
        elif self.kind not in ELEMENTWISE or self.pool is not None:
            raise UsageError(f"{self.kind!r} is no element-wise operation")
        elif len(self.numbers) != ELEMENTWISE[self.kind][0]:
            count = ELEMENTWISE[self.kind][0]
            raise UsageError(f"{self.kind} takes {count} numbers, not {self.numbers}")

    def __str__(self) -> str:
        """As in "relu", "clamp 0 6" or "max 3x3 stride 1 padding 1"."""
        if self.pool is not None:
            return str(self.pool)
        return " ".join([self.kind, *(f"{number:.9g}" for number in self.numbers)])

    @property
    def elementwise(self) -> bool:
        return self.kind != "pool"

    @property
    def operands(self) -> tuple[str, ...]:
        """Kinds of what it takes beside the value, in order: see ELEMENTWISE; "taps":
        of a depthwise convolution its weights and bias, see `operands.taps`."""
        if self.pool is not None:
            return ("taps",) if self.pool.mode == "depthwise" else ()
        return ELEMENTWISE[self.kind][1]


def _with(pair: tuple[int, int], axis: int, number: int) -> tuple[int, int]:
    return (number, pair[1]) if axis == 0 else (pair[0], number)


def _by(pair: tuple[int, int]) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}x{pair[1]}"
