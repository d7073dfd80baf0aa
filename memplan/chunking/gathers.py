"""Cheap operators after rows are gathered from their results, rather than before.

A mixture of experts gathers, for each expert, rows of a norm's result. Gathered first,
from what the norm is of, which is there anyway, rows are normalized a few at a time,
and the norm's result is not kept for it.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

import torch

from memplan.chunking.candidates import is_cheap
from memplan.chunking.region import call_of
from memplan.chunking.rewriting import ends_of, renamed, replaced, unused
from memplan.chunking.rules.flow import RULES, Slice
from memplan.graph.infer import Inference
from memplan.graph.liveness import lifetimes, profile, roots_of
from memplan.graph.program import Argument, Meta, Op, Program, Ref, refs

LARGE = 1 / 16  # of a peak: values that are not kept
SMALL = 1 / 16  # of such a value: others that may be kept for it
FIRST = "_first"  # ends the names of gathers that come first
NUMBERS = {torch.int64, torch.int32}
aten = torch.ops.aten


def gathered_first(
    program: Program, only: Collection[str] | None = None
) -> tuple[Program, tuple[str, ...]]:
    """The program with rows gathered before the cheap operators behind them, where the
    results of these are large and not needed later, and what they are of is; and the
    gathers for which that is so, their names with `FIRST`.

    only: not for others, and for these even if the values are small.
    """
    rows = _Rows(program)
    floor = LARGE * profile(program).peak if only is None else 0
    found = {
        op.name: ops
        for op in program.ops
        if isinstance(op, Op) and (only is None or op.name + FIRST in only)
        if (ops := rows.first(op, floor))
    }
    made, names = replaced(program, Inference(), found)
    return made, tuple(name + FIRST for name in names)


class _Rows:
    """Finds what gathered rows can be computed from."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._makers, _ = ends_of(program)
        self._taken = set(program.metas)
        self._place = {step.name: i for i, step in enumerate(program.ops)}
        self._last, self._owned = lifetimes(program)
        self._given = {
            root for name in refs(program.outputs) for root in roots_of(program, name)
        }

    def first(self, op: Op, floor: float) -> list[Op]:
        """The operators that gather before, in the place of one that gathers; none if
        there are none, or if that frees less than `floor` bytes.
        """
        index = _index(op)
        if index is None or self._program.metas[index.name].dtype not in NUMBERS:
            return []
        source = op.args[0].name
        at, roots = self._place[op.name], roots_of(self._program, source)
        frees = sum(self._owned.get(root, 0) for root in roots)
        if not frees or frees < floor or any(self._lives(root, at) for root in roots):
            return []
        metas = self._program.metas
        if len(metas[index.name].shape) != 1 or len(metas[op.name].shape) < 2:
            return []
        while (maker := self._made(source)) and maker.key == "aten.reshape":
            source = maker.args[0].name
        tail = metas[op.name].shape[1:]
        shape = metas[source].shape
        lead = len(shape) - len(tail)
        if lead < 1 or shape[lead:] != tail:
            return []
        chain = self._chain(source, lead, at, SMALL * frees)
        return self._gathering(op, index, source, chain, lead) if chain else []

    def _lives(self, root: str, at: int) -> bool:
        """Whether a storage is there after the operator at `at` anyway, as inputs and
        constants are."""
        kept = root not in self._owned or root in self._given
        return kept or self._last[root] > at

    def _made(self, name: str) -> Op | None:
        return self._makers.get(name)

    def _chain(self, name: str, lead: int, at: int, small: float) -> list[Op]:
        """The operators, in order, by which rows of a value follow from the same rows
        of values that are there at `at` anyway, or small; none if they do not."""
        found: dict[str, Op] = {}
        rest = [name]
        while rest:
            op = self._made(rest.pop())
            moving = self._moving(op, lead) if op is not None else None
            if op is None or moving is None:
                return []
            found[op.name] = op
            for each in moving - found.keys():
                roots = roots_of(self._program, each)
                size = sum(self._owned.get(root, 0) for root in roots)
                if size > small and not all(self._lives(root, at) for root in roots):
                    rest.append(each)
        return sorted(found.values(), key=lambda op: self._place[op.name])

    def _moving(self, op: Op, lead: int) -> set[str] | None:
        """The operands of which a cheap operator needs the rows that its result has;
        None if rows are not of rows alone."""
        meta, key = self._program.metas[op.name], op.key
        plain = isinstance(meta, Meta) and self._program.roots[op.name] == op.name
        if not plain or not is_cheap(op) or key not in RULES:
            return None
        dims = [dim for dim in range(lead) if meta.shape[dim] > 1]
        needs = []
        if lead - 1 not in dims:  # gathered rows will lie along the last of them
            return None
        for dim in dims:
            flow = RULES[key](call_of(self._program, op, ""), Slice(dim))
            if flow is None or (flow.target, flow.args, flow.kwargs) != (None,) * 3:
                return None
            # None: all of the operand; else whether just these rows of it
            needs.append([each and each == Slice(dim) for each in flow.needs])
        moving = set()
        for name, *each in zip(op.operands(), *needs, strict=True):
            operand = self._program.metas[name]
            if all(need is None for need in each):
                continue
            same = operand.shape[:lead] == meta.shape[:lead]
            if not all(each) or not same or len(operand.shape) != len(meta.shape):
                return None
            moving.add(name)
        return moving

    def _gathering(
        self, op: Op, index: Ref, source: str, chain: list[Op], lead: int
    ) -> list[Op]:
        """The operators of the chain on gathered rows; the last has the name of the
        gather."""
        metas = self._program.metas
        count = metas[index.name].shape[0]
        ops: list[Op] = []

        def own(name: str) -> str:
            return unused(f"{op.name}_{name}", self._taken)

        def called(name: str, target: object, *args: Argument) -> Ref:
            ops.append(Op(name, target, args, {}, op.line))  # type: ignore[arg-type]
            return Ref(name)

        made = {each.name: own(each.name) for each in chain}
        for each in chain:
            moving = self._moving(each, lead) or set()
            for name in sorted(moving - made.keys()):
                made[name] = own(name)
                size, tail = prod(metas[name].shape[:lead]), metas[name].shape[lead:]
                reshape, wide = aten.reshape.default, [1] * (lead - 1)
                rows = called(own(f"{name}_flat"), reshape, Ref(name), [size, *tail])
                rows = called(own(f"{name}_rows"), op.target, rows, *op.args[1:])
                called(made[name], reshape, rows, [*wide, count, *tail])
            ops.append(renamed(each, made, made[each.name]))
        sizes = list(metas[op.name].shape)
        called(op.name, aten.reshape.default, Ref(made[source]), sizes)
        return ops


def _index(op: Op) -> Ref | None:
    """The numbers of the rows that an operator gathers, if it does only that."""
    if op.key == "aten.index":
        indices = op.args[1]
        return indices[0] if len(indices) == 1 else None
    if op.key == "aten.index_select" and not op.kwargs:
        _, dim, index = op.args
        return index if dim == 0 else None
    return None
