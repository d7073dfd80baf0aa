"""Transposed convolutions as plain ones: one for each phase of the result's rows and
columns, between which the others lie."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch

from memplan.fusing.given import convolution, is_norm
from memplan.fusing.origins import Origins, TracedRewriter
from memplan.graph.infer import Inference
from memplan.graph.lower import without_dead
from memplan.graph.program import Op, Program, Ref, is_pointwise

aten = torch.ops.aten
MOST = 4  # rows or columns of a result that one of the operand makes


class _Phase(NamedTuple):
    """Every so many rows (or columns) of a result.

    first: the first of the weight's that make them, of which every so many do. before,
    behind: zeros around the operand, where they are negative less of it.
    """

    first: int
    before: int
    behind: int


def with_phases(
    program: Program, inference: Inference, origins: Origins | None = None
) -> Program:
    """The program with transposed convolutions of float32 images on the CPU, in one
    group, as plain ones, which are joined by what follows them alone: a normalisation
    and an element-wise operator. Names and values of steps that are left are as before.
    """
    if not any(isinstance(op, Op) and _phases(op, program) for op in program.ops):
        return program
    return _Splitting(program, inference, origins).all()


class _Splitting:
    def __init__(
        self, program: Program, inference: Inference, origins: Origins | None
    ) -> None:
        self._old, self._to = program, TracedRewriter(program, inference, origins)
        self._users: dict[str, list[Op]] = {}
        for step in program.ops:
            assert isinstance(step, Op)
            for name in step.operands():
                self._users.setdefault(name, []).append(step)

    def all(self) -> Program:
        done: set[str] = set()
        for step in self._old.ops:
            assert isinstance(step, Op)
            if step.name in done:
                continue
            phases = _phases(step, self._old)
            if phases is None:
                self._to.append(step)
                continue
            behind = self._behind(step)
            done.update(op.name for op in behind)
            self._split(step, phases, behind)
        return without_dead(self._to.program)

    def _behind(self, op: Op) -> list[Op]:
        """A normalisation and an element-wise operator, of what nothing else takes."""
        found: list[Op] = []
        for fits in (self._normalises, _is_unary):
            last = found[-1] if found else op
            users = self._users.get(last.name, [])
            if len(users) == self._to.uses[last.name] == 1 and fits(users[0]):
                found.append(users[0])
        return found

    def _normalises(self, op: Op) -> bool:
        return is_norm(op, self._old)

    def _split(
        self, op: Op, phases: tuple[list[_Phase], list[_Phase]], behind: list[Op]
    ) -> None:
        to, old, (x, weight, bias) = self._to, self._old, (*op.args, None)[:3]
        shape = old.metas[op.name].shape
        rows, columns = (len(each) for each in phases)
        turned = to.add(op, weight.name, aten.transpose.int, weight, 0, 1)
        pieces = []
        for down, across in itertools.product(*phases):
            around = [across.before, across.behind, down.before, down.behind]
            given = x
            if any(around):
                pad = aten.constant_pad_nd.default
                given = to.add(op, f"{x.name}_padded", pad, x, around)
            taps = turned
            for dim, first, step in ((2, down.first, rows), (3, across.first, columns)):
                ends = dim, first, None, step
                taps = to.add(op, f"{op.name}_part", aten.slice.Tensor, taps, *ends)
            taps = to.add(op, f"{op.name}_flipped", aten.flip.default, taps, [2, 3])
            name = f"{op.name}_phase"
            y = to.add(op, name, aten.conv2d.default, given, taps, bias)
            for each in behind:
                args = y, *each.args[1:]
                name = f"{each.name}_phase"
                y = to.add(each, name, each.target, *args, **each.kwargs)
            pieces.append(y)
        batch, channels, height, width = shape
        few = height // rows, width // columns
        parts = to.add(op, f"{op.name}_phases", aten.cat.default, pieces, 1)
        size = [batch, rows, columns, channels, *few]
        apart = to.add(op, f"{op.name}_apart", aten.view.default, parts, size)
        order = [0, 4, 1, 5, 2, 3]
        mixed = to.add(op, f"{op.name}_mixed", aten.permute.default, apart, order)
        dense = {"memory_format": torch.contiguous_format}
        mixed = to.add(op, f"{op.name}_mixed", aten.clone.default, mixed, **dense)
        size = [batch, height, width, channels]
        whole = to.add(op, f"{op.name}_whole", aten.view.default, mixed, size)
        to.end([op, *behind][-1], aten.permute.default, whole, [0, 3, 1, 2])


def _is_unary(op: Op) -> bool:
    """Whether it makes each element of one of its operand, of the same type."""
    return is_pointwise(op) and len(op.operands()) == 1 and isinstance(op.args[0], Ref)


def _phases(op: Op, program: Program) -> tuple[list[_Phase], list[_Phase]] | None:
    """Of the rows and the columns of a transposed convolution's result; None for
    anything else, and for those that stay as they are."""
    given = convolution(op, "aten.conv_transpose2d", program)
    if given is None or given.groups != 1 or set(given.dilation) != {1}:
        return None
    size, taps, made = (
        program.metas[name].shape[2:]
        for name in (given.x.name, given.weight.name, op.name)
    )
    if size == (1, 1):
        return None
    numbers = zip(size, taps, given.stride, given.padding, made, strict=True)
    rows, columns = (_phases_along(*each) for each in numbers)
    return None if rows is None or columns is None else (rows, columns)


def _phases_along(
    size: int, taps: int, stride: int, padding: int, made: int
) -> list[_Phase] | None:
    """The phases along one dimension, in the order of their first elements.

    Element o of a result is a sum over taps t of the operand's i with i * stride + t ==
    o + padding: of every `stride`-th tap.
    """
    if made % stride or not 1 < stride <= MOST or taps < stride:
        return None
    found = []
    for start in range(stride):
        turns, first = divmod(start + padding, stride)
        count = len(range(first, taps, stride))
        low = turns - (count - 1)  # of the operand, for the first element
        high = turns + made // stride - 1
        found.append(_Phase(first, -low, high - (size - 1)))
    return found
