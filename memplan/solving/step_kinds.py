"""Places for steps of other kinds, around those of the hot steps."""

from __future__ import annotations

import numpy as np

from memplan.arrays import BoolArray, Int64Array
from memplan.core.placement import StepKind
from memplan.core.plan import Plan
from memplan.core.problem import FREE, Problem
from memplan.errors import NoPlanError
from memplan.solving.greedy import ORDERS, place_around
from memplan.trace.step_kinds import HOT, KindWorkload, Neighbours


def plan_kinds(plan: Plan, kinds: tuple[KindWorkload, ...]) -> tuple[StepKind, ...]:
    """A StepKind for each, in the arena of `plan`, which has the hot steps' offsets.

    Kinds may need a larger arena than the hot steps do.
    """
    planned: list[StepKind] = []
    for kind in kinds:
        near = _obstacles(plan, planned, kind.neighbours)
        offsets = _place(kind.problem, _given(plan, planned, kind), *near)
        planned.append(StepKind(kind.problem, offsets, kind.requests, len(kind.steps)))
    return tuple(planned)


def _given(plan: Plan, planned: list[StepKind], kind: KindWorkload) -> Int64Array:
    """Offsets that buffers of `kind` get before it is known for what it is, or FREE."""
    served = _offsets_of(plan, planned, *kind.begins_as.T)
    # A buffer for each request of the kind; those of its first ones are served so.
    request = kind.requests.by_buffer()
    first = request < len(served)
    given = np.full(len(kind.problem), FREE, dtype=np.int64)
    given[first] = served[request[first]]
    return given


def _obstacles(
    plan: Plan, planned: list[StepKind], near: Neighbours
) -> tuple[Neighbours, Int64Array]:
    """The neighbours that have a place, and their offsets."""
    offsets = _offsets_of(plan, planned, near.kind, near.request)
    return near.take(offsets != FREE), offsets[offsets != FREE]


def _offsets_of(
    plan: Plan, planned: list[StepKind], kind: Int64Array, request: Int64Array
) -> Int64Array:
    """Where each request of a kind, or of the hot steps, is served; FREE if nowhere."""
    offsets = np.full(len(kind), FREE, dtype=np.int64)
    for number, placed in ((HOT, plan.hot), *enumerate(planned)):
        if placed.requests is not None:
            mine = kind == number
            placed_at = placed.requests.by_request(placed.offsets, FREE)
            offsets[mine] = placed_at[request[mine]]
    return offsets


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
    return min(tried, key=problem.peak)


def _apart(problem: Problem) -> BoolArray:
    """Which buffers with a fixed offset to keep, bool, shape (n,): one after the other,
    those that collide with none kept before."""
    kept = np.zeros(len(problem), dtype=np.bool_)
    low, high = problem.fixed, problem.fixed + problem.size
    for i in np.flatnonzero(problem.fixed != FREE):
        alive = (problem.lower < problem.upper[i]) & (problem.lower[i] < problem.upper)
        kept[i] = not (kept & alive & (low < high[i]) & (low[i] < high)).any()
    return kept
