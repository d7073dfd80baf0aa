"""Values of a program that are inferred again, as what they depend on has changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memplan.graph.infer import Inference
from memplan.graph.program import Loop, Op, Program


def infer_again(
    program: Program, start: int, changed: set[str], inference: Inference
) -> None:
    """Infer again, from the step at `start`, the values that depend on values whose
    strides or storage `changed`, also in the bodies of loops. `changed` grows.

    Programs share loops, so a loop that changes is replaced by a copy. Raises
    ShapeError where torch refuses an operator on the changed values.
    """
    for i, step in enumerate(program.ops[start:], start):
        if changed.isdisjoint(step.operands()):
            continue
        if isinstance(step, Loop):
            program.ops[i] = _updated(program, step, changed, inference)
            changed.update(_moved(program, step))
        else:
            _enter(program, step, changed, inference)


def _enter(program: Program, op: Op, changed: set[str], inference: Inference) -> None:
    before = program.metas[op.name], program.roots[op.name]
    inference.add(program, op)
    if (program.metas[op.name], program.roots[op.name]) != before:
        changed.add(op.name)


def _moved(program: Program, loop: Loop) -> Iterator[str]:
    """Lay a loop's results where the values lie now whose memory they take; which."""
    for each in loop.made():
        if each.into is not None:
            new = program.metas[each.into], program.roots[each.into]
            if new != (program.metas[each.buffer], program.roots[each.buffer]):
                program.metas[each.buffer], program.roots[each.buffer] = new
                yield each.buffer


def _updated(
    program: Program, loop: Loop, changed: set[str], inference: Inference
) -> Loop:
    """The loop with a body that sees the changed values."""
    old = loop.body
    body = replace(old, ops=list(old.ops), metas=dict(old.metas), roots=dict(old.roots))
    inside: set[str] = set()
    for name in changed.intersection(loop.wholes()):
        body.metas[name], body.roots[name] = program.metas[name], program.roots[name]
        inside.add(name)
    for entry in loop.inputs:
        if entry.outer in changed:
            strides = program.metas[entry.outer].strides
            body.metas[entry.inner] = body.metas[entry.inner]._replace(strides=strides)
            body.roots[entry.inner] = program.roots[entry.outer]
            inside.add(entry.inner)
    infer_again(body, 0, inside, inference)
    return replace(loop, body=body)
