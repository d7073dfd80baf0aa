"""Buffers of which a program touches only a part.

Workspaces are often asked for at their largest and used in part. The pages that are
not touched cost nothing, unless another buffer had its place there: so buffers like
that get a part of the arena to themselves, above the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from memplan.core.bounds import lower_bound
from memplan.core.plan import UNPLANNED, Plan
from memplan.core.problem import Int64Array, Problem
from memplan.solve.methods import solve_problem

BoolArray = npt.NDArray[np.bool_]

PART = 0.75  # touched less than this, and a buffer is sparse
GAIN = 0.95  # of the arena: it must come to less than that, to be worth while
PAGE = 1 << 21  # bytes; where the sparse part begins


def sparse_buffers(plan: Plan, touched: Sequence[float]) -> BoolArray:
    """Which buffers of the hot steps are sparse, bool, shape (n,).

    touched: per request of the hot steps, the part of its pages that were, or -1.
    None at all where keeping them apart would save little.
    """
    assert plan.requests is not None
    parts = np.ones(len(plan.problem))
    planned = plan.requests.buffer != UNPLANNED
    known = np.array(touched, dtype=np.float64)[planned]
    parts[plan.requests.buffer[planned]] = np.where(known < 0, 1.0, known)
    sparse: BoolArray = parts < PART
    if sparse.any():
        least = lower_bound(_chosen(plan.problem, ~sparse))
        resident = np.ceil(plan.problem.size * parts).astype(np.int64)
        least += lower_bound(_chosen(plan.problem, sparse, resident))
        if least < GAIN * plan.peak:
            return sparse
    return np.zeros(len(plan.problem), dtype=np.bool_)


def solved_apart(plan: Plan, sparse: BoolArray, method: str) -> Plan:
    """`plan` with offsets found anew, those of sparse buffers above all others'."""
    offsets = np.zeros(len(plan.problem), dtype=np.int64)
    floor, bound, proved = 0, 0, True
    for chosen in (~sparse, sparse):
        if not chosen.any():
            continue
        found = solve_problem(_chosen(plan.problem, chosen), method)
        offsets[chosen] = found.offsets + floor
        floor = -(-(floor + found.peak) // PAGE) * PAGE
        bound = lower_bound(plan.problem)
        proved = found.proved_optimal and not sparse.any()
    return replace(
        plan,
        offsets=offsets,
        method=method,
        lower_bound=bound,
        proved_optimal=proved,
        warmup=None,
        stated=None,
    )


def _chosen(
    problem: Problem, chosen: BoolArray, size: Int64Array | None = None
) -> Problem:
    return Problem.of(
        problem.lower[chosen],
        problem.upper[chosen],
        (problem.size if size is None else np.maximum(size, 1))[chosen],
        alignment=problem.alignment[chosen],
        length=problem.length,
    )
