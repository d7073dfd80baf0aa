"""Linear layers of more than vectors as 1×1 convolutions: their rows are the pixels of
planes whose channels come last in memory, so nothing is moved."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from memplan.graph.infer import Inference, ShapeError
from memplan.graph.lower import without_dead
from memplan.graph.program import Argument, Meta, Op, Program, Ref, is_pointwise, mapped

aten = torch.ops.aten
_library = torch.library.Library("memplan", "FRAGMENT")
_library.define("linear_of_planes(Tensor x, Tensor weight, Tensor? bias) -> Tensor")


def _linear_of_planes(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    return functional.linear(x.movedim(1, -1), weight, bias).movedim(-1, 1)


_library.impl("linear_of_planes", _linear_of_planes, "CompositeImplicitAutograd")
LINEAR = torch.ops.memplan.linear_of_planes.default
"""A linear layer over the channels of (n, c, h, w), which come last in memory."""


def with_planes(program: Program, inference: Inference) -> Program:
    """The program with linear layers of float32 tensors (n, ..., c) as LINEAR of views
    (n, c, h, w), in which all rows are one but those of (n, h, w, c), and with
    element-wise operators behind them on such views.

    The steps are operators; names and values of those that are left are as before.
    """
    return _Viewing(program, inference).all()


class _Viewing:
    def __init__(self, program: Program, inference: Inference) -> None:
        self._old, self._inference = program, inference
        self._new = replace(program, ops=[], metas=dict(program.metas))
        self._new.roots = dict(program.roots)
        self._new.modules = dict(program.modules)
        self._planes: dict[str, Ref] = {}  # of values, by their names

    def all(self) -> Program:
        for step in self._old.ops:
            assert isinstance(step, Op)
            if self._is_linear(step) or self._is_behind(step):
                kept, planes = list(self._new.ops), dict(self._planes)
                if self._put(step):
                    continue
                self._new.ops, self._planes = kept, planes
            # What it takes may lie in another storage now.
            self._inference.add(self._new, step)
            self._new.ops.append(step)
        return without_dead(self._new) if self._planes else self._old

    def _is_linear(self, op: Op) -> bool:
        if op.key != "aten.linear" or op.kwargs:
            return False
        weights = [each.name for each in op.args[1:] if isinstance(each, Ref)]
        own = all(name in self._old.constants for name in weights)
        return own and self._has_rows(op.args[0].name) and self._has_rows(op.name)

    def _has_rows(self, name: str) -> bool:
        meta = self._new.metas[name]
        kind: object = torch.float32, "cpu"
        return (
            isinstance(meta, Meta)
            and len(meta.shape) > 2
            and math.prod(meta.shape[1:-1]) > 1  # how vectors lie is nobody's choice
            and 0 not in meta.shape
            and meta.contiguous
            and (meta.dtype, meta.device) == kind
        )

    def _is_behind(self, op: Op) -> bool:
        """Whether it is element-wise, of values of one shape, one a linear layer's."""
        names = [*op.operands(), op.name]
        return (
            is_pointwise(op)
            and any(name in self._planes for name in names)
            and all(map(self._has_rows, names))
            and len({self._new.metas[name].shape for name in names}) == 1
        )

    def _put(self, op: Op) -> bool:
        """The operator on views, and its result as it was; False if that lies
        otherwise."""
        taken = mapped(
            (op.args, op.kwargs),
            lambda ref: ref if ref.name in self._old.constants else self._view(op, ref),
        )
        target = LINEAR if op.key == "aten.linear" else op.target
        name = self._free(f"{op.name}_planes")
        try:
            made = self._add(op, name, target, *taken[0], **taken[1])
            self._back(op, made)
        except ShapeError:
            return False
        self._planes[op.name] = made
        now, was = self._new.metas[op.name], self._old.metas[op.name]
        return now.shape == was.shape and self._has_rows(op.name)

    def _view(self, op: Op, ref: Ref) -> Ref:
        """A value (n, ..., c) as (n, c, h, w)."""
        if ref.name not in self._planes:
            name = self._free(f"{ref.name}_planes")
            n, *rows, c = self._new.metas[ref.name].shape
            if len(rows) == 2:
                found = self._add(op, name, aten.permute.default, ref, [0, 3, 1, 2])
            else:
                if len(rows) > 1:
                    size = [n, math.prod(rows), c]
                    ref = self._add(op, f"{name}_flat", aten.view.default, ref, size)
                turned = self._add(op, f"{name}_of", aten.transpose.int, ref, 1, 2)
                found = self._add(op, name, aten.unsqueeze.default, turned, 2)
            self._planes[ref.name] = found
        return self._planes[ref.name]

    def _back(self, op: Op, made: Ref) -> None:
        """The view that is the operator's result, under its name."""
        shape = self._old.metas[op.name].shape
        if len(shape) == 4:
            self._add(op, op.name, aten.permute.default, made, [0, 2, 3, 1])
            return
        rows = self._add(op, f"{made.name}_rows", aten.squeeze.dim, made, 2)
        if len(shape) == 3:
            self._add(op, op.name, aten.transpose.int, rows, 1, 2)
        else:
            flat = self._add(op, f"{made.name}_flat", aten.transpose.int, rows, 1, 2)
            self._add(op, op.name, aten.view.default, flat, list(shape))

    def _add(
        self, of: Op, name: str, target: Any, *args: Argument, **kwargs: Argument
    ) -> Ref:
        op = Op(name, target, args, kwargs, of.line)
        self._inference.add(self._new, op)
        self._new.ops.append(op)
        if of.name in self._old.modules:
            self._new.modules[name] = self._old.modules[of.name]
        return Ref(name)

    def _free(self, name: str) -> str:
        while name in self._new.metas:
            name += "_"
        return name
