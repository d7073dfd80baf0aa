"""A plan on the page: where it puts each buffer, and where that lay before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.placement import Placement
from memplan.core.plan import Plan
from memplan.errors import InputError, NoPlanError
from memplan.trace.liveness import step_problem
from memplan.trace.steps import timeline
from memplan.trace.trace import Trace

NOWHERE = -1  # a buffer of the plan that is none of the trace's


@dataclass(frozen=True, eq=False)
class Placed:
    """A placement as it is drawn; columns of shape (m,), a box each.

    A buffer that wraps around has two boxes. rows: the buffer of the trace that each
    box stands for, or NOWHERE. length: of the clock, ticks.
    """

    name: str
    length: int
    left: Int64Array
    right: Int64Array
    bottom: Int64Array
    size: Int64Array
    rows: Int64Array
    peak: int


def placements_of(plan: Plan, trace: Trace) -> list[Placed]:
    """All placements of `plan`, the hot steps' first.

    Raises InputError where the plan was not made from `trace`.
    """
    found = [_boxes("the hot step", plan.hot, _buffers_of(plan, trace))]
    if plan.warmup is not None and len(plan.warmup.problem):
        found.append(_boxes("the steps before", plan.warmup, None))
    for i, kind in enumerate(plan.kinds):
        if len(kind.problem):
            found.append(_boxes(f"another kind of step, {i + 1}", kind, None))
    return found


def _buffers_of(plan: Plan, trace: Trace) -> Int64Array | None:
    """The buffer of the trace that each buffer of the hot steps stands for.

    None where they are nobody's in particular: those of threads that take turns.
    """
    step = plan.provenance.source.step
    try:
        found = step_problem(trace, step)
    except NoPlanError as error:
        raise InputError(f"the plan was made from another trace: {error}") from None
    if found.problem.fingerprint() != plan.problem.fingerprint():
        raise InputError(
            f"the plan was made from another trace: its hot step has "
            f"{len(plan.problem):,} buffers, this trace's {len(found.problem):,} "
            "others; name the trace that it was made from"
        )
    if found.together is not None or found.unmarked:
        return None
    first = 0
    if found.hot is not None:
        first = timeline(trace).requests(found.hot.begin).start
    return first + found.requests.by_buffer()


def _boxes(name: str, placed: Placement, rows: Int64Array | None) -> Placed:
    problem = placed.problem
    length = problem.length
    end = int(problem.upper.max(initial=1)) if length is None else length
    wraps = problem.wraps
    again = np.flatnonzero(wraps & (problem.upper > 0))
    owner = np.concatenate([np.arange(len(problem)), again])
    left = np.concatenate([problem.lower, np.zeros(len(again), dtype=np.int64)])
    right = np.concatenate([np.where(wraps, end, problem.upper), problem.upper[again]])
    if rows is None:
        rows = np.full(len(problem), NOWHERE, dtype=np.int64)
    return Placed(
        name=name,
        length=end,
        left=left,
        right=right,
        bottom=placed.offsets[owner],
        size=problem.size[owner],
        rows=rows[owner],
        peak=placed.peak,
    )
