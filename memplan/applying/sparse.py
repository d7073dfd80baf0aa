"""Buffers of which a program touches only a part.

Workspaces are often asked for at their largest and used in part. The pages that are
not touched cost nothing, unless another buffer had its place there: so buffers like
that get a part of the arena to themselves, above the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from memplan.arrays import BoolArray
from memplan.core.bounds import lower_bound
from memplan.core.plan import Plan

METHOD = "skyline"  # milliseconds, on one core: the program needs the others
PART = 0.75  # touched less than this, and a buffer is sparse
GAIN = 0.95  # of the arena: it must come to less than that, to be worth while
HUGE_PAGE = 1 << 21  # bytes; the sparse part begins at one


def sparse_buffers(plan: Plan, touched: Sequence[float]) -> BoolArray:
    """Which buffers of the hot steps are sparse, bool, shape (n,).

    touched: per request of the hot steps, the part of its pages that were, or -1.
    None at all where keeping them apart would save little.
    """
    assert plan.hot.requests is not None
    known = np.array(touched, dtype=np.float64)[plan.hot.requests.by_buffer()]
    parts = np.where(known < 0, 1.0, known)
    sparse: BoolArray = parts < PART
    if sparse.any():
        resident = np.ceil(plan.problem.size * parts).astype(np.int64)
        touched_only = replace(plan.problem, size=np.maximum(resident, 1))
        least = lower_bound(plan.problem.take(np.flatnonzero(~sparse)))
        least += lower_bound(touched_only.take(np.flatnonzero(sparse)))
        if least < GAIN * plan.peak:
            return sparse
    return np.zeros(len(plan.problem), dtype=np.bool_)


def solved_apart(plan: Plan, sparse: BoolArray, method: str) -> Plan:
    """`plan` with offsets found anew, those of sparse buffers above all others'."""
    from memplan.solving.methods import solve_problem  # most programs never need it

    offsets = np.zeros(len(plan.problem), dtype=np.int64)
    whole = np.flatnonzero(~sparse)
    below = solve_problem(plan.problem.take(whole), method)
    offsets[whole] = below.offsets
    if sparse.any():
        apart = np.flatnonzero(sparse)
        floor = -(-below.peak // HUGE_PAGE) * HUGE_PAGE
        above = solve_problem(plan.problem.take(apart), method)
        offsets[apart] = above.offsets + floor
    return replace(
        plan.coming_from(method=method),
        hot=replace(plan.hot, offsets=offsets),
        lower_bound=lower_bound(plan.problem),
        proved_optimal=below.proved_optimal and not sparse.any(),
        warmup=None,
        stated=None,
    )
