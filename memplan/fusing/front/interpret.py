"""A program run by torch, operator by operator, as it stands."""

from __future__ import annotations

from typing import Any

from memplan.fusing.front.weights import fetch
from memplan.graph.program import Meta, Op, Program, mapped, refs, results


def interpret(program: Program, model: Any, inputs: dict[str, Any]) -> Any:
    """The outputs of `program` on `inputs`; fills its metas in on the way.

    A value is let go after its last use, so that this takes the memory that the model
    takes.
    """
    last = last_uses(program)
    values = dict(inputs)
    values.update(
        (name, fetch(model, place)) for name, place in program.constants.items()
    )
    for name, value in values.items():
        _note(program, name, value)
    for index, op in enumerate(program.ops):
        assert isinstance(op, Op)
        args, kwargs = mapped((op.args, op.kwargs), lambda ref: values[ref.name])
        values[op.name] = op.target(*args, **kwargs)
        _note(program, op.name, values[op.name])
        for name in last[index]:
            values.pop(name, None)
    return mapped(program.outputs, lambda ref: values[ref.name])


def last_uses(program: Program) -> list[list[str]]:
    """Of every operator, the values that none after it takes, nor the outputs."""
    kept = set(refs(program.outputs)) | set(program.inputs) | set(program.constants)
    last: list[list[str]] = [[] for _ in program.ops]
    for index in reversed(range(len(program.ops))):
        op = program.ops[index]
        for name in (*op.operands(), *results(op)):
            if name not in kept:
                kept.add(name)
                last[index].append(name)
    return last


def _note(program: Program, name: str, value: Any) -> None:
    import torch

    if isinstance(value, torch.Tensor):
        program.metas[name] = Meta(
            tuple(value.shape), tuple(value.stride()), value.dtype, str(value.device)
        )
    else:
        program.metas[name] = None
