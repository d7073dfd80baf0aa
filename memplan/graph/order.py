"""Operators in the order that keeps the fewest bytes live.

The bytes live after a set of operators do not depend on the order in which they ran.
So the search goes from set to set, and of all orders that lead to one set it keeps one.
It looks for an order within a limit. If it visits every set that the limit allows and
finds none, the limit is proved to be too low. It runs an operator at once that neither
exceeds the limit nor raises the level: some order within the limit starts with it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

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
MANY = 1000  # operators of a program; one with more gets more effort


Need = tuple[int, int]
"""By how many bytes more are live while an operator runs, and after it."""


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

    @functools.cached_property
    def _parts(self) -> list[tuple[int, list[tuple[int, int, bool]]]]:
        """Of each operator: the bytes it makes; and of each storage that may die in it,
        its other users, its bytes, and whether the result may overwrite it."""
        return [
            (
                sum(self.size[each] for each in makes),
                [
                    (self.users[each] & ~(1 << task), self.size[each], each in over)
                    for each in takes
                    if each not in self.kept
                ],
            )
            for task, (makes, takes, over) in enumerate(
                zip(self.makes, self.takes, self.over, strict=True)
            )
        ]

    def needs(self, done: int, task: int) -> Need:
        """What `task` needs if it runs after the set `done`."""
        made, takes = self._parts[task]
        saved = freed = 0
        for others, size, over in takes:
            if others & done == others:
                freed += size
                if over and size > saved:
                    saved = size
        return made - saved + self.extra[task], made - freed

    def key(self) -> tuple[object, ...]:
        """Equal for equal tasks, and hashable."""
        lists = (self.makes, self.takes, self.over)
        flat = (self.before, self.extra, self.size, self.users)
        return (
            *(tuple(map(tuple, each)) for each in lists),
            *map(tuple, flat),
            frozenset(self.kept),
        )

    def peak(self, order: Sequence[int]) -> int:
        """The most bytes live in this order; 0 without operators."""
        done = level = peak = 0
        for task in order:
            up, change = self.needs(done, task)
            peak, level = max(peak, level + up), level + change
            done |= 1 << task
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

    It starts from the given order and a greedy one. effort: operators that it tries, of
    all sets and limits together, for up to 1,000 operators; more for more. A search
    that this process made lately is not made again: kernels change few programs.
    """
    return _searched(_Asked(tasks.key(), tasks), effort)


def as_given(tasks: Tasks) -> Order:
    """The given order, and a bound for all."""
    order = list(range(len(tasks.before)))
    peak, bound = tasks.peak(order), lower_bound(tasks)
    return Order(order, peak, bound, "bound" if peak == bound else "")


@dataclass(frozen=True)
class _Asked:
    key: tuple[object, ...]
    tasks: Tasks = field(compare=False)


@functools.lru_cache(maxsize=64)
def _searched(asked: _Asked, effort: int) -> Order:
    tasks, bound = asked.tasks, lower_bound(asked.tasks)
    given = list(range(len(tasks.before)))
    best = min(given, _greedy(tasks, bound), key=tasks.peak)
    peak = tasks.peak(best)
    work = _Work(effort * max(MANY, len(given)) // MANY)
    proof, least = "search", bound
    for width in WIDTHS:
        low = bound  # limits below are known, or taken, to be too low
        limit = low
        while low < peak and work.left:
            found, above = _Search(tasks, limit, width, work).run()
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


def _greedy(tasks: Tasks, bound: int) -> list[int]:
    """Next is the operator that leaves the fewest bytes live, of those within the peak
    so far; else the one that raises it least."""
    search = _Search(tasks, bound, 0, _Work(0))
    ready = search.first()
    order: list[int] = []
    done = level = 0
    peak = bound
    while ready:
        costs = (
            (max(peak, level + up), change, each)
            for each, (up, change) in ready.items()
        )
        peak, _, task = min(costs)
        level += ready.pop(task)[1]
        done |= 1 << task
        order.append(task)
        search.renew(ready, done, task)
    return order


@dataclass
class _Work:
    left: int

    def done(self, steps: int) -> None:
        self.left = max(0, self.left - steps)


@dataclass(frozen=True)
class _Set:
    """Operators that ran, as bits, and those after `earlier`; the bytes live then.

    ready: the operators that can run next, and what each needs.
    """

    done: int
    level: int
    ready: dict[int, Need]
    ran: list[int]
    earlier: _Set | None

    def order(self) -> list[int]:
        parts = []
        at: _Set | None = self
        while at is not None:
            parts.append(at.ran)
            at = at.earlier
        return [each for part in reversed(parts) for each in part]


class _Search:
    """The search for an order whose peak is at most `limit` bytes."""

    def __init__(self, tasks: Tasks, limit: int, width: int, work: _Work) -> None:
        self._tasks, self._limit, self._width, self._work = tasks, limit, width, work
        self._after = _followers(tasks)
        self._whole = (1 << len(tasks.before)) - 1
        self._layers: dict[int, dict[int, _Set]] = {}
        # The least limit that would have allowed another set.
        self._above: int | None = None

    def run(self) -> tuple[list[int] | None, int | None]:
        """An order within the limit, or None.

        Without one, the least limit that would have allowed another set; None if sets
        were given up.
        """
        limit, work = self._limit, self._work
        if (end := self._enter(_Set(0, 0, self.first(), [], None))) is not None:
            return end.order(), self._above
        given_up = False
        while self._layers:
            layer = self._layers.pop(min(self._layers))
            states = sorted(layer.values(), key=lambda state: state.level)
            given_up |= len(states) > self._width
            for state in states[: self._width]:
                if not work.left:
                    return None, None
                for task, (up, _) in state.ready.items():
                    if state.level + up <= limit:
                        end = self._enter(state, task)
                        if end is not None:
                            return end.order(), self._above
        return None, None if given_up else self._above

    def first(self) -> dict[int, Need]:
        """What is ready before any operator, and what it needs."""
        ready = (i for i, before in enumerate(self._tasks.before) if not before)
        return {each: self._tasks.needs(0, each) for each in ready}

    def _enter(self, earlier: _Set, task: int | None = None) -> _Set | None:
        """Keep the state after a task, and after all that is right to run at once then;
        return it if it is the last."""
        done, level, ready = earlier.done, earlier.level, earlier.ready.copy()
        ran = []
        while True:
            if task is not None:
                level += ready.pop(task)[1]
                done |= 1 << task
                ran.append(task)
                self.renew(ready, done, task)
            spare, only, task = self._limit - level, len(ready) == 1, None
            for each, (up, change) in ready.items():
                if up <= spare and (change <= 0 or only):
                    task = each
                    break
            if task is None:
                break
        state = _Set(done, level, ready, ran, earlier)
        if done == self._whole:
            return state
        beyond = [up for up, _ in ready.values() if up > spare]
        if beyond:
            least = level + min(beyond)
            self._above = least if self._above is None else min(self._above, least)
        layer = self._layers.setdefault(done.bit_count(), {})
        layer.setdefault(done, state)
        return None

    def renew(self, ready: dict[int, Need], done: int, task: int) -> None:
        """What is ready after a task, and what that needs where it has changed."""
        tasks = self._tasks
        new = [each for each in self._after[task] if not tasks.before[each] & ~done]
        for each in tasks.takes[task]:
            rest = tasks.users[each] & ~done
            if rest and not rest & (rest - 1):  # what the last user needs has changed
                last = rest.bit_length() - 1
                if last in ready:
                    new.append(last)
        for each in new:
            ready[each] = tasks.needs(done, each)
        self._work.done(1 + len(new))


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
