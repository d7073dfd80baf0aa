"""Programs with operators in place of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from memplan.graph.infer import Inference
from memplan.graph.liveness import follow
from memplan.graph.lower import without_dead
from memplan.graph.program import Op, Program, Ref, mapped


def rewritten(
    program: Program,
    inference: Inference,
    change: Callable[[Op], list[Op] | None],
) -> Program:
    """The program with each operator replaced by those that `change` makes of it; None:
    it stays. Operators whose results are then unused are removed."""
    new = replace(program, ops=[], metas=dict(program.metas), roots=dict(program.roots))
    for step in program.ops:
        made = change(step) if isinstance(step, Op) else None
        for op in made or ():
            inference.add(new, op)
        if made is None:
            follow(new, step)
        new.ops += [step] if made is None else made
    return without_dead(new)


def replaced(
    program: Program, inference: Inference, found: Mapping[str, list[Op]]
) -> tuple[Program, tuple[str, ...]]:
    """The program with other operators in the place of some, given by their names, and
    those for which that was done: where shape, type and strides of the result stay.

    Raises ShapeError if torch refuses an operator among them.
    """
    if not found:
        return program, ()
    made = rewritten(program, inference, lambda op: found.get(op.name))
    kept = {
        name: ops
        for name, ops in found.items()
        if made.metas.get(name) in (None, program.metas[name])
    }
    if len(kept) == len(found):
        return made, tuple(found)
    return replaced(program, inference, kept)


def unused(name: str, taken: set[str]) -> str:
    """A name like `name` that is not among those taken; it is then one of them."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def ends_of(program: Program) -> tuple[dict[str, Op], dict[str, list[Op]]]:
    """The operator that makes each value, and those that take it."""
    makers: dict[str, Op] = {}
    users: dict[str, list[Op]] = {}
    for op in program.ops:
        if isinstance(op, Op):
            makers[op.name] = op
            for name in dict.fromkeys(op.operands()):
                users.setdefault(name, []).append(op)
    return makers, users


def renamed(op: Op, new: Mapping[str, str], name: str) -> Op:
    """A copy of an operator that takes other values."""
    args, kwargs = mapped(
        (op.args, op.kwargs),
        lambda at: Ref(new.get(at.name, at.name)) if isinstance(at, Ref) else at,
    )
    return Op(name, op.target, args, kwargs, op.line)
