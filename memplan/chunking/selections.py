"""Element-wise operators after selections from their results, rather than before.

A scan over time multiplies decays and inputs for all steps at once, and then selects a
step after the other, as state-space models do. Selected first, each step's factors are
as large as a step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from memplan.chunking.region import call_of
from memplan.chunking.rewriting import ends_of, rewritten, unused
from memplan.chunking.rules.elementwise import broadcast, elementwise
from memplan.chunking.rules.flow import RULES, Slice
from memplan.graph.arguments import arguments_of
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
    own = {op.name for op in program.ops}
    while pairs := _pairs(program, own, only):
        program = _with(program, pairs, inference)
        gone += [op.name for op, _ in pairs]
        own.difference_update(
            gone, (each.name for _, takers in pairs for each in takers)
        )
    return program, tuple(gone)


def _pairs(
    program: Program, own: set[str], only: Collection[str] | None
) -> list[tuple[Op, list[Op]]]:
    """Operators, of those named, and the selections that they can come after."""
    makers, users = ends_of(program)
    given = set(refs(program.outputs))
    strided = {
        root
        for op in makers.values()
        if op.key == "aten.as_strided"
        for root in roots_of(program, op.name)
    }
    wanted = (own if only is None else own & set(only)) - given - strided
    found = [
        (makers[name], users[name])
        for name in makers
        if name in wanted
        and _are_apart(program, makers[name], users.get(name, []))
        and _takes_parts(program, makers[name])
    ]
    return found if only is not None else _worthwhile(program, found, makers, users)


def _worthwhile(
    program: Program,
    pairs: list[tuple[Op, list[Op]]],
    makers: Mapping[str, Op],
    users: Mapping[str, list[Op]],
) -> list[tuple[Op, list[Op]]]:
    """Those whose results are large, also in parts, and whose operands take little
    where they have to wait."""
    if not pairs:
        return []
    last, owned = lifetimes(program)
    least = LARGE * profile(program).peak
    place = {op.name: i for i, op in enumerate(program.ops)}
    given = set(refs(program.outputs))
    found = []
    for op, takers in pairs:
        small = min(program.metas[each.name].elements for each in takers) < LEAST
        until = max(place[each.name] for each in _firsts(takers, users, given))
        read = _read(program, op, makers, users)
        roots = {root for name in read for root in roots_of(program, name)}
        waits = sum(owned.get(each, 0) for each in roots if last.get(each, 0) < until)
        size = owned[op.name]
        if not small and size >= least and 2 * waits <= size:
            found.append((op, takers))
    return found


def _firsts(
    takers: Sequence[Op], users: Mapping[str, list[Op]], given: Collection[str]
) -> list[Op]:
    """Where the result of each selection is made: at its first user."""
    return [
        each if each.name in given else users.get(each.name, [each])[0]
        for each in takers
    ]


def _read(
    program: Program, op: Op, makers: Mapping[str, Op], users: Mapping[str, list[Op]]
) -> list[str]:
    """What has to be there for an operator, if selections come before such operators
    behind it, too."""
    found, rest = [], [*op.operands()]
    while rest:
        name = rest.pop()
        behind = makers.get(name)
        alike = program.metas[name] == program.metas[op.name]
        if behind and alike and len(users[name]) == 1 and _is_plain(program, behind):
            rest += behind.operands()
        else:
            found.append(name)
    return found


def _with(
    program: Program, pairs: Sequence[tuple[Op, list[Op]]], inference: Inference
) -> Program:
    """The program with these operators, on selections of their operands, before the
    first users of the selections."""
    makers, users = ends_of(program)
    given, taken = set(refs(program.outputs)), set(program.metas)
    found: dict[str, list[Op]] = {op.name: [] for op, _ in pairs}
    late: dict[str, list[Op]] = {}
    for op, takers in pairs:
        firsts = _firsts(takers, users, given)
        for taker, first in zip(takers, firsts, strict=True):
            found[taker.name] = []
            made = _selected(program, op, taker, taken)
            late.setdefault(first.name, []).extend(made)
    for name, ops in late.items():
        found[name] = [*ops, *found.get(name, [makers[name]])]
    return rewritten(program, inference, lambda op: found.get(op.name))


def _is_plain(program: Program, op: Op) -> bool:
    """Whether it is an element-wise operator with a result of its own."""
    meta = program.metas[op.name]
    return (
        RULES.get(op.key) is elementwise
        and "memory_format" not in op.kwargs  # of that many dimensions
        and isinstance(meta, Meta)
        and program.roots[op.name] == op.name
        and elementwise(call_of(program, op, ""), Slice(0)) is not None
    )


def _are_apart(program: Program, op: Op, takers: Sequence[Op]) -> bool:
    """Whether all users select along one dimension, each other elements."""
    if len(takers) < 2 or any(each.key not in SELECTS for each in takers):
        return False
    shape = program.metas[op.name].shape
    if len({arguments_of(each)["dim"] % len(shape) for each in takers}) > 1:
        return False
    size = shape[arguments_of(takers[0])["dim"]]
    seen: set[int] = set()
    for each in takers:
        window = _window(each, size)
        if not seen.isdisjoint(window):
            return False
        seen.update(window)
    return True


def _takes_parts(program: Program, op: Op) -> bool:
    """Whether an operator makes the same of selections from its operands. Of one that
    then has no dimension torch would take the type to matter less."""
    if not _is_plain(program, op):
        return False
    metas = [program.metas[name] for name in op.operands()]
    same = len({meta.dtype for meta in metas}) <= 1
    return same or not any(len(meta.shape) == 1 for meta in metas)


def _window(op: Op, size: int) -> range:
    """The elements that a selection takes along its dimension."""
    given = arguments_of(op)
    if op.key == "aten.select":
        return range(given["index"] % size, given["index"] % size + 1)
    return range(size)[slice(given["start"], given["end"], given["step"])]


def _selected(program: Program, op: Op, taker: Op, taken: set[str]) -> list[Op]:
    """The operator on a selection of its operands, under the selection's name. taken:
    names that others have; it grows."""
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
            name = unused(f"{taker.name}_{ref.name}", taken)
            where = rest if aligned else [0]
            target = torch.ops.aten.select.int if aligned is None else taker.target
            made[ref.name] = Op(name, target, (ref, along, *where), {}, taker.line)
        return Ref(made[ref.name].name)

    args, kwargs = mapped((op.args, op.kwargs), operand)
    return [*made.values(), Op(taker.name, op.target, args, kwargs, op.line)]
