"""Values entered again after a buffer they follow from came to lie otherwise."""

from __future__ import annotations

from dataclasses import replace

from memplan.chunking.notaloop import NotALoopError
from memplan.graph.infer import Inference
from memplan.graph.program import Loop, Op, Program


def enter_again(
    program: Program, start: int, changed: set[str], inference: Inference
) -> None:
    """Enter anew, from the step at `start` on, what follows from values whose strides
    or storage `changed`, in the bodies of loops too. `changed` grows with it.

    Loops are shared between programs: those that change are replaced by others.
    """
    for i in range(start, len(program.ops)):
        step = program.ops[i]
        if changed.isdisjoint(step.operands()):
            continue
        if isinstance(step, Loop):
            program.ops[i] = _renewed(program, step, changed, inference)
            continue
        _enter(program, step, changed, inference)


def _enter(program: Program, op: Op, changed: set[str], inference: Inference) -> None:
    before = program.metas[op.name], program.roots[op.name]
    try:
        inference.add(program, op)
    except Exception as error:
        raise NotALoopError(f"{op.key}: {error}") from error
    if (program.metas[op.name], program.roots[op.name]) != before:
        changed.add(op.name)


def _renewed(
    program: Program, loop: Loop, changed: set[str], inference: Inference
) -> Loop:
    """The loop with a body that sees what changed as it is now."""
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
    enter_again(body, 0, inside, inference)
    return replace(loop, body=body)
