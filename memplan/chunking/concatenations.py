"""Concatenations whose parts are written where they go, one after the other.

`cat` needs all its parts beside its result. Parts that are copied into the result as
soon as they are made can be dropped at once, and concatenations of the same first parts
are views of the longest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import torch

from memplan.chunking.rules.flow import positive
from memplan.graph.arguments import arguments_of
from memplan.graph.infer import Inference
from memplan.graph.liveness import Beside, profile, roots_of
from memplan.graph.lower import without_dead
from memplan.graph.program import Meta, Op, Program, Ref, Step, refs, results
from memplan.graph.workspace import temporaries

aten = torch.ops.aten
SMALL = 32  # times a result that is too small to matter is less than the peak


@dataclass(frozen=True)
class _Joint:
    """Concatenations of the same first parts.

    parts: of the longest, with the range of each along `dim`. lengths: of the results
    along it, by their names. meta: of the longest result.
    """

    parts: tuple[tuple[str, int, int], ...]
    dim: int
    lengths: dict[str, int]
    meta: Meta


def with_filled(
    program: Program, inference: Inference, beside: Beside = temporaries
) -> Program:
    """The program in which the parts of a concatenation are copied into its result when
    they are made, where less is live then.

    beside: bytes that operators need of their own.
    """
    live = profile(program, beside=beside).live
    for joint in _joints(program):
        if SMALL * joint.meta.bytes < max(live):
            continue
        makers = {name: i for i, op in enumerate(program.ops) for name in results(op)}
        made = sorted({max(0, makers.get(name, 0)) for name, *_ in joint.parts})
        end = max(makers[name] for name in joint.lengths)
        best, least, now = program, max(live[made[0] : end + 1]), live
        starts = {made[0], made[-1]} if len(joint.lengths) == 1 else {made[0]}
        for start in sorted(starts):
            filled = _filled(program, joint, start, makers, inference)
            after = end + 1 + len(filled.ops) - len(program.ops)
            found = profile(filled, beside=beside).live
            if (most := max(found[made[0] : after])) < least:
                best, least, now = filled, most, found
        program, live = best, now
    return without_dead(program)


def _joints(program: Program) -> Iterator[_Joint]:
    """The program's concatenations of tensors that lie by rows, the longest first;
    what it returns has memory of its own."""
    found = [
        joint
        for op in program.ops
        if isinstance(op, Op) and op.key == "aten.cat"
        if (joint := _joint(program, op)) is not None
    ]
    found.sort(key=lambda joint: -len(joint.parts))
    given = {root for name in refs(program.outputs) for root in roots_of(program, name)}
    found = [joint for joint in found if given.isdisjoint(joint.lengths)]
    done: set[str] = set()
    for joint in found:
        if done.isdisjoint(joint.lengths):
            lengths = dict(joint.lengths)
            for other in found:
                size = len(other.parts)
                begins = other.parts == joint.parts[:size] and other.dim == joint.dim
                if begins and (size == len(joint.parts) or _is_outermost(joint)):
                    lengths |= other.lengths
            done |= lengths.keys()
            yield replace(joint, lengths=lengths)


def _is_outermost(joint: _Joint) -> bool:
    """Whether the first elements along the dimension lie together."""
    return prod(joint.meta.shape[: joint.dim]) == 1


def _joint(program: Program, op: Op) -> _Joint | None:
    given, meta = arguments_of(op), program.metas[op.name]
    dim = positive(given["dim"], len(meta.shape))
    parts, at = [], 0
    for ref in given["tensors"]:
        part: Meta = program.metas[ref.name]
        if len(part.shape) != len(meta.shape) or part.dtype != meta.dtype:
            return None
        parts.append((ref.name, at, at + part.shape[dim]))
        at += part.shape[dim]
    if len(parts) < 2 or not meta.contiguous or not meta.elements:
        return None
    return _Joint(tuple(parts), dim, {op.name: at}, meta)


def _filled(
    program: Program,
    joint: _Joint,
    start: int,
    makers: dict[str, int],
    inference: Inference,
) -> Program:
    """The program with memory for the longest result from the step at `start` on."""
    new = replace(program, ops=[], metas=dict(program.metas), roots=dict(program.roots))
    longest = max(joint.lengths, key=lambda name: joint.lengths[name])
    line = program.ops[makers[longest]].line
    parts = (part for part in joint.parts if part[1] < part[2])
    waiting = sorted(parts, key=lambda part: makers.get(part[0], -1))

    def free(name: str) -> str:
        while name in new.metas:
            name += "_"
        return name

    last = free(f"{longest}_filled")

    def add(name: str, target: object, *args: object, **kwargs: object) -> None:
        op = Op(name, target, args, kwargs, line)  # type: ignore[arg-type]
        inference.add(new, op)
        new.ops.append(op)

    def fill(before: int) -> None:
        nonlocal last
        while waiting and makers.get(waiting[0][0], -1) < before:
            name, low, high = waiting.pop(0)
            source, last = Ref(last), free(f"{longest}_with_{low}")
            ends = joint.dim, low, high
            add(last, aten.slice_scatter.default, source, Ref(name), *ends)

    for i, step in enumerate(program.ops):
        if i == start:
            shape, dtype = list(joint.meta.shape), joint.meta.dtype
            options = {"dtype": dtype, "device": torch.device(joint.meta.device)}
            add(last, aten.empty.memory_format, shape, **options)
        if i >= start:
            fill(i)
        if step.name in joint.lengths:
            ends = joint.dim, 0, joint.lengths[step.name]
            add(step.name, aten.slice.Tensor, Ref(last), *ends)
        else:
            _again(new, step, inference)
    return new


def _again(program: Program, step: Step, inference: Inference) -> None:
    """The step, on operands that may lie elsewhere now."""
    if isinstance(step, Op):
        inference.add(program, step)
    program.ops.append(step)
