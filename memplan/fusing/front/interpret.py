"""A program run by torch, operator by operator, as it stands."""

from __future__ import annotations

from typing import Any

from memplan.fusing.front.nest import bytes_of, leaves_of, storages
from memplan.fusing.front.trace import Held, NotTraceableError, overwrites
from memplan.fusing.front.weights import fetch
from memplan.graph.program import Meta, Op, Program, Ref, mapped, refs, results


def interpret(program: Program, model: Any, inputs: dict[str, Any]) -> tuple[Any, int]:
    """The outputs of `program` on `inputs`, and the bytes of its values at their peak;
    fills its metas in on the way.

    A value is let go after its last use, so that this takes the memory that the model
    takes. Raises NotTraceableError where an operator writes to memory that something
    else than its own first argument lies in, which is then another value too.
    """
    last = last_uses(program)
    values = dict(inputs)
    values.update(
        (name, fetch(model, place)) for name, place in program.constants.items()
    )
    for name, value in values.items():
        _note(program, name, value)
    given, peak = storages(values.values()), 0
    for index, op in enumerate(program.ops):
        assert isinstance(op, Op)
        args, kwargs = mapped((op.args, op.kwargs), lambda ref: values[ref.name])
        taken = _tensors((args, kwargs))
        versions = [each._version for each in taken]
        values[op.name] = op.target(*args, **kwargs)
        if versions != [each._version for each in taken]:
            _refuse_aliases(program, op, values, kwargs)
        _note(program, op.name, values[op.name])
        peak = max(peak, bytes_of(values.values(), given))
        for name in last[index]:
            values.pop(name, None)
    return mapped(program.outputs, lambda ref: values[ref.name]), peak


def _tensors(value: Any) -> list[Any]:
    import torch

    return [
        each
        for each in leaves_of(value)
        if isinstance(each, torch.Tensor) and not each.is_inference()
    ]


def _refuse_aliases(
    program: Program, op: Op, values: dict[str, Any], kwargs: dict[str, Any]
) -> None:
    """Raise unless what an operator wrote to was its first argument, and only that."""
    where = op.line or op.name
    first = op.args[0] if op.args else None
    if not isinstance(first, Ref) or not overwrites(op.target, kwargs):
        raise NotTraceableError(f"{where}: {op.key} writes to what it is given")
    if first.name in program.inputs or first.name in program.constants:
        raise NotTraceableError(f"{where}: {op.key} writes to {first.name}")
    written = storages([values[first.name]])
    if storages([values[op.name]]) != written:
        raise NotTraceableError(f"{where}: {op.key} writes to what it is given")
    others = [
        value for name, value in values.items() if name not in (first.name, op.name)
    ]
    targets = [each.target for each in program.ops if isinstance(each, Op)]
    others += [each.tensor for each in targets if isinstance(each, Held)]
    if storages(others) & written:
        raise NotTraceableError(
            f"{where}: {op.key} writes to memory that has another name, too"
        )


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
