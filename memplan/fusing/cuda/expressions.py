"""Element-wise operations as statements of CUDA C++, and the numbers in them."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from memplan.fusing.cuda.kernel import ENTRY, Form, Operand
from memplan.fusing.operations import Operation

# {x} is the value, {0} and {1} numbers or operands, in their order.
_EXPRESSIONS: Mapping[str, str] = {
    "affine": "{x} * {0} + {1}",
    "prelu": "prelu({x}, {0})",
    "relu": "relu({x})",
    "clamp": "clamped({x}, {0}, {1})",
    "leaky_relu": "prelu({x}, {0})",
    "elu": "elu({x}, {0})",
    "sigmoid": "sigmoid({x})",
    "tanh": "tanhf({x})",
    "silu": "silu({x})",
    "gelu": "gelu({x})",
    "gelu_tanh": "gelu_tanh({x})",
    "mish": "mish({x})",
    "softplus": "softplus({x}, {0}, {1})",
    "hardswish": "hardswish({x})",
    "hardsigmoid": "hardsigmoid({x})",
    "abs": "fabsf({x})",
    "exp": "expf({x})",
    "add_number": "{x} + {0}",
    "mul_number": "{x} * {0}",
    "add": "{x} + {0}",
    "sub": "{x} - {0}",
    "mul": "{x} * {0}",
    "gate": "{x} * {0}",
}


def literal(number: float) -> str:
    """A float of C++ that is `number` to the last bit of a float32."""
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", number))
    except OverflowError:  # it rounds to an infinity
        rounded = math.copysign(math.inf, number)
    if math.isnan(rounded):
        return "not_a_number()"
    if math.isinf(rounded):
        return "infinity()" if rounded > 0 else "-infinity()"
    return f"{float(rounded).hex()}f"


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
            terms = [literal(value) for value in operation.numbers]
            for _ in operation.operands:
                terms.append(reads[number])
                number += 1
            text = _EXPRESSIONS[operation.kind].format(*terms, x="v")
            lines.append(f"v = {text};")
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
