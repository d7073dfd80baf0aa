"""What the rules of operators may ask of the program that an operator stands in."""

from __future__ import annotations

from typing import Any

from memplan.fusing.layers import Layer
from memplan.fusing.operations import Operation
from memplan.graph.program import Program, Ref


class Context:
    """What the rules of operators may ask: shapes, dtypes, and names of weights."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def shape(self, value: Any) -> tuple[int, ...] | None:
        """Of a Ref's tensor; None for anything else."""
        meta = self._meta(value)
        return None if meta is None else meta.shape

    def dtype(self, value: Any) -> Any:
        meta = self._meta(value)
        return None if meta is None else meta.dtype

    def contiguous(self, value: Any) -> bool:
        """Whether the model has a Ref's tensor in row-major order."""
        meta = self._meta(value)
        return meta is not None and bool(meta.contiguous)

    def weight(self, value: Any) -> str | None:
        """The name in the model of what a Ref stands for; a plain str stays."""
        if isinstance(value, Ref):
            return self._program.constants.get(value.name)
        return value if isinstance(value, str) else None

    def _meta(self, value: Any) -> Any:
        return self._program.metas.get(value.name) if isinstance(value, Ref) else None


class LeftAloneError(Exception):
    """A rule's reason to leave an operator to torch."""


def planes(context: Context, value: Any) -> tuple[int, int, int, int]:
    """The shape (n, c, h, w); vectors (n, c) have planes of one element.

    Raises LeftAloneError for values of another rank.
    """
    shape = context.shape(value)
    if shape is not None and len(shape) == 2:
        shape = (*shape, 1, 1)
    if shape is None or len(shape) != 4 or 0 in shape:
        raise LeftAloneError("its input has no planes, (n, c, h, w)")
    return shape


def made_of(layer: Layer, operation: Operation, *inputs: Ref) -> None:
    """Make a layer an operation of a stack."""
    layer.kind, layer.operation = "operation", operation
    layer.inputs = [each.name for each in inputs]


def identity(layer: Layer, context: Context, x: Any, *_: Any, **__: Any) -> None:
    """Make a layer one whose value is its input's."""
    layer.kind, layer.inputs = "same", [x.name]
