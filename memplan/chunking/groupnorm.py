"""Group norm in two passes, so that a loop can apply what was computed before it.

A group's mean and variance need all of its elements, but to apply them does not. The
search sees the two passes; what it leaves outside of loops is put together again.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

from memplan.chunking.rules.lowered import group_norm_apply, group_norm_statistics
from memplan.graph.infer import Inference
from memplan.graph.program import Op, Program, Ref, Step

EPSILON = 1e-5


def split(program: Program, inference: Inference) -> Program:
    """The program with each group norm as statistics and their application."""
    new = replace(program, ops=[], metas=dict(program.metas), roots=dict(program.roots))
    for step in program.ops:
        if isinstance(step, Op) and step.key == "aten.group_norm":
            for op in _passes(step):
                inference.add(new, op)
                new.ops.append(op)
        else:
            new.ops.append(step)
    return new


def _passes(op: Op) -> list[Op]:
    x, groups, weight, bias, eps = _arguments(op)
    both = f"{op.name}_both"
    mean, rstd = f"{op.name}_mean", f"{op.name}_rstd"
    applied = (x, Ref(mean), Ref(rstd), weight, bias)
    return [
        Op(both, group_norm_statistics, (x, groups, eps), {}, op.line),
        Op(mean, operator.getitem, (Ref(both), 0), {}, op.line),
        Op(rstd, operator.getitem, (Ref(both), 1), {}, op.line),
        Op(op.name, group_norm_apply, applied, {}, op.line),
    ]


def _arguments(op: Op) -> tuple[Any, ...]:
    names = ("weight", "bias", "eps")
    defaults = (None, None, EPSILON)
    rest = list(op.args[2:5])
    for name, default in list(zip(names, defaults, strict=True))[len(rest) :]:
        rest.append(op.kwargs.get(name, default))
    return (*op.args[:2], *rest)


def rejoined(program: Program) -> Program:
    """The program with the two passes as one again where neither is in a loop."""
    import torch

    made = {step.name: step for step in program.ops if isinstance(step, Op)}
    ops: list[Step] = []
    for step in program.ops:
        if isinstance(step, Op) and step.target is group_norm_apply:
            x, mean, _, weight, bias = step.args
            both = made[mean.name].args[0].name
            _, groups, eps = made[both].args
            args = (x, groups, weight, bias, eps)
            joined = torch.ops.aten.group_norm.default
            ops.append(Op(step.name, joined, args, {}, step.line))
        else:
            ops.append(step)
    used = {name for step in ops for name in step.operands()}
    spare = {
        step.name
        for step in ops
        if isinstance(step, Op)
        and (step.target is group_norm_statistics or _of_statistics(step, made))
    }
    dead = {name for name in spare if name not in used}
    dead |= {
        name
        for name in spare
        if made[name].target is group_norm_statistics
        and not any(
            isinstance(step, Op) and name in step.operands() and step.name not in dead
            for step in ops
        )
    }
    kept = [step for step in ops if not (isinstance(step, Op) and step.name in dead)]
    return replace(program, ops=kept)


def _of_statistics(op: Op, made: dict[str, Op]) -> bool:
    source = op.args[0] if op.target is operator.getitem else None
    return isinstance(source, Ref) and (
        made[source.name].target is group_norm_statistics
        if source.name in made
        else False
    )
