"""Places for steps of other kinds, around those of the hot steps."""

from __future__ import annotations

import numpy as np

from memplan.arrays import BoolArray, Int64Array
from memplan.core.plan import UNPLANNED, Kind, Plan, Requests
from memplan.core.problem import FREE, Problem
from memplan.errors import NoPlanError
from memplan.solving.greedy import ORDERS, place_around
from memplan.trace.step_kinds import HOT, KindProblem, Neighbours


def plan_kinds(plan: Plan, kinds: tuple[KindProblem, ...]) -> tuple[Kind, ...]:
    """A Kind for each, in the arena of `plan`, which has the hot steps' offsets.

    Kinds may need a larger arena than the hot steps do.
    """
    planned: list[Kind] = []
    for kind in kinds:
        near = _obstacles(plan, planned, kind.neighbours)
        offsets = _place(kind.problem, _given(plan, planned, kind), *near)
        planned.append(Kind(kind.problem, offsets, kind.requests, len(kind.steps)))
    return tuple(planned)


def _given(plan: Plan, planned: list[Kind], kind: KindProblem) -> Int64Array:
    """Offsets that buffers of `kind` get before it is known for what it is, or FREE."""
    count = len(kind.begins_as)
    served = _offsets_of(plan, planned, *kind.begins_as.T)
    buffer = kind.requests.buffer[:count]
    own = buffer != UNPLANNED
    given = np.full(len(kind.problem), FREE, dtype=np.int64)
    given[buffer[own]] = served[own]
    return given


def _obstacles(
    plan: Plan, planned: list[Kind], near: Neighbours
) -> tuple[Neighbours, Int64Array]:
    """The neighbours that have a place, and their offsets."""
    offsets = _offsets_of(plan, planned, near.kind, near.request)
    return near.take(offsets != FREE), offsets[offsets != FREE]


def _offsets_of(
    plan: Plan, planned: list[Kind], kind: Int64Array, request: Int64Array
) -> Int64Array:
    """Where each request of a kind, or of the hot steps, is served; FREE if nowhere."""
    offsets = np.full(len(kind), FREE, dtype=np.int64)
    hot = kind == HOT
    if plan.requests is not None:
        offsets[hot] = _offsets(plan.requests, plan.offsets, request[hot])
    for number, other in enumerate(planned):
        mine = kind == number
        offsets[mine] = _offsets(other.requests, other.offsets, request[mine])
    return offsets


def _offsets(requests: Requests, offsets: Int64Array, rows: Int64Array) -> Int64Array:
    # UNPLANNED is -1 and finds the entry appended.
    assert UNPLANNED == FREE == -1
    found: Int64Array = np.append(offsets, FREE)[requests.buffer[rows]]
    return found


def _place(
    problem: Problem, given: Int64Array, near: Neighbours, offsets: Int64Array
) -> Int64Array:
    """Offsets of `problem`'s buffers, shape (n,); the lower of two orders' peaks."""
    joint = Problem.of(
        np.concatenate([problem.lower, near.lower]),
        np.concatenate([problem.upper, near.upper]),
        np.concatenate([problem.size, near.size]),
        alignment=np.concatenate(
            [problem.alignment, np.ones(len(offsets), dtype=np.int64)]
        ),
        fixed=np.concatenate([given, offsets]),
    )
    count = len(problem)
    try:
        tried = [place_around(joint, order=order)[:count] for order in ORDERS]
    except NoPlanError:
        # Steps that only ask alike may free otherwise: then neighbours collide, and the
        # loader finds out who has the place.
        apart = _apart(joint)
        given = np.where(apart[:count], given, FREE)
        kept = apart[count:]
        return _place(problem, given, near.take(kept), offsets[kept])
    return min(tried, key=lambda found: int((found + problem.size).max(initial=0)))


def _apart(problem: Problem) -> BoolArray:
    """Which buffers with a fixed offset to keep, bool, shape (n,): one after the other,
    those that collide with none kept before."""
    kept = np.zeros(len(problem), dtype=np.bool_)
    low, high = problem.fixed, problem.fixed + problem.size
    for i in np.flatnonzero(problem.fixed != FREE):
        alive = (problem.lower < problem.upper[i]) & (problem.lower[i] < problem.upper)
        kept[i] = not (kept & alive & (low < high[i]) & (low[i] < high)).any()
    return kept
