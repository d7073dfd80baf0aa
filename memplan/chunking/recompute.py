"""Compute a value again for its last users instead of keeping it.

Between a value's early users and its late ones nothing needs it, and still it takes
memory, like the skips of a U-Net. If what it was made from is there anyway, its
operators can run a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise

from memplan.chunking.gathers import gathered_first
from memplan.chunking.region import NotLoopableError
from memplan.chunking.rewriting import renamed
from memplan.chunking.selections import selected_first
from memplan.chunking.timing import multiplications
from memplan.graph.liveness import Beside, follow, lifetimes, profile, roots_of
from memplan.graph.lower import without_dead
from memplan.graph.program import (
    Op,
    Program,
    Roots,
    Step,
    refs,
    results,
)
from memplan.graph.workspace import temporaries

AGAIN = "_again"  # ends the names of what is computed a second time
LEAST_GAP = 2  # operators from a user of a value to the next
MOST = 3  # values computed again
LEAST = 1 / 8  # of the peak, for a value
DEAREST = 1 / 3  # of the arithmetic, for all
CHEAP = 1 / 32  # of the arithmetic: a value that takes so little is made for each user


@dataclass(frozen=True)
class Recompute:
    """A value that is not kept.

    name: of the value. at: the position of the first operator for which it is computed
    again. ops: the positions of the operators that run again. saves: the bytes that are
    then free between its users. gap: the operators in which they are.
    """

    name: str
    at: int
    ops: tuple[int, ...]
    saves: int
    gap: int


@dataclass(frozen=True)
class Base:
    """A program, without loops, that regions are searched in.

    again: the values that are computed again, one after the other. share: the
    arithmetic that this takes, as a share of the model's.
    """

    program: Program
    again: tuple[str, ...] = ()
    share: float = 0.0


def as_cheap(program: Program) -> list[Base]:
    """The program itself, and one with large values made where they are selected or
    gathered from, if there are any: that takes no more arithmetic."""
    first, names = selected_first(program)
    names += gathered_first(first)[1]
    more = [Base(again(program, names), names)] if names else []
    return [Base(program), *more]


def bases(
    first: Sequence[Base],
    beside: Beside = temporaries,
    limiting: Callable[[], Set[str]] = frozenset,
) -> Iterator[Base]:
    """The first ones, see `as_cheap`, then the last of them with one more value after
    the other computed again.

    limiting: the storages that are live where loops leave the last base's peak, the
    first to be computed again. Else values that are a good part of the peak, and that
    are kept while much is live. Only what takes little arithmetic. beside: bytes that
    operators need of their own.
    """
    yield from first
    program, names = first[0].program, first[-1].again
    whole = max(1, sum(multiplications(program, op) for op in program.ops))
    base: Base | None = first[-1]
    while base is not None:
        values = {name.replace(AGAIN, "") for name in base.again}
        more = len(values.difference(names)) < MOST
        base = _with_one_more(base, whole, beside, limiting()) if more else None
        if base is not None:
            yield base


def _with_one_more(
    base: Base, whole: int, beside: Beside, limiting: Set[str]
) -> Base | None:
    """The base with one more value computed again. whole: the model's arithmetic."""
    for what in _worthwhile(base.program, beside, limiting):
        cost = _cost(base.program, what) / whole
        if base.share + cost <= DEAREST:
            more = _recomputed(base, what, cost)
            while cost <= CHEAP and (other := _once_more(more.program, what.name)):
                cost = _cost(more.program, other) / whole
                if more.share + cost > DEAREST:
                    break
                more = _recomputed(more, other, cost)
            return more
    return None


def _worthwhile(
    program: Program, beside: Beside, limiting: Set[str]
) -> Iterator[Recompute]:
    found = recomputable(program)
    for what in found:
        if not limiting.isdisjoint(roots_of(program, what.name)):
            yield what
    live = profile(program, beside=beside)
    for what in found:
        most = max(live.live[what.ops[-1] + 1 : what.at + 1])
        if what.saves >= int(LEAST * live.peak) and 2 * most >= live.peak:
            yield what


def _recomputed(base: Base, what: Recompute, cost: float) -> Base:
    program = recomputed(base.program, what)
    return Base(program, (*base.again, what.name), base.share + cost)


def _cost(program: Program, what: Recompute) -> int:
    """The multiplications that it takes."""
    return sum(multiplications(program, program.ops[i]) for i in what.ops)


def _once_more(program: Program, name: str) -> Recompute | None:
    """How a value or a copy of it can be computed again; None if none can."""
    plain = name.replace(AGAIN, "")
    copies = (
        each for each in recomputable(program) if each.name.replace(AGAIN, "") == plain
    )
    return next(copies, None)


def again(program: Program, names: Iterable[str]) -> Program:
    """The program with some values computed again, one after the other; those that are
    only selected or gathered from, where they are.

    Raises NotLoopableError for one that cannot be.
    """
    names = list(names)
    done: tuple[str, ...] = ()
    if names:
        program, selected = selected_first(program, names)
        program, gathered = gathered_first(program, names)
        done = selected + gathered
    for name in names:
        if name in done:
            continue
        known = {each.name: each for each in recomputable(program)}
        if name not in known:
            raise NotLoopableError(f"{name} cannot be computed again")
        program = recomputed(program, known[name])
    return program


def recomputable(program: Program) -> list[Recompute]:
    """Values that can be computed again, those first that take most memory
    for longest; after them those for which others are kept, of half their size at most.

    program: without loops.
    """
    lives = _Lives(program)
    uses = {name: [i] for name, i in lives.maker.items()}
    for i, step in enumerate(program.ops):
        for name in dict.fromkeys(step.operands()):
            if name in uses:
                uses[name].append(i)
    given = {root for name in refs(program.outputs) for root in roots_of(program, name)}
    found = []
    for name, users in uses.items():
        gaps = [late - early for early, late in pairwise(users)]
        roots = set(roots_of(program, name))
        if not gaps or max(gaps) < LEAST_GAP or not roots <= lives.owned.keys() - given:
            continue
        at = users[gaps.index(max(gaps)) + 1]
        saves = sum(lives.owned[root] for root in roots)
        if not saves:
            continue
        most = max(gaps)  # else it is longer than what it bridges
        ops, kept = lives.behind(name, at, 0, most)
        if len(ops) > most:
            ops, kept = lives.behind(name, at, saves // 2, most)
        if len(ops) <= most:
            more = Recompute(name, at, ops, saves - kept, most)
            found.append((kept > 0, -more.saves * more.gap, at, name, more))
    return [more for *_, more in sorted(found)]


def recomputed(program: Program, what: Recompute) -> Program:
    """A copy of `program` in which a value is computed again."""
    names = [name for i in what.ops for name in results(program.ops[i])]
    ending = AGAIN
    while any(name + ending in program.metas for name in names):
        ending += AGAIN
    new = {name: name + ending for name in names}

    def root_of(root: Roots) -> Roots:
        if isinstance(root, tuple):
            return tuple(map(root_of, root))
        name, bracket, index = root.partition("[")
        return new.get(name, name) + bracket + index

    copies: list[Step] = []
    metas, roots = dict(program.metas), dict(program.roots)
    modules = dict(program.modules)
    for i in what.ops:
        op = program.ops[i]
        assert isinstance(op, Op)
        copies.append(renamed(op, new, new[op.name]))
        metas[new[op.name]] = metas[op.name]
        roots[new[op.name]] = root_of(roots[op.name])
        if op.name in modules:
            modules[new[op.name]] = modules[op.name]
    late = [
        renamed(step, {what.name: new[what.name]}, step.name)
        if isinstance(step, Op) and what.name in step.operands()
        else step
        for step in program.ops[what.at :]
    ]
    ops = [*program.ops[: what.at], *copies, *late]
    program = replace(program, ops=ops, metas=metas, roots=roots, modules=modules)
    for step in late:
        follow(program, step)
    return without_dead(program)  # an earlier operator may have had no other user


class _Lives:
    """The values of a program without loops.

    maker: the positions of the operators that make them. last, owned: see `lifetimes`.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.last, self.owned = lifetimes(program)
        made = ((i, results(step)) for i, step in enumerate(program.ops))
        self.maker = {name: i for i, names in made for name in names}

    def behind(
        self, name: str, at: int, room: int, most: int
    ) -> tuple[tuple[int, ...], int]:
        """The operators that make a value from what is there at `at`, and the bytes of
        what is kept until then for it: at most `room`. Where there are more than `most`
        operators, some of them."""
        gone = set(roots_of(self._program, name))
        found: set[int] = set()
        longer: set[str] = set()  # storages that are kept
        rest = [name]
        while rest and len(found) <= most:
            i = self.maker[rest.pop()]
            if i in found:
                continue
            found.add(i)
            operands = self._program.ops[i].operands()
            for operand in filter(self.maker.__contains__, operands):
                roots = roots_of(self._program, operand)
                early = {root for root in roots if self.last[root] < at} - longer
                size = sum(self.owned.get(root, room + 1) for root in early)
                if size <= room and gone.isdisjoint(roots):
                    longer |= early
                    room -= size
                else:
                    rest.append(operand)
        return tuple(sorted(found)), sum(self.owned[root] for root in longer)
