"""What a loop can compute itself, in each iteration, instead of being given it whole.

A loop over the heads of an attention reads a norm's result whole, which is as large as
the model's state. Computed in each iteration, the norm can run there in an inner loop
over rows, with the projections that read it, so that it never exists whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from memplan.chunking.candidates import is_cheap
from memplan.graph.liveness import lifetimes, roots_of
from memplan.graph.program import Loop, Op, Program, refs, results


def inward(program: Program, loop: Loop, least: int) -> Iterator[frozenset[str]]:
    """Operators before a loop that it can run in each iteration: those that make a
    value of at least `least` bytes, which only the loop reads, of what is there anyway;
    without products and the like, as they run that often."""
    at = program.ops.index(loop)
    last, owned = lifetimes(program)
    inside = _feeding(program, at)
    maker = {name: i for i, step in enumerate(program.ops) for name in results(step)}
    given = set(refs(program.outputs))
    users: dict[str, list[int]] = {}
    for i, step in enumerate(program.ops):
        for name in step.operands():
            for root in roots_of(program, name):
                users.setdefault(root, []).append(i)

    def there(name: str, chain: set[int]) -> bool:
        """Whether a value is there while the loop runs, without these operators."""
        return all(
            root not in owned
            or root in given
            or any(i >= at for i in users[root] if i not in chain)
            for root in roots_of(program, name)
        )

    for name in loop.wholes():
        chain: set[int] = set()
        rest = [name]
        while rest:
            i = maker.get(rest.pop(), -1)
            if i not in inside or i in chain:
                continue
            chain.add(i)
            rest += program.ops[i].operands()
        if not chain:
            continue
        members = {each for i in chain for each in results(program.ops[i])}
        taken = {each for i in chain for each in program.ops[i].operands()} - members
        freed = {root for each in members for root in roots_of(program, each)}
        if sum(owned.get(root, 0) for root in freed) < least:
            continue
        if all(last[root] <= at for root in freed if root in owned) and all(
            there(each, chain) for each in taken
        ):
            yield frozenset(members)


def _feeding(program: Program, at: int) -> set[int]:
    """Positions of cheap operators whose results only the loop at `at` reads, or
    others of them."""
    inside = {at}
    users: dict[str, list[int]] = {}
    for i, step in enumerate(program.ops):
        for name in step.operands():
            users.setdefault(name, []).append(i)
    given = set(refs(program.outputs))
    loop = program.ops[at]
    assert isinstance(loop, Loop)
    cut = {entry.outer for entry in loop.inputs}
    begun = {name for total in loop.totals for name in refs(total.start)}
    for i in range(at - 1, -1, -1):
        step = program.ops[i]
        if not isinstance(step, Op) or not is_cheap(step):
            continue
        uses = [use for name in results(step) for use in users.get(name, ())]
        if uses and inside.issuperset(uses) and step.name not in cut | given | begun:
            inside.add(i)
    return inside - {at}
