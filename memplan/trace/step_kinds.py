"""Steps of other kinds than the hot one: a short last batch, an evaluation.

Each kind is a step of its own to plan, on a linear clock that begins with it. Blocks
of the step before that are still alive in it, and blocks of the step after that are
made while its own are alive, are its neighbours: their places are given.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from memplan.arrays import BoolArray, Int64Array
from memplan.core.placement import Requests, Workload
from memplan.core.problem import Problem
from memplan.trace.steps import Alike, HotSteps, Timeline, signature

MOST_KINDS = 32
HOT = -1  # in `Neighbours.kind`: of the hot steps


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Blocks of other steps that a kind's own must keep clear of; shape (k,) each.

    lower, upper: ticks of the kind's clock, half-open. kind: HOT, or the number of
    another kind. request: of the hot steps' requests, or of that kind's.
    """

    lower: Int64Array
    upper: Int64Array
    size: Int64Array
    kind: Int64Array
    request: Int64Array

    def take(self, rows: BoolArray) -> Neighbours:
        """Those chosen, as new columns."""
        return Neighbours(*(getattr(self, f.name)[rows] for f in fields(self)))


@dataclass(frozen=True, eq=False)
class KindWorkload(Workload):
    """One kind of step, on a linear clock, and its neighbours.

    steps: the numbers of the recorded steps that are of this kind.
    begins_as: a row (kind, request) for each of its first requests, those by which it
        cannot be told yet from the step that was expected, or from an earlier kind:
        it is served in that request's place, as in `Neighbours`. Shape (p, 2).
    """

    neighbours: Neighbours
    steps: tuple[int, ...]
    begins_as: Int64Array


def other_kinds(
    line: Timeline,
    hot: HotSteps,
    requests: Requests,
    alignment: int,
    least_seen: int = 1,
    begin: int | None = None,
) -> tuple[KindWorkload, ...]:
    """The kinds of the steps from `begin` on that are not hot; None: the first hot one.

    requests: of the hot steps, as planned. The kinds seen most often, at most
    MOST_KINDS, without those seen less than `least_seen` times; none where the hot
    steps are elastic, and take steps of many sizes.
    """
    if hot.elastic:
        return ()
    begin = hot.begin if begin is None else begin
    chosen = _Steps(line, hot, requests, least_seen, begin)
    numbers = range(len(chosen.kinds))
    return tuple(_kind(line, chosen, number, alignment) for number in numbers)


class _Steps:
    """Which step of the plan each recorded step stands for.

    of: per recorded step its kind (HOT or a number) and the request it begins with, for
    those that stand for one. kinds: the recorded steps of each kind. expected: per
    recorded step the place in the loop of the hot step that was due.
    """

    def __init__(
        self,
        line: Timeline,
        hot: HotSteps,
        requests: Requests,
        least_seen: int,
        begin: int,
    ) -> None:
        self.of: dict[int, tuple[int, int]] = {}
        self.expected: dict[int, int] = {}
        self.loop = np.split(requests.size, requests.starts[1:])
        self.starts = requests.starts
        period = [
            signature(line, hot.begin + i, Alike.REQUESTS) for i in range(hot.period)
        ]
        loop = period * (len(requests.starts) // hot.period)
        groups: dict[bytes, list[int]] = {}
        following = 0
        for step in range(begin, line.steps - 1):
            mark = signature(line, step, Alike.REQUESTS)
            place = _next_like(loop, following, mark)
            self.expected[step] = following
            if place is None:
                groups.setdefault(mark, []).append(step)
                continue
            self.of[step] = HOT, requests.starts[place]
            following = (place + 1) % len(loop)
        seen = [steps for steps in groups.values() if len(steps) >= least_seen]
        often = sorted(seen, key=len, reverse=True)[:MOST_KINDS]
        self.kinds = [tuple(steps) for steps in sorted(often) if line.count(steps[0])]
        for number, steps in enumerate(self.kinds):
            self.of |= dict.fromkeys(steps, (number, 0))

    def begins_as(self, line: Timeline, number: int) -> Int64Array:
        """`KindWorkload.begins_as` of a kind: which steps the loader takes it for."""
        step = self.kinds[number][0]
        place, sizes = self.expected[step], line.size[line.requests(step)]
        around = [*range(place, len(self.loop)), *range(place)]
        candidates = [(HOT, self.starts[i], self.loop[i]) for i in around]
        for kind in range(number):
            like = line.size[line.requests(self.kinds[kind][0])]
            candidates.append((kind, 0, like))
        rows: list[tuple[int, int]] = []
        for kind, first, like in candidates:
            # Later ones come into question only where they go on alike for longer.
            alike = _common(sizes, like)
            rows += [(kind, first + i) for i in range(len(rows), alike)]
        return np.array(rows, dtype=np.int64).reshape(-1, 2)


def _common(one: Int64Array, other: Int64Array) -> int:
    """How many entries the two begin with alike."""
    count = min(len(one), len(other))
    differ = np.flatnonzero(one[:count] != other[:count])
    return int(differ[0]) if len(differ) else count


def _next_like(loop: list[bytes], begin: int, mark: bytes) -> int | None:
    around = [*range(begin, len(loop)), *range(begin)]
    return next((place for place in around if loop[place] == mark), None)


def _kind(line: Timeline, chosen: _Steps, number: int, alignment: int) -> KindWorkload:
    steps = chosen.kinds[number]
    step = steps[0]
    own, (begin, _) = line.requests(step), line.span(step)
    rows = np.arange(own.start, own.stop)
    died = line.step_of(line.upper[rows])
    mine = rows[died <= step + 1]
    problem = Problem.of(
        line.lower[mine] - begin,
        line.upper[mine] - begin,
        line.size[mine],
        alignment=alignment,
        rounding=alignment,
    )
    requests = Requests.serving((0,), line.size[own], mine - own.start)
    neighbours = _neighbours(line, chosen, step, int(problem.upper.max(initial=0)))
    begins_as = chosen.begins_as(line, number)
    return KindWorkload(problem, requests, neighbours, steps, begins_as)


def _neighbours(line: Timeline, chosen: _Steps, step: int, end: int) -> Neighbours:
    """The transient blocks of the steps around it that live in ticks [0, end)."""
    begin = line.span(step)[0]
    parts = [np.empty((5, 0), dtype=np.int64)]
    for near in (step - 1, step + 1):
        if near not in chosen.of:
            continue
        kind, first = chosen.of[near]
        own = line.requests(near)
        rows = np.arange(own.start, own.stop)
        rows = rows[line.step_of(line.upper[rows]) <= min(near + 1, line.steps - 1)]
        lower = np.maximum(line.lower[rows] - begin, 0)
        upper, kinds = line.upper[rows] - begin, np.full(len(rows), kind)
        request = rows - own.start + first
        parts.append(np.stack([lower, upper, line.size[rows], kinds, request]))
    found = Neighbours(*np.concatenate(parts, axis=1))
    return found.take((found.upper > 0) & (found.lower < end))
