"""Convolutions of three dimensions as sums of such of two: one for each tap in depth,
on planes, of which every depth has one for each of a batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from memplan.fusing.given import Given, convolution, each_of, is_norm
from memplan.fusing.origins import Origins, TracedRewriter
from memplan.graph.infer import Inference
from memplan.graph.lower import without_dead
from memplan.graph.program import Op, Program, Ref, is_pointwise, mapped

aten = torch.ops.aten
Triple = tuple[int, int, int]
POOLINGS = {
    "aten.max_pool3d": aten.max_pool2d.default,
    "aten.avg_pool3d": aten.avg_pool2d.default,
}
"""What pools planes, by what pools volumes."""


def with_volumes(
    program: Program, inference: Inference, origins: Origins | None = None
) -> Program:
    """The program with 3-d convolutions of float32 batches on the CPU, in one group, as
    2-d ones of (depth * n, c, h, w), and on these what is element-wise behind them.

    A batch normalisation behind a convolution multiplies each of its parts. Names and
    values of the steps that are left are as before.
    """
    if not any(isinstance(op, Op) and _given(op, program) for op in program.ops):
        return program
    return _Volumes(program, inference, origins).all()


class _Volumes:
    def __init__(
        self, program: Program, inference: Inference, origins: Origins | None
    ) -> None:
        self._old, self._to = program, TracedRewriter(program, inference, origins)
        self._planes: dict[str, Ref] = {}  # of values (n, c, d, h, w), by their names
        self._norms = _norms(program, self._to.uses)  # behind what, alone

    def all(self) -> Program:
        done: set[str] = set()
        for step in self._old.ops:
            assert isinstance(step, Op)
            if step.name in done:
                continue
            given = _given(step, self._old)
            if given is not None:
                norm = self._norms.get(step.name)
                made = self._convolved(step, given, norm)
                if norm is not None:
                    done.add(norm.name)
                self._end(norm or step, made)
            elif (pooled := self._pooled(step)) is not None:
                self._end(step, pooled)
            elif self._is_on_planes(step):
                self._end(step, self._on_planes(step))
            else:
                self._to.append(step)
        return without_dead(self._to.program)

    def _convolved(self, op: Op, given: Given, norm: Op | None) -> Ref:
        """The planes of a convolution's result, with a normalisation behind it."""
        to, (x, weight, bias, *numbers, _) = self._to, given
        (step, *steps), (padding, *paddings), (apart, *aparts) = numbers
        batch, _, depth = self._old.metas[x.name].shape[:3]
        planes = self._view(op, x)
        if padding:
            both = [0] * 6 + [padding * batch] * 2
            pad = aten.constant_pad_nd.default
            planes = to.add(op, f"{x.name}_padded", pad, planes, both)
        taps = self._old.metas[weight.name].shape[2]
        count = (depth + 2 * padding - apart * (taps - 1) - 1) // step + 1
        total: Ref | None = None
        for tap in range(taps):
            last = tap == taps - 1
            part = self._depths(op, planes, (tap * apart, count, step), batch)
            flat = to.add(op, f"{weight.name}_at", aten.select.int, weight, 2, tap)
            how = flat, bias if last else None, steps, paddings, aparts
            y = to.add(op, f"{op.name}_tap", aten.conv2d.default, part, *how)
            if norm is not None:
                y = self._normalised(norm, y, last)
            name = f"{op.name}_taps"
            total = y if total is None else to.add(op, name, aten.add.Tensor, total, y)
        assert total is not None
        return total

    def _normalised(self, norm: Op, y: Ref, last: bool) -> Ref:
        """One part of a sum that is normalised; the last gets what is added."""
        _, weight, bias, mean, *rest = norm.args
        if not last:
            name = f"{mean.name}_none"
            bias, mean = None, self._to.add(norm, name, aten.zeros_like.default, mean)
        given = y, weight, bias, mean, *rest
        return self._to.add(norm, f"{norm.name}_tap", norm.target, *given)

    def _pooled(self, op: Op) -> Ref | None:
        """The planes of a pooling's result: pooled themselves, then over depths."""
        if op.key not in POOLINGS or op.kwargs or op.args[0].name not in self._planes:
            return None
        most = op.key == "aten.max_pool3d"
        defaults = [None, 0, 1, False] if most else [None, 0, False, True, None]
        x, kernel, *rest = op.args
        numbers: list[Any] = rest + defaults[len(rest) :]
        stride, padding, *more = numbers
        apart = each_of(more.pop(0) if most else 1, 3)
        three = kernel, stride or kernel, padding
        sizes, steps, paddings = (each_of(each, 3) for each in three)
        rounds_up, *others = more
        if paddings[0] or rounds_up or others not in ([], [True, None]):
            return None
        to, (batch, _, depth) = self._to, self._old.metas[x.name].shape[:3]
        pairs = [sizes, steps, paddings, *([apart] if most else [])]
        flat = self._planes[x.name], *(each[1:] for each in pairs)
        y = to.add(op, f"{op.name}_flat", POOLINGS[op.key], *flat)
        count = (depth - apart[0] * (sizes[0] - 1) - 1) // steps[0] + 1
        total = self._depths(op, y, (0, count, steps[0]), batch)
        over = aten.maximum.default if most else aten.add.Tensor
        for tap in range(1, sizes[0]):
            part = self._depths(op, y, (tap * apart[0], count, steps[0]), batch)
            total = to.add(op, f"{op.name}_over", over, total, part)
        if most or sizes[0] == 1:
            return total
        return to.add(op, f"{op.name}_mean", aten.mul.Tensor, total, 1 / sizes[0])

    def _depths(self, op: Op, planes: Ref, ends: Triple, batch: int) -> Ref:
        """The planes of so many depths from a first one on, a step apart."""
        to, (first, count, step) = self._to, ends
        name, of = f"{planes.name}_part", to.meta(planes).shape
        stop = first + (count - 1) * step + 1
        if first == 0 and step == 1 and stop * batch == of[0]:
            return planes
        if batch == 1 or step == 1:
            cut = first * batch, stop * batch, step
            return to.add(op, name, aten.slice.Tensor, planes, 0, *cut)
        rows = to.add(op, name, aten.view.default, planes, [-1, batch, *of[1:]])
        rows = to.add(op, name, aten.slice.Tensor, rows, 0, first, stop, step)
        return to.add(op, name, aten.reshape.default, rows, [count * batch, *of[1:]])

    def _is_on_planes(self, op: Op) -> bool:
        """Whether an operator does with planes what it does with volumes."""
        names = op.operands()
        if not any(name in self._planes for name in names):
            return False
        metas = [self._old.metas[name] for name in (*names, op.name)]
        if is_norm(op, self._old):
            return True
        alike = len({getattr(each, "shape", None) for each in metas}) == 1
        return is_pointwise(op) and alike

    def _on_planes(self, op: Op) -> Ref:
        given, rest = (op.args, op.kwargs), ()
        if not is_pointwise(op):  # vectors stay as they are
            given, rest = (op.args[:1], op.kwargs), op.args[1:]
        args, kwargs = mapped(given, lambda ref: self._view(op, ref))
        name = f"{op.name}_planes"
        return self._to.add(op, name, op.target, *args, *rest, **kwargs)

    def _view(self, op: Op, ref: Ref) -> Ref:
        """A value (n, c, d, h, w) as planes."""
        if ref.name in self._planes:
            return self._planes[ref.name]
        to, name = self._to, f"{ref.name}_planes"
        turned = to.add(op, name, aten.permute.default, ref, [2, 0, 3, 4, 1])
        if not to.meta(turned).contiguous:
            dense = {"memory_format": torch.contiguous_format}
            turned = to.add(op, name, aten.clone.default, turned, **dense)
        depth, batch, *rows = to.meta(turned).shape
        flat = to.add(op, name, aten.view.default, turned, [depth * batch, *rows])
        found = to.add(op, name, aten.permute.default, flat, [0, 3, 1, 2])
        self._planes[ref.name] = found
        return found

    def _end(self, op: Op, made: Ref) -> None:
        """The planes are the operator's result, under its name as it was."""
        batch, channels, depth, *rows = self._old.metas[op.name].shape
        size = [depth, batch, channels, *rows]
        volume = self._to.add(op, f"{made.name}_deep", aten.view.default, made, size)
        self._to.end(op, aten.permute.default, volume, [1, 2, 0, 3, 4])
        self._planes[op.name] = made


def _given(op: Op, program: Program) -> Given | None:
    """What a 3-d convolution in one group is given; None for anything else."""
    found = convolution(op, "aten.conv3d", program)
    return found if found is not None and found.groups == 1 else None


def _norms(program: Program, uses: Counter[str]) -> dict[str, Op]:
    """Normalisations of values that nothing else takes, by the names of these."""
    return {
        op.args[0].name: op
        for op in program.ops
        if isinstance(op, Op) and is_norm(op, program) and uses[op.args[0].name] == 1
    }
