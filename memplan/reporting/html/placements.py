"""A plan on the page: where it puts each buffer, and where that lay before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memplan.arrays import Int64Array
from memplan.core.plan import Placement, Plan, Requests
from memplan.errors import InputError, NoPlanError
from memplan.trace.liveness import StepWorkload, step_problem
from memplan.trace.lives import Lives, lives_of
from memplan.trace.steps import unmarked_steps
from memplan.trace.trace import Trace

NOWHERE = -1  # a buffer of the plan that is none of the trace's


@dataclass(frozen=True, eq=False)
class Placed:
    """A placement as it is drawn; columns of shape (m,), a box each.

    A buffer that wraps around has two boxes. rows: the buffer of the trace that each
    box stands for, or NOWHERE. compared: whether where these lay is worth a picture.
    length: of the clock, ticks.
    """

    name: str
    length: int
    left: Int64Array
    right: Int64Array
    bottom: Int64Array
    size: Int64Array
    rows: Int64Array
    peak: int
    compared: bool


def placements_of(plan: Plan, trace: Trace) -> list[Placed]:
    """All placements of `plan`, the hot steps' first.

    Raises InputError where the plan was not made from `trace`.
    """
    work = _workload_of(plan, trace)
    # Of threads that take turns, each buffer is nobody's in particular.
    line = None if work.together is not None else lives_of(trace)
    if line is not None and work.unmarked:
        line = unmarked_steps(line)
    first = 0
    if line is not None and work.hot is not None:
        first = line.requests(work.hot.begin).start
    own = _rows(work.requests, line, first, plan.elastic)
    hot = "a thread's step" if plan.lanes else "the hot step"
    found = [_boxes(hot, plan.hot, own, compared=own is not None)]
    if plan.warmup is not None and len(plan.warmup.problem):
        rows = _rows(plan.warmup.requests, line, 0)
        found.append(_boxes("the steps before", plan.warmup, rows))
    firsts = [kind.steps[0] for kind in work.kinds]
    alike = len(firsts) == len(plan.kinds)
    for i, kind in enumerate(plan.kinds):
        if len(kind.problem):
            rows = None
            if line is not None and alike:
                rows = _rows(kind.requests, line, line.requests(firsts[i]).start)
            found.append(_boxes(f"another kind of step, {i + 1}", kind, rows))
    return found


def _workload_of(plan: Plan, trace: Trace) -> StepWorkload:
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
    return found


def _rows(
    requests: Requests | None, line: Lives | None, first: int, elastic: bool = False
) -> Int64Array | None:
    """The buffers of the trace that those of a placement stand for, in their order.

    Its requests are the allocations's from `first` on; None where that is not known, or
    the trace asked there for something else (but less, where the plan is elastic).
    """
    if requests is None or line is None:
        return None
    mine = requests.by_buffer()
    rows = first + mine
    if rows.max(initial=-1) >= len(line.size):
        return None
    same = line.size[rows] == requests.size[mine]
    return rows if elastic or same.all() else None


def _boxes(
    name: str, placed: Placement, rows: Int64Array | None, compared: bool = False
) -> Placed:
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
        compared=compared,
    )


def closed_up(
    device: npt.NDArray[np.int16],
    address: npt.NDArray[np.uint64],
    size: Int64Array,
) -> Int64Array:
    """Where each block begins when no unused address lies between, bytes, shape (n,).

    Blocks that share an address share a place; those of a device keep their order, and
    devices follow one another. An address that no block ever covered takes up nothing.
    """
    place = np.zeros(len(address), dtype=np.int64)
    base = 0
    for one in np.unique(device):
        rows = np.flatnonzero(device == one)
        order = rows[np.argsort(address[rows], kind="stable")]
        begin = address[order] - address[order[0]]
        end = np.maximum.accumulate(begin + size[order].astype(np.uint64))
        unused = np.zeros(len(order), dtype=np.int64)
        # Unsigned: what does not reach the block before would wrap around.
        apart = begin[1:] > end[:-1]
        unused[1:][apart] = (begin[1:][apart] - end[:-1][apart]).astype(np.int64)
        place[order] = base + begin.astype(np.int64) - np.cumsum(unused)
        base = int((place[order] + size[order]).max())
    return place
