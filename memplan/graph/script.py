"""The text of a tape's graph: TorchScript's intermediate form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


class NoTapeError(Exception):
    """The program has an operator or argument that a tape cannot hold."""


@dataclass
class Text:
    """The lines of a graph in TorchScript's form, and what they take.

    tensors: the bound ones, in order. numbers: floating-point ones, which have no exact
    text. marks: sizes of requests that say which operator runs; constants would be
    computed once.
    """

    lines: list[str] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    slots: dict[int, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def bound(self, tensor: Tensor) -> str:
        """The name of a tensor that stays where it is."""
        name = self.slots.get(id(tensor))
        if name is None:
            name = self.slots[id(tensor)] = f"%t{len(self.tensors)}"
            self.tensors.append(tensor)
        return name

    def constant(self, kind: str, value: str) -> str:
        line = f"{kind} = prim::Constant{value}()"
        if line not in self.constants:
            self.constants[line] = f"%c{len(self.constants)}"
        return self.constants[line]

    def number(self, value: float) -> str:
        self.numbers.append(value)
        return f"%n{len(self.numbers) - 1}"

    def list_of(self, kind: str, items: Sequence[str]) -> str:
        name = self.fresh()
        self.lines.append(f"{name} : {kind} = prim::ListConstruct({', '.join(items)})")
        return name

    def source(self, inputs: Sequence[str], outputs: Sequence[str]) -> str:
        """The whole graph: of inputs, bound tensors, numbers and marks to a tuple."""
        heads = [f"{name} : Tensor" for name in inputs]
        heads += ["%tensors : Tensor[]", "%numbers : float[]", "%marks : int[]"]
        lines = [f"graph({', '.join(heads)}):"]
        for kind, many, count in (
            ("Tensor", "%tensors", len(self.tensors)),
            ("float", "%numbers", len(self.numbers)),
            ("int", "%marks", len(self.marks)),
        ):
            if count:
                names = ", ".join(f"{many[:2]}{i} : {kind}" for i in range(count))
                lines.append(f"  {names} = prim::ListUnpack({many})")
        lines += [f"  {name} : {text}" for text, name in self.constants.items()]
        lines += [f"  {line}" for line in self.lines]
        kinds = ", ".join("Tensor" for _ in outputs)
        names = ", ".join(outputs)
        lines.append(f"  %out : ({kinds}) = prim::TupleConstruct({names})")
        return "\n".join([*lines, "  return (%out)", ""])


def element(kind: Any) -> Any:
    """The type of a list's elements, of an optional list too."""
    if str(kind.kind()) == "OptionalType":
        kind = kind.getElementType()
    return kind.getElementType()


def spelled(kind: Any) -> str:
    """A type as the text of a graph has it."""
    if str(kind.kind()) == "OptionalType":
        return f"{spelled(kind.getElementType())}?"
    if str(kind.kind()) == "ListType":
        return f"{spelled(kind.getElementType())}[]"
    return "Scalar" if str(kind.kind()) == "NumberType" else str(kind)


def schema_name(target: Any) -> str:
    """How a graph's text names an operator.

    Raises NoTapeError where torch would take it for another one.
    """
    if target is torch.ops.aten.view.dtype:
        raise NoTapeError("a view of another type")
    return str(target._schema.name)


# The integers by which torch's schemas name these; from c10/core.
CODES: dict[object, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.strided: 0,
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


def code(value: object) -> int:
    if value not in CODES:
        raise NoTapeError(f"an argument {value!r}")
    return CODES[value]
