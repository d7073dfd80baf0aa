"""Linear layers of more than vectors, and convolutions of one dimension, as
convolutions of two: on views, so that nothing is moved."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch.nn import functional

from memplan.fusing.given import Given, convolution
from memplan.fusing.origins import Origins, TracedRewriter
from memplan.graph.infer import Inference, ShapeError
from memplan.graph.lower import without_dead
from memplan.graph.program import Argument, Meta, Op, Program, Ref, is_pointwise, mapped

aten = torch.ops.aten
RESHAPES = {"aten.view", "aten._unsafe_view", "aten.reshape", "aten.reshape_as"}
RESHAPES |= {"aten.flatten", "aten.unflatten"}
KIND: object = torch.float32, "cpu"  # of what kernels take
_library = torch.library.Library("memplan", "FRAGMENT")
_library.define("linear_of_planes(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_library.define(
    "convolution_of_rows(Tensor x, Tensor weight, Tensor? bias, int[2] stride, "
    "int[2] padding, int[2] dilation, int groups) -> Tensor"
)


def _linear_of_planes(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    return functional.linear(x.movedim(1, -1), weight, bias).movedim(-1, 1)


def _convolution_of_rows(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *numbers: Any
) -> torch.Tensor:
    return functional.conv2d(x, weight.unsqueeze(2), bias, *numbers)


_library.impl("linear_of_planes", _linear_of_planes, "CompositeImplicitAutograd")
_library.impl("convolution_of_rows", _convolution_of_rows, "CompositeImplicitAutograd")
LINEAR = torch.ops.memplan.linear_of_planes.default
"""A linear layer over the channels of (n, c, h, w), which come last in memory."""
ROWS = torch.ops.memplan.convolution_of_rows.default
"""A convolution of (n, c, 1, w), by a weight (k, c / groups, taps)."""


def with_planes(
    program: Program, inference: Inference, origins: Origins | None = None
) -> Program:
    """The program with linear layers of float32 tensors (n, ..., c) as LINEAR of views
    (n, c, h, w), in which all rows are one but those of (n, h, w, c); with convolutions
    of (n, c, w) as ROWS of views (n, c, 1, w); and with element-wise operators and
    batch normalizations behind them on such views.

    The steps are operators; names and values of those that are left are as before.
    """
    if not any(isinstance(op, Op) and _begins(op, program) for op in program.ops):
        return program
    return _Viewing(program, inference, origins).all()


class _Viewing:
    def __init__(
        self, program: Program, inference: Inference, origins: Origins | None
    ) -> None:
        self._old, self._to = program, TracedRewriter(program, inference, origins)
        # Of values, by their names: views whose channels are moved, and others'.
        self._planes: dict[str, Ref] = {}
        self._rows: dict[str, Ref] = {}

    def all(self) -> Program:
        for step in self._old.ops:
            assert isinstance(step, Op)
            if (planes := self._reshaped(step)) is not None:
                self._to.append(step)
                self._planes[step.name] = planes
                continue
            views = self._views_of(step)
            if views is None or not self._put(step, views):
                self._to.append(step)  # what it takes may lie in another storage now
        if not (self._planes or self._rows):
            return self._old
        return without_dead(self._to.program)

    def _reshaped(self, op: Op) -> Ref | None:
        """The planes of an operator's result if it has the rows of a value that has
        planes, in another shape."""
        if op.key not in RESHAPES or not isinstance(op.args[0], Ref):
            return None
        planes = self._planes.get(op.args[0].name)
        meta = self._old.metas[op.name]
        if planes is None or not isinstance(meta, Meta) or not meta.contiguous:
            return None
        n, c, height, width = self._to.meta(planes).shape
        if len(meta.shape) == 2:  # which is for a normalisation
            return planes if meta.shape == (n * height * width, c) else None
        same = meta.shape in {(n, height * width, c), (n, height, width, c)}
        return planes if same and (height == 1 or len(meta.shape) == 4) else None

    def _views_of(self, op: Op) -> dict[str, Ref] | None:
        """The views that an operator is to run on; None if on none."""
        names = [*op.operands(), op.name]
        weights = [each.name for each in op.args[1:] if isinstance(each, Ref)]
        own = all(name in self._old.constants for name in weights)
        metas = [self._to.program.metas[name] for name in names]
        if op.key == "aten.linear":
            rows = self._has_rows(names[0]) and self._has_rows(op.name)
            return self._planes if own and rows and not op.kwargs else None
        if op.key in {"aten.conv1d", "aten.batch_norm"}:
            begins = op.key == "aten.conv1d" and _signals(op, self._old) is not None
            normalises = op.key == "aten.batch_norm"
            if normalises and names[0] in self._planes and len(metas[0].shape) == 2:
                return self._planes
            follows = normalises and names[0] in self._rows
            return self._rows if begins or follows else None
        if is_pointwise(op) and len({getattr(each, "shape", 0) for each in metas}) == 1:
            if any(each in self._rows for each in names):
                return self._rows
            if any(each in self._planes for each in names):
                return self._planes if all(map(self._has_rows, names)) else None
        return None

    def _as_rows(self, op: Op, x: Argument) -> tuple[Argument, ...]:
        """The arguments of ROWS; those of conv1d are of one dimension."""
        given = _signals(op, self._old)
        assert given is not None
        numbers = given.stride, given.padding, given.dilation
        pairs = [[one, *each] for one, each in zip((1, 0, 1), numbers, strict=True)]
        return x, given.weight, given.bias, *pairs, given.groups

    def _has_rows(self, name: str) -> bool:
        meta = self._to.program.metas[name]
        return (
            isinstance(meta, Meta)
            and len(meta.shape) > 2
            and math.prod(meta.shape[1:-1]) > 1  # how vectors lie is nobody's choice
            and 0 not in meta.shape
            and meta.contiguous
            and (meta.dtype, meta.device) == KIND
        )

    def _put(self, op: Op, views: dict[str, Ref]) -> bool:
        """The operator on views, and its result as it was; False if that lies
        otherwise, and nothing is put."""
        ops = self._to.program.ops
        steps, known = len(ops), len(views)
        target = op.target
        given, rest = (op.args, op.kwargs), ()
        if not is_pointwise(op):  # of a layer the weights stay as they are
            given, rest = (op.args[:1], op.kwargs), op.args[1:]
        args, kwargs = mapped(given, lambda ref: self._view(op, ref, views))
        args = (*args, *rest)
        if op.key == "aten.linear":
            target, args = LINEAR, (*args, None)[:3]
        elif op.key == "aten.conv1d":
            target, args, kwargs = ROWS, self._as_rows(op, args[0]), {}
        with contextlib.suppress(ShapeError):
            made = self._to.add(op, f"{op.name}_planes", target, *args, **kwargs)
            self._back(op, made, views)
            self._lay_rows(op, views)
            now, was = self._to.meta(Ref(op.name)), self._old.metas[op.name]
            moved = isinstance(now, Meta) and now.contiguous and views is self._planes
            if now == was or (moved and now.shape == was.shape):
                views[op.name] = made
                return True
        del ops[steps:]
        for name in [*views][known:]:
            del views[name]
        return False

    def _view(self, op: Op, ref: Ref, views: dict[str, Ref]) -> Ref:
        """A value (n, ..., c) or (n, c, w) as (n, c, h, w)."""
        if ref.name in views:
            return views[ref.name]
        to, name = self._to, f"{ref.name}_planes"
        n, *rows, c = to.meta(ref).shape
        if views is self._rows:
            found = to.add(op, name, aten.unsqueeze.default, ref, 2)
        elif len(rows) == 2:
            found = to.add(op, name, aten.permute.default, ref, [0, 3, 1, 2])
        else:
            flat = ref
            if len(rows) > 1:
                size = [n, math.prod(rows), c]
                flat = to.add(op, f"{name}_flat", aten.view.default, ref, size)
            turned = to.add(op, f"{name}_of", aten.transpose.int, flat, 1, 2)
            found = to.add(op, name, aten.unsqueeze.default, turned, 2)
        views[ref.name] = found
        return found

    def _lay_rows(self, op: Op, views: dict[str, Ref]) -> None:
        """Copy a result of rows to how it lay, row by row, if it lies otherwise."""
        to, was = self._to, self._old.metas[op.name]
        now = to.meta(Ref(op.name))
        if views is self._rows and was.contiguous and not now.contiguous:
            made = to.program.ops.pop()
            assert isinstance(made, Op)
            of = to.add(op, f"{op.name}_rows", made.target, *made.args)
            dense = {"memory_format": torch.contiguous_format}
            to.end(op, aten.clone.default, of, **dense)

    def _back(self, op: Op, made: Ref, views: dict[str, Ref]) -> None:
        """The view that is the operator's result, under its name."""
        to, shape = self._to, self._old.metas[op.name].shape
        if views is self._rows:
            to.end(op, aten.squeeze.dim, made, 2)
        elif len(shape) == 4:
            to.end(op, aten.permute.default, made, [0, 2, 3, 1])
        elif len(shape) == 2:
            last = to.add(
                op, f"{made.name}_flat", aten.permute.default, made, [0, 2, 3, 1]
            )
            to.end(op, aten.view.default, last, list(shape))
        else:
            rows = to.add(op, f"{made.name}_rows", aten.squeeze.dim, made, 2)
            if len(shape) == 3:
                to.end(op, aten.transpose.int, rows, 1, 2)
            else:
                name = f"{made.name}_flat"
                flat = to.add(op, name, aten.transpose.int, rows, 1, 2)
                to.end(op, aten.view.default, flat, list(shape))


def _begins(op: Op, program: Program) -> bool:
    """Whether an operator may be the first on views."""
    meta = program.metas[op.name]
    wide = isinstance(meta, Meta) and len(meta.shape) > 2
    return wide and op.key in {"aten.linear", "aten.conv1d"}


def _signals(op: Op, program: Program) -> Given | None:
    """What a convolution of one dimension is given, if rows can be of more than one
    element."""
    given = convolution(op, op.key, program)
    if given is None:
        return None
    sizes = [program.metas[name].shape[2] for name in (given.x.name, op.name)]
    return given if min(sizes) > 1 else None
