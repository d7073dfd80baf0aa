"""The storages of a program as a packing problem: one arena for all of them."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from memplan.core.problem import Problem
from memplan.graph.liveness import Candidates, lifetimes, overwrites
from memplan.graph.program import Program, refs

ALIGNMENT = 64  # bytes, of every storage


@dataclass(frozen=True)
class Lives:
    """The storages that an arena holds.

    problem: a buffer for each, on a clock with a tick an operator. roots: their names
    in the program, in the order of the buffers. over: results that lie in the memory of
    an operand, by their name.
    """

    problem: Problem
    roots: list[str]
    over: dict[str, str]


def lives(program: Program, served: Set[str], candidates: Candidates) -> Lives:
    """The storages of a flat program that an arena can hold.

    served: results that are written where they are told. candidates: operands
    that they may overwrite. Outputs, and what torch allocates, are not in the arena.
    """
    last, owned = lifetimes(program)
    over = overwrites(program, last, owned, candidates)
    holder: dict[str, str] = {}
    for name, operand in over.items():
        root: str = program.roots[operand]
        holder[name] = holder.get(root, root)
        last[holder[name]] = max(last[holder[name]], last[name])
    given = {program.roots[name] for name in refs(program.outputs)}
    escaping = {holder.get(root, root) for root in given if isinstance(root, str)}
    first = {step.name: i for i, step in enumerate(program.ops)}
    held = [
        root
        for root in owned
        if root in served
        and root not in holder
        and root not in escaping
        and owned[root]
    ]
    problem = Problem.of(
        [first[root] for root in held],
        [min(last[root], len(program.ops) - 1) + 1 for root in held],
        [owned[root] for root in held],
        alignment=ALIGNMENT,
        labels=held,
    )
    return Lives(problem, held, over)
