"""Sums of rows that were put back in order as additions where each row belongs.

A mixture of experts sorts its tokens by expert, and in the end puts the experts'
results in the tokens' order and adds the few of each token. Added where they belong,
they can be made a few at a time.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping

import torch

from memplan.chunking.rewriting import ends_of, replaced, unused
from memplan.graph.arguments import arguments_of
from memplan.graph.infer import Inference
from memplan.graph.program import Argument, Meta, Op, Program, Ref, refs

aten = torch.ops.aten


def with_additions(program: Program, inference: Inference) -> Program:
    """The program with an `index_add` for each sum over neighbours among rows that a
    permutation puts in order.

    Rows of which more than two are added are added in at least float32, as torch's sums
    are; on a GPU in any order.
    """
    rows = _Rows(program)
    found = {
        op.name: ops
        for op in program.ops
        if isinstance(op, Op) and (ops := rows.added(op))
    }
    return replaced(program, inference, found)[0]


class _Rows:
    """Finds rows of a program that are only put in another order."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._makers, self._users = ends_of(program)
        self._taken = set(program.metas)
        self._given: Collection[str] = set(refs(program.outputs))

    def added(self, op: Op) -> list[Op] | None:
        """The operators in the place of a sum of neighbours; None for any other one."""
        if op.key != "aten.sum":
            return None
        given = arguments_of(op)
        reshape = self._inner(given["self"], "aten.reshape")
        moved = self._unordered(reshape.args[0]) if reshape else None
        if reshape is None or moved is None or given["dtype"] is not None:
            return None
        source, order = moved
        shape = self._meta(reshape).shape
        tail = self._program.metas[source.name].shape[1:]
        lead = len(shape) - len(tail) - 1
        dims = given.get("dim")
        summed = isinstance(dims, list) and [dim % len(shape) for dim in dims] == [lead]
        if lead < 0 or shape[lead + 1 :] != tail or not summed or given["keepdim"]:
            return None
        if self._program.metas[source.name].dtype != self._meta(op).dtype:
            return None
        return self._additions(op, source, order, shape[lead], tail)

    def _additions(
        self, op: Op, source: Ref, order: Ref, count: int, tail: tuple[int, ...]
    ) -> list[Op]:
        result = self._meta(op)
        rows = self._program.metas[source.name].shape[0] // count
        dtype, ops = result.dtype, list[Op]()

        def called(
            name: str, target: object, *args: Argument, **kwargs: Argument
        ) -> Ref:
            name = unused(f"{op.name}_{name}", self._taken)
            ops.append(Op(name, target, args, kwargs, op.line))  # type: ignore[arg-type]
            return Ref(ops[-1].name)

        if count > 2 and dtype.itemsize < 4 and dtype.is_floating_point:
            dtype = torch.float32
            source = called("wide", aten._to_copy.default, source, dtype=dtype)
        options = {"dtype": dtype, "device": torch.device(result.device)}
        zeros = called("zeros", aten.zeros.default, [rows, *tail], **options)
        where = called("rows", aten.floor_divide.default, order, count)
        total = called("added", aten.index_add.default, zeros, 0, where, source)
        if dtype != result.dtype:
            total = called("narrow", aten._to_copy.default, total, dtype=result.dtype)
        shape = list(result.shape)
        ops.append(Op(op.name, aten.reshape.default, (total, shape), {}, op.line))
        return ops

    def _unordered(self, ordered: Argument) -> tuple[Ref, Ref] | None:
        """The rows that these are in another order, and at which place each of them
        belongs."""
        op = self._inner(ordered, "aten.index")
        if op is not None:  # by the inverse of a permutation
            source, indices = op.args[:2]
            order = self._inverted(indices[0]) if len(indices) == 1 else None
            return (source, order) if order and self._match(source, order) else None
        op = self._inner(ordered, "aten.index_put")
        if op is None:
            return None
        given = arguments_of(op)
        indices, source = given["indices"], given["values"]
        if given["accumulate"] or len(indices) != 1 or not self._permutes(indices[0]):
            return None
        whole = self._program.metas[source.name] == self._meta(op)
        return (
            (source, indices[0]) if whole and self._match(source, indices[0]) else None
        )

    def _match(self, source: Ref, order: Ref) -> bool:
        """Whether each row has one place, and there are any."""
        shape = self._program.metas[source.name].shape
        return bool(shape) and 0 not in shape and self._shape(order) == shape[:1]

    def _inverted(self, index: Argument) -> Ref | None:
        """The permutation that an index is the inverse of, if it is known to be."""
        sort = self._sort(index)
        if sort is not None:
            source, falling = sort.args[0], arguments_of(sort)["descending"]
            return source if self._permutes(source) and not falling else None
        op = self._made(index, "aten.index_put")
        if op is None:
            return None
        given = arguments_of(op)
        indices = given["indices"]
        if given["accumulate"] or len(indices) != 1 or not self._permutes(indices[0]):
            return None
        if not self._counts(given["values"]):
            return None
        sizes = {self._shape(each) for each in (indices[0], given["values"], op)}
        return indices[0] if len(sizes) == 1 else None

    def _permutes(self, index: Argument) -> bool:
        """Whether an index has each of its own places once, as a sort's."""
        return self._sort(index) is not None

    def _sort(self, index: Argument) -> Op | None:
        """The sort of one dimension that an index is the order of."""
        op = self._made(index, "aten.argsort")
        taken = self._makers.get(index.name) if isinstance(index, Ref) else None
        if (
            taken is not None
            and taken.target is operator.getitem
            and taken.args[1] == 1
        ):
            op = self._made(taken.args[0], "aten.sort")
        if op is None:
            return None
        return op if len(self._program.metas[op.args[0].name].shape) == 1 else None

    def _counts(self, values: Argument) -> bool:
        """Whether values are 0, 1, 2 and so on."""
        op = self._made(values, "aten.arange")
        if op is None:
            return False
        given: Mapping[str, Argument] = arguments_of(op)
        return (given.get("start", 0), given.get("step", 1)) == (0, 1)

    def _inner(self, value: Argument, key: str) -> Op | None:
        """The operator that makes a value, if it has this key and nothing else takes
        the value."""
        op = self._made(value, key)
        if op is None or op.name in self._given:
            return None
        return op if len(self._users[op.name]) == 1 else None

    def _made(self, value: Argument, key: str) -> Op | None:
        op = self._makers.get(value.name) if isinstance(value, Ref) else None
        return op if op is not None and op.key == key else None

    def _shape(self, value: Ref | Op) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._program.metas[value.name].shape
        return shape

    def _meta(self, op: Op) -> Meta:
        meta = self._program.metas[op.name]
        assert isinstance(meta, Meta)
        return meta
