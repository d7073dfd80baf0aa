"""Which parts of a training step can be computed again, what that saves and costs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from memplan.arrays import BoolArray, Float64Array, Int64Array
from memplan.budgeting.step import NEVER, NONE, Recorded
from memplan.core.recompute import Unit
from memplan.levels import level
from memplan.trace.calls import AGAIN, NO_CALL, Calls, Flag, Module

OVERHEAD_NS = 50_000  # of making one call again, beside the call itself
_NORMS = ("BatchNorm", "InstanceNorm")  # in the names of classes: not read
_KEPT = "it is kept, as you asked"
STATE_BYTES = 5_056  # of the state of torch's generator on the CPU
MOST_CHILDREN = 12  # of a Sequential whose runs are all looked at
_LENGTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32)  # of runs in a longer one


@dataclass(frozen=True, eq=False)
class Span:
    """One call of a unit, in rows of the trace (see `Recorded`); bytes.

    calls: half-open, of the calls in it. begin, end: its rows. stop: the row after
    which nothing more is saved: a call that is made again ends there. needed: the
    first row at which the backward pass needs something of it; released: the row
    from which on it needs nothing more. kept: allocations that it alone keeps, from
    `dropped`, when the program, autocast's cache and other calls let go of them, to
    `needed` and beyond; freed: the same if all calls that were given one are made
    again, too. held: inputs that live until `released` only if it is made again.
    again: the most bytes alive of what the call allocates when it is made again.
    twice: allocations that live on although the call is made again, such as its
    outputs, and of which it needs a second one; until: up to which row, shape of
    `twice`. clones: bytes of each buffer that is cloned for that; copies: of those
    that are cloned before the call, too. state: bytes of generators' states.
    """

    calls: tuple[int, int]
    begin: int
    end: int
    stop: int
    needed: int
    released: int
    freed: Int64Array
    dropped: Int64Array
    kept: Int64Array
    held: Int64Array
    again: int
    twice: Int64Array
    until: Int64Array
    clones: tuple[int, ...]
    copies: tuple[int, ...]
    state: int

    @property
    def besides(self) -> int:
        """Bytes that a unit keeps from its begin, beside its inputs."""
        return self.state + sum(self.copies)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A unit, its calls in the step, and what they cost: nanoseconds, or bytes where
    the recording has no times. saved: bytes that it keeps, of all calls."""

    unit: Unit
    spans: tuple[Span, ...]
    cost: float
    saved: int


@dataclass
class Candidates:
    """Those of one step. forward: what all outermost calls cost. excluded: why a module
    that keeps something is no candidate, by its path. timed: whether costs are
    times."""

    found: list[Candidate] = field(default_factory=list)
    excluded: dict[str, str] = field(default_factory=dict)
    forward: float = 0.0
    timed: bool = True


def candidates(
    recorded: Recorded,
    keep: Collection[str] = (),
    within: Collection[tuple[int, int]] = (),
) -> Candidates:
    """The candidates of the step `recorded.step`.

    keep: paths of modules that are not computed again, nor is anything around or in
    them. within: the calls, half-open, of units that are made again already: candidates
    lie around them, or apart from them.
    """
    return _Search(recorded, keep, within).run()


class _Search:
    def __init__(
        self,
        recorded: Recorded,
        keep: Collection[str],
        within: Collection[tuple[int, int]],
    ) -> None:
        self.recorded = recorded
        self.calls: Calls = recorded.calls
        self.keep = frozenset(keep)
        self.within = sorted(within)
        begin, end = recorded.rows
        at = recorded.begin
        self.own = np.flatnonzero((at >= begin) & (at < end)).astype(np.int64)
        self.result = Candidates()

    def run(self) -> Candidates:
        calls, result = self.calls, self.result
        outermost = self.own[calls.parent[self.own] == NO_CALL]
        trained = [i for i in outermost.tolist() if self.recorded.has(i, Flag.GRAD)]
        result.forward = float(self.cost[trained].sum())
        by_module: dict[int, list[int]] = {}
        for call in self.own.tolist():
            if self.recorded.has(call, Flag.GRAD):
                by_module.setdefault(int(calls.module[call]), []).append(call)
        for number, made in by_module.items():
            module = calls.modules[number]
            ranges = [(call, int(self.recorded.inside_end[call])) for call in made]
            if module.path:
                unit = Unit(module.root, module.path, 0, 0, module.kind, ())
                self._try(unit, ranges, module)
            if module.children > 1:
                self._runs(module, ranges)
        return result

    def _children(self, call: int) -> int:
        """How many children the Sequential has that a call is of, else 0."""
        return self.calls.modules[int(self.calls.module[call])].children

    def _runs(self, module: Module, ranges: Sequence[tuple[int, int]]) -> None:
        """Runs of a Sequential's children, but for the whole of it."""
        children = [self.children(*each) for each in ranges]
        if any(len(each) != module.children for each in children):
            return
        for first, last in runs(module.children):
            unit = Unit(module.root, module.path, first, last, module.kind, ())
            spans = [
                (own[first], int(self.recorded.inside_end[own[last - 1]]))
                for own in children
            ]
            self._try(unit, spans, None)

    def children(self, call: int, end: int) -> list[int]:
        """The calls that a call, which ends before call `end`, makes itself."""
        found = np.flatnonzero(self.calls.parent[call:end] == call) + call
        return [int(each) for each in found]

    def _try(
        self, unit: Unit, ranges: Sequence[tuple[int, int]], module: Module | None
    ) -> None:
        """Add the unit to the candidates, or the reason why it is none."""
        if any(self._within(each) for each in ranges):
            return
        spans = [self.span(*each) for each in ranges]
        used = [each for each in spans if each.needed < NEVER]
        saved = sum(self._bytes(each.kept[each.freed < each.needed]) for each in used)
        if not saved:
            return
        reason = self._obstacle(unit, ranges)
        if reason:
            if module is not None:
                self.result.excluded[unit.name] = reason
            return
        cost = sum(
            float(self.cost[call]) * self._share(call, each.stop)
            for each in used
            for call in self._top(*each.calls)
        )
        cost += OVERHEAD_NS * len(used) * self.result.timed
        at = f"{unit.path}." if unit.path else ""
        written = (name.removeprefix(at) for name, *_ in self._written(ranges))
        unit = replace(unit, written=tuple(written))
        self.result.found.append(Candidate(unit, tuple(used), cost, saved))

    def _within(self, calls: tuple[int, int]) -> bool:
        """Whether some calls share one with a unit that does not lie within them."""
        first, last = calls
        shared = [each for each in self.within if each[0] < last and first < each[1]]
        return any(
            (begin, end) == calls or begin < first or last < end
            for begin, end in shared
        )

    def _top(self, first: int, last: int) -> Iterator[int]:
        """The outermost of some calls."""
        while first < last:
            yield first
            first = int(self.recorded.inside_end[first])

    def _modules_in(self, ranges: Sequence[tuple[int, int]]) -> list[int]:
        numbers = [self.calls.module[first:last] for first, last in ranges]
        found: list[int] = np.unique(np.concatenate(numbers)).tolist()
        return found

    def _written(
        self, ranges: Sequence[tuple[int, int]]
    ) -> list[tuple[str, int, bool]]:
        """Path in the root and bytes of each buffer that some calls change, and whether
        they read it as well."""
        modules = [self.calls.modules[i] for i in self._modules_in(ranges)]
        return sorted(
            (f"{each.path}.{name}", size, not any(n in each.kind for n in _NORMS))
            for each in modules
            for name, size in zip(each.written, each.written_bytes, strict=True)
        )

    def _obstacle(self, unit: Unit, ranges: Sequence[tuple[int, int]]) -> str:
        """Why it cannot be made again, or is not to be; "" if it can."""
        around = f"{unit.path}."
        if any(not p or around.startswith(f"{p}.") for p in self._again_in(unit.root)):
            return "it lies in a module whose call is made again already"
        if any(around.startswith(f"{path}.") for path in self.keep):
            return _KEPT
        for i in self._modules_in(ranges):
            each = self.calls.modules[i]
            obstacle = _KEPT if each.path in self.keep else each.obstacle
            if obstacle:
                own = each.path == unit.path
                return obstacle if own else f"{each.path}: {obstacle}"
        if any(self.recorded.has(first, Flag.CHANGED) for first, _ in ranges):
            return "a tensor that it is given is changed in place"
        return ""

    def _again_in(self, root: int) -> list[str]:
        """Paths of modules that the program itself computes again."""
        return [
            each.path
            for each in self.calls.modules
            if each.root == root and each.obstacle == AGAIN
        ]

    def span(self, first: int, last: int) -> Span:
        """The Span of calls [first, last), `needed` NEVER if it keeps nothing."""
        recorded, lives = self.recorded, self.recorded.lives
        top = list(self._top(first, last))
        begin, end = int(recorded.begin[first]), int(recorded.end[top[-1]])
        own = recorded.saved_in(first, last)
        needed = int(recorded.unpacked[own].min(initial=NEVER))
        stop = int(recorded.packed[own].max(initial=begin))
        of_own = recorded.buffer[own & (recorded.buffer != NONE)]
        held, times = np.unique(of_own, return_counts=True)
        alone = recorded.times_saved[held] == times
        born = (lives.row[held] >= begin) & (lives.row[held] < end)
        returned = np.isin(held, recorded.outputs.of(top[-1]))
        kept = held[born & (alone | returned) & (lives.end[held] >= end)]
        kept = kept[lives.end[kept] > needed] if needed < NEVER else kept[:0]
        freed, output = recorded.dropped[kept], np.isin(kept, held[returned])
        if not recorded.drops:  # an older trace: so it is for most
            freed[~output] = end
        freed = np.maximum(recorded.cached_until[kept], freed)
        dropped = freed.copy()
        for i in np.flatnonzero(output).tolist():
            saved, given = self._elsewhere((first, last), int(kept[i]))
            dropped[i] = max(dropped[i], saved)
            freed[i] = max(freed[i], saved, given)
        soon = freed <= needed
        kept, freed, dropped = kept[soon], freed[soon], dropped[soon]
        unpacked = recorded.unpacked[own & (recorded.unpacked != NEVER)]
        # The last operator's backward is over when another one needs something.
        after = recorded.next_needed(int(unpacked.max(initial=0)))
        released = max(after, int(lives.end[kept].max(initial=0)) + 1)
        inputs = recorded.inputs.of(first)
        short = inputs[lives.end[inputs] < min(released, len(lives.events))]
        on_cpu = recorded.trace.info.device == "cpu"  # the generator's state is
        state = STATE_BYTES if on_cpu else 0
        twice = np.setdiff1d(held[born & (lives.row[held] < stop)], kept)
        twice = twice[: 0 if needed == NEVER else None]
        until = []
        for buffer in twice.tolist():
            rows = recorded.unpacked[own & (recorded.buffer == buffer)]
            rows = rows[rows != NEVER]
            until.append(recorded.next_needed(int(rows.max(initial=needed))))
        written = self._written([(first, last)])
        clones = tuple(size for _, size, _ in written)
        return Span(
            (first, last),
            begin,
            end,
            stop,
            needed if (freed < needed).any() else NEVER,
            min(released, len(lives.events)),
            freed,
            dropped,
            kept.astype(np.int64),
            short,
            self._again(begin, stop) + sum(clones) + state,
            twice.astype(np.int64),
            np.array(until, dtype=np.int64),
            clones,
            tuple(size for _, size, is_read in written if is_read),
            state,
        )

    def _elsewhere(self, calls: tuple[int, int], buffer: int) -> tuple[int, int]:
        """The rows by which all other calls are done that saved what some calls return,
        and by which those are that it was given to: they keep it if they are made
        again."""
        recorded, parent = self.recorded, self.calls.parent
        saved = (recorded.buffer == buffer) & ~recorded.saved_in(*calls)
        given = np.zeros_like(saved)
        users = recorded.inputs.call[recorded.inputs.buffer == buffer]
        for user in users[users >= calls[1]].tolist():
            above = int(parent[user])  # in a Sequential, a run may begin with it
            until = user if above == NO_CALL or not self._children(above) else above
            given |= recorded.saved_in(user, int(recorded.inside_end[until]))
        return self._released(saved), self._released(given)

    def _released(self, saved: BoolArray) -> int:
        """The row by which nothing more needs some saved tensors."""
        needed = self.recorded.unpacked[saved]
        if not len(needed) or (needed == NEVER).any():
            return NEVER if len(needed) else 0
        return self.recorded.next_needed(int(needed.max()))

    def _again(self, begin: int, stop: int) -> int:
        """The most bytes alive of what rows [begin, stop) allocate."""
        lives = self.recorded.lives
        first, last = np.searchsorted(lives.row, [begin, stop]).tolist()
        if first == last:
            return 0
        born, died = lives.row[first:last], lives.end[first:last]
        upper = np.minimum(died, stop) - begin
        own = level(born - begin, upper, lives.size[first:last], stop - begin)
        return int(own.max(initial=0))

    def _bytes(self, buffers: Int64Array) -> int:
        return int(self.recorded.lives.size[buffers].sum())

    def _share(self, call: int, stop: int) -> float:
        """The share of a call's cost that comes before row `stop`."""
        recorded = self.recorded
        rows = recorded.begin[call], min(stop, recorded.end[call]), recorded.end[call]
        if not rows[0] < rows[1] < rows[2]:
            return float(rows[1] == rows[2])
        if self.result.timed:
            middle = self._time[rows[1]]
            begin, end = self.calls.begin_ns[call], self.calls.end_ns[call]
        else:
            begin, middle, end = self._made_until(np.array(rows)).tolist()
        return float(np.clip((middle - begin) / max(end - begin, 1), 0, 1))

    def _made_until(self, row: Int64Array) -> Int64Array:
        """The bytes of all that was allocated before each row."""
        before = np.searchsorted(self.recorded.lives.row, row)
        return self._sums[before]

    @cached_property
    def _sums(self) -> Int64Array:
        return np.append(0, np.cumsum(self.recorded.lives.size)).astype(np.int64)

    @cached_property
    def _time(self) -> Int64Array:
        return np.maximum.accumulate(self.recorded.trace.events.time_ns)

    @cached_property
    def cost(self) -> Float64Array:
        """Of each call: nanoseconds, or bytes that it allocates, where there are no
        times; shape (n,).

        The time of a call without those in it is the least of any step: what else the
        machine did then hits a long call in each step, and a short one in few.
        """
        calls, recorded = self.calls, self.recorded
        if not calls.cost_ns[self.own].any():
            self.result.timed = False
            made = self._made_until(recorded.end) - self._made_until(recorded.begin)
            return made.astype(np.float64)
        alone = calls.cost_ns.astype(np.float64)
        inner = calls.parent != NO_CALL
        np.subtract.at(alone, calls.parent[inner], calls.cost_ns[inner])
        step = np.searchsorted(recorded.lives.bounds, recorded.begin, side="right")
        seen: dict[tuple[int, int], float] = {}
        count: dict[tuple[int, int], int] = {}
        place = []
        for call, module in enumerate(calls.module.tolist()):
            at = count[int(step[call]), module] = (
                count.get((int(step[call]), module), -1) + 1
            )
            place.append((module, at))
            least = seen.get((module, at), np.inf)
            seen[module, at] = min(least, max(float(alone[call]), 0.0))
        sums = np.append(0.0, np.cumsum([seen[each] for each in place]))
        found: Float64Array = sums[recorded.inside_end] - sums[:-1]
        return found


def spans_of(recorded: Recorded, units: Collection[Unit]) -> list[Span]:
    """All calls of some units, in whichever step, that are needed again."""
    search = _Search(recorded, (), ())
    wanted: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for unit in units:
        wanted.setdefault((unit.root, unit.path), []).append((unit.first, unit.last))
    calls, found = recorded.calls, []
    modules = [
        number
        for number, each in enumerate(calls.modules)
        if (each.root, each.path) in wanted
    ]
    own = np.isin(calls.module, modules) & (calls.flags & int(Flag.GRAD) > 0)
    for call in np.flatnonzero(own).tolist():
        module = calls.modules[int(calls.module[call])]
        last = int(recorded.inside_end[call])
        for first, end in wanted.get((module.root, module.path), ()):
            span = (call, last)
            if end:
                children = search.children(call, last)
                if len(children) != module.children:
                    continue
                span = children[first], int(recorded.inside_end[children[end - 1]])
            made = search.span(*span)
            if made.needed < NEVER:
                found.append(made)
    return found


def runs(children: int) -> Iterator[tuple[int, int]]:
    """Runs [first, last) of two children or more, without the run of all."""
    lengths = range(2, children) if children <= MOST_CHILDREN else _LENGTHS
    for length in lengths:
        if length < children:
            for first in range(children - length + 1):
                yield first, first + length
