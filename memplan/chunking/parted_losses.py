"""Losses of a classification as one loss for each target, and their sum.

The kernels of cross entropy take all classes of all targets at once. A loop over the
targets needs those of a few.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch

from memplan.graph.arguments import arguments_of
from memplan.graph.program import Argument, Meta, Op, Program, Ref

aten = torch.ops.aten
MEAN, SUM = 1, 2  # torch's numbers of reductions
MOVED = {"aten.reshape", "aten.view", "aten._unsafe_view", "aten.clone"}
LOSSES = {"aten.cross_entropy_loss", "aten.nll_loss_nd", "aten.nll_loss"}


def losses_apart(program: Program, op: Op, makers: dict[str, Op]) -> list[Op] | None:
    """The operators that a loss of classes consists of; None for any other one.

    makers: the operator of each value.
    """
    if op.key not in LOSSES:
        return None
    given = arguments_of(op)
    scores: Meta = program.metas[given["self"].name]
    target: Meta = program.metas[given["target"].name]
    rank = len(scores.shape)
    if (
        given.get("label_smoothing")
        or target.dtype not in (torch.int64, torch.int32)
        or rank < 2
        or not scores.elements
        or target.shape != (scores.shape[0], *scores.shape[2:])
    ):
        return None
    return list(_Losses(program, op, makers).ops())


class _Losses:
    """Writes one loss as operators; those of a target have the shape of the targets."""

    def __init__(self, program: Program, op: Op, makers: dict[str, Op]) -> None:
        self._program, self._op, self._makers = program, op, makers
        self._given = arguments_of(op)
        self._count = 0

    def ops(self) -> Iterator[Op]:
        given, result = self._given, self._program.metas[self._op.name]
        source, dim = self._unflattened(given["self"])
        shape = list(self._program.metas[source.name].shape)
        del shape[dim]
        target = given["target"]
        if self._program.metas[target.name].shape != (*shape,):
            yield (made := self._called(aten.reshape.default, target, shape))
            target = Ref(made.name)
        if self._op.key == "aten.cross_entropy_loss":
            yield (made := self._called(aten.log_softmax.int, source, dim))
            source = Ref(made.name)
        yield (kept := self._called(aten.ne.Scalar, target, given["ignore_index"]))
        yield (index := self._called(aten.where.ScalarOther, kept, target, 0))
        yield (wide := self._called(aten.unsqueeze.default, index, dim))
        yield (found := self._called(aten.gather.default, source, dim, wide))
        yield (flat := self._called(aten.squeeze.dim, found, dim))
        yield (losses := self._called(aten.neg.default, flat))
        counts = kept
        if given["weight"] is not None:
            yield (weights := self._called(aten.index.Tensor, given["weight"], [index]))
            yield (losses := self._called(aten.mul.Tensor, losses, weights))
            yield (counts := self._called(aten.where.ScalarOther, kept, weights, 0.0))
        yield (losses := self._called(aten.where.ScalarOther, kept, losses, 0.0))
        if given["reduction"] not in (MEAN, SUM):
            yield self._named(aten.reshape.default, losses, list(result.shape))
            return
        dtype = result.dtype
        total = torch.float32 if dtype.itemsize < 4 else dtype
        yield (added := self._called(aten.sum.default, losses, dtype=total))
        if given["reduction"] == MEAN:
            yield (counted := self._called(aten.sum.default, counts, dtype=total))
            yield (added := self._called(aten.div.Tensor, added, counted))
        yield self._named(aten._to_copy.default, added, dtype=dtype)

    def _unflattened(self, scores: Ref) -> tuple[Ref, int]:
        """Where rows of scores are a reshape of others, those; and the dimension of the
        classes."""
        rows, classes = self._program.metas[scores.name].shape[:2]
        if len(self._program.metas[scores.name].shape) > 2:
            return scores, 1
        found, at = scores, scores
        while (op := self._makers.get(at.name)) is not None and op.key in MOVED:
            at = op.args[0]
            shape = self._program.metas[at.name].shape
            if len(shape) > 1 and shape[-1] == classes and prod(shape[:-1]) == rows:
                found = at
        return found, len(self._program.metas[found.name].shape) - 1

    def _called(self, target: object, *args: Argument, **kwargs: Argument) -> Op:
        self._count += 1
        name = f"{self._op.name}_part_{self._count}"
        return self._made(name, target, args, kwargs)

    def _named(self, target: object, *args: Argument, **kwargs: Argument) -> Op:
        """The operator that makes the loss itself."""
        return self._made(self._op.name, target, args, kwargs)

    def _made(
        self,
        name: str,
        target: object,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
    ) -> Op:
        def value(each: Argument) -> Argument:
            return Ref(each.name) if isinstance(each, Op) else each

        plain = tuple(
            [value(item) for item in each] if isinstance(each, list) else value(each)
            for each in args
        )
        return Op(name, target, plain, kwargs, self._op.line)  # type: ignore[arg-type]
