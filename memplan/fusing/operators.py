"""What a stack is made of: element-wise operators and pooling (BrainSlug, 4.1).

`OPERATORS` is the one place that knows an element-wise operator: how it is computed in
C++ and Triton, by which function and module of torch it is called, how a picture labels
it. A new operator is one row.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch.nn import functional

from memplan.errors import UsageError

UNBOUNDED = "splat(infinity())"


@dataclass(frozen=True)
class Operator:
    """An element-wise operator.

    code: an expression of C++, which `triton_stack.expression` turns into Python: {x}
    is the value, {a} and {b} are numbers, {p} and {q} operands. It may use `larger`,
    `clamp`, `magnitude`, `exp`, `expm1` (of values up to 0), `log1p` (of values from
    0), `tanh`, `erf`, `mish`, and one choice, `a ? b : c`, of the whole.
    bound: how it changes `most`, the largest magnitude there can be; a C++ expression.
    torch: the same on tensors: value, operands, numbers. numbers: their names, as
    torch's function and module have them, and defaults.
    operands: kinds of what it takes beside the value. "channel": a float32 vector of
    one value a channel. "image": a tensor (n, c), one value a channel of each image.
    "tensor": a tensor of the value's shape.
    called: whether the operator's name is that of an ATen operator with these numbers.
    label: in pictures, if not the name.
    """

    code: str
    bound: str
    torch: Callable[..., torch.Tensor]
    numbers: dict[str, float] = field(default_factory=dict)
    operands: tuple[str, ...] = ()
    called: bool = True
    label: str = ""


def _affine(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return x * scale + shift


def _prelu(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, x * slope)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


# Those that are not `called` have rules of their own, in rules.py or recognise.py.
OPERATORS: dict[str, Operator] = {
    "affine": Operator(
        "{x} * {p} + {q}",
        "most * magnitude({p}) + magnitude({q})",
        _affine,
        operands=("channel", "channel"),
        called=False,
        label="norm",
    ),
    "prelu": Operator(
        "{x} > 0.0f ? {x} : {x} * {p}",
        "most * larger(splat(1.0f), magnitude({p}))",
        _prelu,
        operands=("channel",),
        called=False,
    ),
    "relu": Operator("larger(0.0f, {x})", "most", torch.relu),
    "clamp": Operator(
        "clamp({x}, {a}, {b})",
        "clamped(most, {a}, {b})",
        torch.clamp,
        {"min": -math.inf, "max": math.inf},
        called=False,
    ),
    "leaky_relu": Operator(
        "{x} > 0.0f ? {x} : {x} * {a}",
        "most * (1.0f + size({a}))",
        functional.leaky_relu,
        {"negative_slope": 0.01},
        label="leaky",
    ),
    "elu": Operator(
        "{x} > 0.0f ? {x} : {a} * expm1({x})",
        "most + size({a})",
        functional.elu,
        {"alpha": 1.0},
    ),
    "sigmoid": Operator("1.0f / (1.0f + exp(-{x}))", "splat(1.0f)", torch.sigmoid),
    "tanh": Operator("tanh({x})", "splat(1.0f)", torch.tanh),
    "silu": Operator("{x} / (1.0f + exp(-{x}))", "most + 1.0f", functional.silu),
    "gelu": Operator(
        "0.5f * {x} * (1.0f + erf({x} * 0.707106781f))",
        "most + 1.0f",
        functional.gelu,
        called=False,
    ),
    "gelu_tanh": Operator(
        "0.5f * {x} * (1.0f + tanh("
        "0.797884561f * ({x} + 0.044715f * {x} * {x} * {x})))",
        "most + 1.0f",
        _gelu_tanh,
        called=False,
    ),
    "mish": Operator("mish({x})", "most + 1.0f", functional.mish),
    "softplus": Operator(
        "{x} * {a} > {b} ? {x} : log1p(exp({x} * {a})) / {a}",
        "softened(most, {a}, {b})",
        functional.softplus,
        {"beta": 1.0, "threshold": 20.0},
    ),
    "softsign": Operator(
        "{x} / (1.0f + magnitude({x}))",
        "splat(1.0f)",
        functional.softsign,
        called=False,
    ),
    "hardswish": Operator(
        "{x} * clamp({x} + 3.0f, 0.0f, 6.0f) / 6.0f",
        "most * 6.0f",
        functional.hardswish,
        label="hswish",
    ),
    "hardsigmoid": Operator(
        "clamp({x} + 3.0f, 0.0f, 6.0f) / 6.0f",
        "splat(1.0f)",
        functional.hardsigmoid,
        label="hsigm",
    ),
    "abs": Operator("magnitude({x})", "most", torch.abs),
    "exp": Operator("exp({x})", "exp(most)", torch.exp),
    "add_number": Operator(
        "{x} + {a}",
        "most + size({a})",
        torch.add,
        {"other": 0.0},
        called=False,
        label="+ n",
    ),
    "mul_number": Operator(
        "{x} * {a}",
        "most * size({a})",
        torch.mul,
        {"other": 1.0},
        called=False,
        label="× n",
    ),
    "add": Operator(
        "{x} + {p}", UNBOUNDED, torch.add, operands=("tensor",), called=False, label="+"
    ),
    "sub": Operator(
        "{x} - {p}", UNBOUNDED, torch.sub, operands=("tensor",), called=False, label="−"
    ),
    "mul": Operator(
        "{x} * {p}", UNBOUNDED, torch.mul, operands=("tensor",), called=False, label="×"
    ),
    "gate": Operator(  # x * one value a channel of each image
        "{x} * {p}",
        "most * magnitude({p})",
        torch.mul,
        operands=("image",),
        called=False,
    ),
}


def literal(number: float) -> str:
    """A float of C++ that is `number` to the last bit of a float32."""
    try:
        (number,) = struct.unpack("f", struct.pack("f", number))
    except OverflowError:  # it rounds to an infinity
        number = math.copysign(math.inf, number)
    if math.isnan(number):
        return "not_a_number()"
    if math.isinf(number):
        return "infinity()" if number > 0 else "-infinity()"
    return f"{number.hex()}f"


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
    """One operation of a stack: element-wise, one of OPERATORS, or kind "pool".

    Raises UsageError for a pool whose windows may lie beside the plane altogether.
    """

    kind: str
    numbers: tuple[float, ...] = ()
    pool: Pool | None = None

    def __post_init__(self) -> None:
        pool = self.pool
        if pool is None or pool.mode == "depthwise":
            return
        if any(2 * pool.padding[axis] > pool.reach(axis) for axis in (0, 1)):
            raise UsageError(f"a pool's padding is at most half its kernel: {pool}")

    def __str__(self) -> str:
        """As in "relu", "clamp 0 6" or "max 3x3 stride 1 padding 1"."""
        if self.pool is not None:
            return str(self.pool)
        return " ".join([self.kind, *(f"{number:.9g}" for number in self.numbers)])

    @property
    def elementwise(self) -> bool:
        return self.kind != "pool"

    def code(self, x: str, operands: Sequence[str]) -> str:
        """An expression of C++ for the value `x` and these operands."""
        return self._filled(OPERATORS[self.kind].code, operands, x)

    def bound(self, operands: Sequence[str]) -> str:
        """A C++ expression for the largest magnitude, `most`, behind it."""
        return self._filled(OPERATORS[self.kind].bound, operands)

    def _filled(self, text: str, operands: Sequence[str], x: str = "") -> str:
        numbers = dict(zip("ab", map(literal, self.numbers), strict=False))
        return text.format(x=x, **numbers, **dict(zip("pq", operands, strict=False)))

    @property
    def operands(self) -> tuple[str, ...]:
        """Kinds of what it takes beside the value, in order: see OPERATORS; "taps":
        of a depthwise convolution its weights and bias, see `operands.taps`."""
        if self.pool is not None:
            return ("taps",) if self.pool.mode == "depthwise" else ()
        return OPERATORS[self.kind].operands


def _with(pair: tuple[int, int], axis: int, number: int) -> tuple[int, int]:
    return (number, pair[1]) if axis == 0 else (pair[0], number)


def _by(pair: tuple[int, int]) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}x{pair[1]}"
