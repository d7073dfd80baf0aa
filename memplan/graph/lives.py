"""The storages of a program as a packing problem: one arena for all of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from memplan.core.bounds import padded_live_bytes
from memplan.core.problem import Problem
from memplan.graph.lending import ALIGNMENT, Loan, lend
from memplan.graph.liveness import Candidates, lifetimes, overwrites, roots_of
from memplan.graph.native import Native
from memplan.graph.program import Meta, Op, Program, Step, refs
from memplan.graph.requests import Asked


@dataclass(frozen=True)
class Lives:
    """The storages that an arena holds.

    problem: a buffer for each, on a clock with a tick an operator, and one for each
    request or free while it runs. numbers: of its buffers, among all. roots: names in
    the program of the first of all; then come the requests of operators. host, loan:
    the result in whose memory the others lie until it is written, by root, and where;
    "" and None without one. asked: of each operator that has any, its requests: bytes,
    the buffer's number or None if it is not in the arena, and whether the operator
    frees it itself. over: results that lie in the memory of an operand, by their name.
    clock: when each operator begins, and the end.
    """

    problem: Problem
    numbers: list[int]
    roots: list[str]
    host: str
    loan: Loan | None
    asked: dict[str, list[tuple[int, int | None, bool]]]
    over: dict[str, str]
    clock: list[int]

    @property
    def least(self) -> int:
        """Bytes that the arena takes at least."""
        return int(padded_live_bytes(self.problem)[1].max(initial=0))

    def busiest(self) -> int:
        """The position of the operator during which most of the arena is in use."""
        if not len(self.problem):
            return 0
        moments, live = padded_live_bytes(self.problem)
        after = int(moments[np.argmax(live) + 1])  # when some is free again
        return bisect_left(self.clock, after) - 1


def lives(
    program: Program,
    served: Set[str],
    asked: Mapping[str, Asked],
    candidates: Candidates,
    holds_outputs: bool = False,
) -> Lives:
    """The storages of a flat program that an arena can hold.

    served: results that are written where they are told. asked: what other operators
    ask for. candidates: operands that results may overwrite. What is neither served nor
    asked for is not in the arena, nor outputs, unless it `holds_outputs`: then those
    that are served, up to the end.
    """
    last, owned = lifetimes(program)
    over = overwrites(program, last, owned, candidates)
    holder: dict[str, str] = {}
    for name, operand in over.items():
        root: str = program.roots[operand]
        holder[name] = holder.get(root, root)
        last[holder[name]] = max(last[holder[name]], last[name])
    given = {root for name in refs(program.outputs) for root in roots_of(program, name)}
    escaping = {holder.get(root, root) for root in given}
    escaping -= served if holds_outputs else set()
    ticks = [1 + asked[s.name].events if s.name in asked else 1 for s in program.ops]
    clock = [0, *accumulate(ticks)]
    ends = {root: clock[min(at, len(ticks) - 1) + 1] for root, at in last.items()}
    first = {step.name: clock[i] for i, step in enumerate(program.ops)}
    held = _Buffers()
    roots = [
        root
        for root, size in owned.items()
        if size and root in served and root not in escaping | holder.keys()
    ]
    for root in roots:
        held.add(root, owned[root], first[root], ends[root])
    movable = set(range(len(roots)))
    found: dict[str, list[tuple[int, int | None, bool]]] = {}
    for step in program.ops:
        if step.name not in asked:
            continue
        rows = found[step.name] = []
        for number, each in enumerate(asked[step.name].requests):
            start, end = first[step.name] + each.born, None
            label = f"{step.name} request {number}"
            if each.died is not None:
                end = first[step.name] + each.died
            elif each.result is not None:
                root = _root_of(program, step, each.result)
                if root in owned and root not in escaping:
                    label, end = root, ends[root]
            at = None if end is None else held.add(label, each.bytes, start, end)
            if at is not None and not _is_native(step):
                movable.add(at)
            rows.append((each.bytes, at, each.died is not None))
    every = range(len(held.labels))
    whole = held.problem(every)
    hosts = escaping & served & owned.keys()
    host = max(hosts, key=owned.__getitem__, default="")
    loan = None
    if host:
        kinds = {root: {program.metas[root].dtype} for root in (*roots, host)}
        for name, root in holder.items():
            kinds.get(root, set()).add(program.metas[name].dtype)
        movable -= {i for i, root in enumerate(roots) if kinds[root] != kinds[host]}
        wanted = [each for each in movable if held.ends[each] <= first[host]]
        loan = lend(whole, wanted, first[host], owned[host])
    if loan is None:
        return Lives(whole, [*every], roots, "", None, found, over, clock)
    left = [number for number in every if number not in loan.offsets]
    return Lives(held.problem(left), left, roots, host, loan, found, over, clock)


@dataclass
class _Buffers:
    labels: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def add(self, label: str, size: int, start: int, end: int) -> int:
        """The number of a new buffer that lives from `start` up to `end`."""
        self.labels.append(label)
        self.sizes.append(size)
        self.starts.append(start)
        self.ends.append(end)
        return len(self.labels) - 1

    def problem(self, chosen: Iterable[int]) -> Problem:
        """Some of the buffers, by number, as a problem."""
        numbers = list(chosen)
        columns = (self.starts, self.ends, self.sizes)
        rows = ([column[each] for each in numbers] for column in columns)
        labels = [self.labels[each] for each in numbers]
        return Problem.of(*rows, alignment=ALIGNMENT, labels=labels)


def _is_native(step: Step) -> bool:
    return isinstance(step, Op) and isinstance(step.target, Native)


def _root_of(program: Program, step: Step, result: int) -> str:
    one = isinstance(program.metas[step.name], Meta)
    return step.name if one else f"{step.name}[{result}]"
