"""Element-wise operators after selections from their results, rather than before.

A scan over time multiplies decays and inputs for all steps at once, and then selects a
step after the other, as state-space models do. Selected first, each step's factors are
as large as a step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch

from memplan.chunking.canonical import ends_of, rewritten
from memplan.chunking.region import call_of
from memplan.chunking.rules.elementwise import broadcast, elementwise
from memplan.chunking.rules.flow import RULES, Slice, arguments_of
from memplan.graph.infer import Inference
from memplan.graph.liveness import lifetimes, profile, roots_of
from memplan.graph.program import Argument, Meta, Op, Program, Ref, mapped, refs

LARGE = 1 / 16  # of a peak: values that are not made whole
LEAST = 4096  # elements of a selection: an operator then takes longer than its call
SELECTS = {"aten.select", "aten.slice"}


def selected_first(
    program: Program, only: Collection[str] | None = None
) -> tuple[Program, tuple[str, ...]]:
    """The program with selections before element-wise operators whose large results are
    only selected from, without overlaps; and the values that it then does not make.

    only: not for other values, and for these even if they are small or their operands
    have to wait for it. Else where those that wait take half of the result, at most.
    """
    inference, gone = Inference(), list[str]()
    while found := _found(program, *ends_of(program), only):
        new = rewritten(program, inference, lambda op: found.get(op.name))
        if any(_kind(new, name) != _kind(program, name) for name in found):
            break  # torch takes tensors of one element for numbers of any type
        gone += [name for name, ops in found.items() if not ops]
        program = new
    made = {op.name for op in program.ops}
    return program, tuple(name for name in gone if name not in made)


def _kind(program: Program, name: str) -> object:
    """A value's shape and type."""
    meta = program.metas[name]
    return (meta.shape, meta.dtype) if isinstance(meta, Meta) else None


def _found(
    program: Program,
    makers: Mapping[str, Op],
    users: Mapping[str, list[Op]],
    only: Collection[str] | None,
) -> dict[str, list[Op]]:
    """What stands in the place of some operators: nothing in that of element-wise ones
    whose large results are only selected from, without overlaps, and of the selections;
    before their first users, the operator on what they select from its operands. {} if
    there are none."""
    last, owned = lifetimes(program)
    least = LARGE * profile(program).peak
    place = {op.name: i for i, op in enumerate(program.ops)}
    given = set(refs(program.outputs))
    found: dict[str, list[Op]] = {}
    late: dict[str, list[Op]] = {}  # before the first user of each selection

    def read(op: Op) -> Iterator[str]:
        """What has to be there for it, if selections come before such operators behind
        it, too."""
        for name in op.operands():
            behind = makers.get(name)
            alike = program.metas[name] == program.metas[op.name]
            alone = users[name] == [op]
            if behind and alike and alone and _is_elementwise(program, behind):
                yield from read(behind)
            else:
                yield name

    for op in program.ops:
        if not isinstance(op, Op) or op.name in given:
            continue
        if owned.get(op.name, 0) < least if only is None else op.name not in only:
            continue
        takers = users.get(op.name, [])
        if not _are_apart(program, op, takers) or not _is_elementwise(program, op):
            continue
        firsts = [
            each if each.name in given else users.get(each.name, [each])[0]
            for each in takers
        ]
        until = max(place[each.name] for each in firsts)
        roots = {root for name in read(op) for root in roots_of(program, name)}
        waits = sum(owned.get(root, 0) for root in roots if last.get(root, 0) < until)
        if only is None and 2 * waits > owned[op.name]:
            continue
        found[op.name] = []
        for taker, first in zip(takers, firsts, strict=True):
            found[taker.name] = []
            late.setdefault(first.name, []).extend(_selected(program, op, taker))
    for name, ops in late.items():
        found[name] = [*ops, *found.get(name, [makers[name]])]
    return found


def _is_elementwise(program: Program, op: Op) -> bool:
    meta = program.metas[op.name]
    return (
        RULES.get(op.key) is elementwise
        and "memory_format" not in op.kwargs  # of that many dimensions
        and isinstance(meta, Meta)
        and program.roots[op.name] == op.name
        and elementwise(call_of(program, op, ""), Slice(0)) is not None
    )


def _are_apart(program: Program, op: Op, takers: Sequence[Op]) -> bool:
    """Whether all users select along one dimension, each other elements, and many."""
    if len(takers) < 2 or any(each.key not in SELECTS for each in takers):
        return False
    shape = program.metas[op.name].shape
    if len({arguments_of(each)["dim"] % len(shape) for each in takers}) > 1:
        return False
    size = shape[arguments_of(takers[0])["dim"]]
    seen: set[int] = set()
    for each in takers:
        window = _window(each, size)
        if not seen.isdisjoint(window) or program.metas[each.name].elements < LEAST:
            return False
        seen.update(window)
    return True


def _window(op: Op, size: int) -> range:
    """The elements that a selection takes along its dimension."""
    given = arguments_of(op)
    if op.key == "aten.select":
        return range(given["index"] % size, given["index"] % size + 1)
    return range(size)[slice(given["start"], given["end"], given["step"])]


def _selected(program: Program, op: Op, taker: Op) -> list[Op]:
    """The operator on a selection of its operands, under the selection's name."""
    shape = program.metas[op.name].shape
    _, dim, *rest = arguments_of(taker).values()
    out = Slice(dim % len(shape))
    made: dict[str, Op] = {}

    def operand(ref: Argument) -> Argument:
        if not isinstance(ref, Ref):
            return ref
        own = program.metas[ref.name].shape
        aligned = broadcast(out, len(shape), own)
        along = out.dim - (len(shape) - len(own))
        if aligned is None and (along < 0 or taker.key == "aten.slice"):
            return ref
        if ref.name not in made:
            name, where = f"{taker.name}_{ref.name}", rest if aligned else [0]
            target = torch.ops.aten.select.int if aligned is None else taker.target
            made[ref.name] = Op(name, target, (ref, along, *where), {}, taker.line)
        return Ref(made[ref.name].name)

    args, kwargs = mapped((op.args, op.kwargs), operand)
    return [*made.values(), Op(taker.name, op.target, args, kwargs, op.line)]
