"""Places for steps of other kinds, around those of the hot steps."""

from __future__ import annotations

import numpy as np

from memplan.core.plan import UNPLANNED, Kind, Plan, Requests
from memplan.core.problem import FREE, Int64Array, Problem
from memplan.errors import NoPlanError
from memplan.solve.greedy import ORDERS, place_around
from memplan.trace.kinds import HOT, KindProblem, Neighbours


def plan_kinds(plan: Plan, kinds: tuple[KindProblem, ...]) -> tuple[Kind, ...]:
    """A Kind for each, in the arena of `plan`, which has the hot steps' offsets.

    Kinds may need a larger arena than the hot steps do.
    """
    planned: list[Kind] = []
    for kind in kinds:
        offsets = _place(kind.problem, *_obstacles(plan, planned, kind.neighbours))
        planned.append(Kind(kind.problem, offsets, kind.requests, len(kind.steps)))
    return tuple(planned)


def _obstacles(
    plan: Plan, planned: list[Kind], near: Neighbours
) -> tuple[Neighbours, Int64Array]:
    """The neighbours that have a place, and their offsets."""
    offsets = np.full(len(near.size), FREE, dtype=np.int64)
    hot = near.kind == HOT
    if plan.requests is not None:
        offsets[hot] = _offsets(plan.requests, plan.offsets, near.request[hot])
    for number, kind in enumerate(planned):
        mine = near.kind == number
        offsets[mine] = _offsets(kind.requests, kind.offsets, near.request[mine])
    placed = offsets != FREE
    columns = (near.lower, near.upper, near.size, near.kind, near.request)
    return Neighbours(*(column[placed] for column in columns)), offsets[placed]


def _offsets(requests: Requests, offsets: Int64Array, rows: Int64Array) -> Int64Array:
    # UNPLANNED is -1 and finds the entry appended.
    assert UNPLANNED == FREE == -1
    found: Int64Array = np.append(offsets, FREE)[requests.buffer[rows]]
    return found


def _place(problem: Problem, near: Neighbours, offsets: Int64Array) -> Int64Array:
    """Offsets of `problem`'s buffers, shape (n,); the lower of two orders' peaks."""
    count = len(problem)
    joint = Problem.of(
        np.concatenate([problem.lower, near.lower]),
        np.concatenate([problem.upper, near.upper]),
        np.concatenate([problem.size, near.size]),
        alignment=np.concatenate(
            [problem.alignment, np.ones(len(offsets), dtype=np.int64)]
        ),
        fixed=np.concatenate([np.full(count, FREE, dtype=np.int64), offsets]),
    )
    try:
        tried = [place_around(joint, order=order)[:count] for order in ORDERS]
    except NoPlanError:
        # Steps that only ask alike may free otherwise: then neighbours collide, and the
        # loader finds out who has the place.
        return _place(problem, _none(near), offsets[:0])
    return min(tried, key=lambda found: int((found + problem.size).max(initial=0)))


def _none(near: Neighbours) -> Neighbours:
    columns = (near.lower, near.upper, near.size, near.kind, near.request)
    return Neighbours(*(column[:0] for column in columns))
