"""Operators in the order that keeps the fewest bytes live.

The bytes live after a set of operators do not depend on the order in which they ran.
So the search goes from set to set, and of all orders that lead to one set it keeps one.
It looks for an order within a limit. If it visits every set that the limit allows and
finds none, the limit is proved to be too low. It runs an operator at once that neither
exceeds the limit nor raises the level: some order within the limit starts with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from memplan.graph.liveness import (
    Beside,
    Candidates,
    bytes_of,
    extra_bytes,
    lifetimes,
    may_overwrite,
    owners,
    roots_of,
)
from memplan.graph.program import Program, refs, results
from memplan.graph.workspace import temporaries

WIDTHS = (8, 64, 512, 4096)  # sets kept of each number of operators, by turns
EFFORT = 400_000  # operators tried in one search, at most, in all its limits


@dataclass(frozen=True)
class Tasks:
    """n operators, and the storages that they make and take.

    before: of each operator, the operators whose results it takes, as bits.
    makes, takes: of each operator, the storages that it makes, and takes or makes.
    over: of each operator, the storages that its one result may overwrite.
    extra: bytes that live only while an operator runs.
    size: bytes of each storage. users: the operators that take or make it, as bits.
    kept: storages that outlive the last operator.
    """

    before: list[int]
    makes: list[list[int]]
    takes: list[list[int]]
    over: list[list[int]]
    extra: list[int]
    size: list[int]
    users: list[int]
    kept: set[int]

    def step(self, done: int, level: int, task: int) -> tuple[int, int]:
        """Bytes live while `task` runs after the set `done`, and after it."""
        made = sum(self.size[each] for each in self.makes[task])
        after = done | 1 << task
        dying = [
            each
            for each in self.takes[task]
            if each not in self.kept and not self.users[each] & ~after
        ]
        over = self.over[task]
        saved = max((self.size[each] for each in dying if each in over), default=0)
        freed = sum(self.size[each] for each in dying)
        return level + made - saved + self.extra[task], level + made - freed

    def peak(self, order: Sequence[int]) -> int:
        """The most bytes live in this order; 0 without operators."""
        done = level = peak = 0
        for task in order:
            live, level = self.step(done, level, task)
            peak, done = max(peak, live), done | 1 << task
        return peak


@dataclass(frozen=True)
class Order:
    """order: positions of the operators as they run. peak: bytes.

    bound: no order has a smaller peak. proof: "bound" if the peak is equal to the bound
    that the graph gives, "search" if all sets below the peak were visited, "" if the
    order may not be the best.
    """

    order: list[int]
    peak: int
    bound: int
    proof: str


def least_peak(tasks: Tasks, effort: int = EFFORT) -> Order:
    """The order with the lowest peak that the search finds; never above the given one.

    effort: operators that it tries, of all sets and limits together.
    """
    best = list(range(len(tasks.before)))
    peak, bound = tasks.peak(best), lower_bound(tasks)
    proof, least, work = "search", bound, _Work(effort)
    for width in WIDTHS:
        low = bound  # limits below are known, or taken, to be too low
        limit = low
        while low < peak and work.left:
            found, above = _within(tasks, limit, width, work)
            if found is not None:
                best, peak = found, tasks.peak(found)
            elif above is not None:  # proved: nothing is within the limit
                low = bound = min(above, peak)
            else:
                low = limit + 1
            # Where proofs come easily, from below; else by bisection.
            limit = low if above is not None else (low + peak) // 2
        if bound == peak or not work.left:
            break
    if peak == least:
        proof = "bound"
    return Order(best, peak, bound, proof if bound == peak else "")


@dataclass
class _Work:
    left: int

    def done(self, steps: int) -> None:
        self.left = max(0, self.left - steps)


@dataclass(frozen=True)
class _Set:
    """Operators that ran, as bits; bytes live after them; the last run and the rest."""

    done: int
    level: int
    ready: tuple[int, ...]
    ran: tuple[int, ...]
    earlier: _Set | None

    def order(self) -> list[int]:
        parts = []
        at: _Set | None = self
        while at is not None:
            parts.append(at.ran)
            at = at.earlier
        return [task for part in reversed(parts) for task in part]


def _within(
    tasks: Tasks, limit: int, width: int, work: _Work
) -> tuple[list[int] | None, int | None]:
    """An order whose peak is at most `limit` bytes, or None.

    Without one, the least limit that would have allowed another set; None if sets were
    given up.
    """
    after = _followers(tasks)
    count = len(tasks.before)
    whole = (1 << count) - 1
    first = tuple(i for i, before in enumerate(tasks.before) if not before)
    start = _Set(0, 0, first, (), None)
    above: int | None = None
    layers: dict[int, dict[int, _Set]] = {}

    def enter(state: _Set) -> _Set | None:
        """The state after all that can be run at once; the state if it is the last."""
        nonlocal above
        state, least = _advanced(tasks, after, state, limit, work)
        if state.done == whole:
            return state
        if least is not None:
            above = least if above is None else min(above, least)
        layers.setdefault(state.done.bit_count(), {}).setdefault(state.done, state)
        return None

    if (end := enter(start)) is not None:
        return end.order(), above
    given_up = False
    while layers:
        layer = layers.pop(min(layers))
        states = sorted(layer.values(), key=lambda state: state.level)
        given_up |= len(states) > width
        for state in states[:width]:
            if not work.left:
                return None, None
            for task in state.ready:
                live, level = tasks.step(state.done, state.level, task)
                if live <= limit:
                    end = enter(_run(tasks, after, state, task, level))
                    if end is not None:
                        return end.order(), above
            work.done(len(state.ready))
    return None, None if given_up else above


def _advanced(
    tasks: Tasks, after: list[list[int]], state: _Set, limit: int, work: _Work
) -> tuple[_Set, int | None]:
    """The state after operators that are right to run at once, one after the other.

    And the fewest bytes above the limit that an operator which is ready would need.
    """
    while True:
        least: int | None = None
        for task in state.ready:
            live, level = tasks.step(state.done, state.level, task)
            if live > limit:
                least = live if least is None else min(least, live)
            elif level <= state.level or len(state.ready) == 1:
                state = _run(tasks, after, state, task, level)
                break
        else:
            work.done(len(state.ready))
            return state, least
        work.done(1)


def _run(
    tasks: Tasks, after: list[list[int]], state: _Set, task: int, level: int
) -> _Set:
    done = state.done | 1 << task
    rest = tuple(each for each in state.ready if each != task)
    new = tuple(each for each in after[task] if not tasks.before[each] & ~done)
    return _Set(done, level, rest + new, (task,), state)


def _followers(tasks: Tasks) -> list[list[int]]:
    """Of each operator, those that take its results."""
    after: list[list[int]] = [[] for _ in tasks.before]
    for i, before in enumerate(tasks.before):
        for each in _bits(before):
            after[each].append(i)
    return after


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def lower_bound(tasks: Tasks) -> int:
    """Bytes that are live at some operator in every order.

    While an operator runs, everything is live that an operator before it in every order
    made, and that it or one after it takes, or that is kept. At the end, all that is
    kept is live.
    """
    count = len(tasks.before)
    made = [sum(1 << each for each in makes) for makes in tasks.makes]
    taken = [sum(1 << each for each in takes) for takes in tasks.takes]
    kept = sum(1 << each for each in tasks.kept)
    earlier = [0] * count  # storages made by it and by all before it
    later = list(taken)  # storages taken by it and by all after it
    for i, before in enumerate(tasks.before):
        earlier[i] = made[i]
        for each in _bits(before):
            earlier[i] |= earlier[each]
    after = _followers(tasks)
    for i in reversed(range(count)):
        for each in after[i]:
            later[i] |= later[each]
    most = sum(tasks.size[each] for each in tasks.kept)
    for i in range(count):
        beyond = kept
        for each in after[i]:
            beyond |= later[each]
        live = earlier[i] & (later[i] | kept)
        over = (tasks.size[each] for each in tasks.over[i] if not beyond >> each & 1)
        total = sum(tasks.size[each] for each in _bits(live))
        most = max(most, total - max(over, default=0) + tasks.extra[i])
    return most


def tasks_of(
    program: Program,
    beside: Beside = temporaries,
    candidates: Candidates | None = None,
) -> Tasks:
    """The operators of a program as Tasks, with the memory that `profile` counts.

    beside: see `profile`. candidates: see `may_overwrite`.
    """
    _, owned = lifetimes(program)
    number = {root: i for i, root in enumerate(owned)}
    maker: dict[str, int] = {}
    users = [0] * len(number)
    before, makes, takes, over, extra = [], [], [], [], []
    for i, step in enumerate(program.ops):
        own = [number[root] for root in owners(program, step)]
        used = {
            number[root]
            for name in (*step.operands(), *results(step))
            for root in roots_of(program, name)
            if root in number
        }
        earlier = {maker[name] for name in step.operands() if name in maker}
        before.append(sum(1 << each for each in earlier))
        makes.append(own)
        takes.append(sorted(used))
        for each in used:
            users[each] |= 1 << i
        roots = (
            program.roots[name] for name in may_overwrite(program, step, candidates)
        )
        over.append([number[root] for root in roots if root in number])
        extra.append(extra_bytes(program, step, beside))
        maker.update(dict.fromkeys(results(step), i))
    kept = {
        number[root]
        for name in refs(program.outputs)
        for root in roots_of(program, name)
        if root in number
    }
    sizes = [bytes_of(program, root) for root in owned]
    return Tasks(before, makes, takes, over, extra, sizes, users, kept)


def reordered(program: Program, order: Sequence[int]) -> Program:
    """The program with its operators in the order given."""
    return replace(program, ops=[program.ops[i] for i in order])
