"""Plans made from other plans, or from what a program was seen to do under one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memplan.applying.sparse import METHOD, solved_apart
from memplan.applying.suitability import ALIGNMENT
from memplan.arrays import BoolArray, Int64Array
from memplan.core.placement import Placement
from memplan.core.plan import UNMARKED, Plan
from memplan.core.problem import Problem
from memplan.errors import NoPlanError
from memplan.trace.trace import Action, Columns, Trace, TraceInfo


def larger(plan: Plan, wanted: Int64Array, sparse: BoolArray | None = None) -> Plan:
    """`plan` with room for requests of `wanted` bytes each, where that is more.

    sparse: buffers to keep apart, if any.
    """
    assert plan.hot.requests is not None
    requests, problem = plan.hot.requests, plan.problem
    sizes = np.maximum(wanted, requests.size)
    grown = Problem.of(
        problem.lower,
        problem.upper,
        sizes[requests.by_buffer()],
        alignment=problem.alignment,
        length=problem.length,
        rounding=problem.rounding,
    )
    hot = Placement(grown, plan.offsets, replace(requests, size=sizes))
    none = np.zeros(len(grown), dtype=np.bool_)
    sparse = none if sparse is None else sparse
    return solved_apart(replace(plan, hot=hot), sparse, METHOD)


def from_log(plan: Plan, log: bytes) -> Plan:
    """A plan for the steps in `log`, events as in a journal; `plan` says which program.

    Raises NoPlanError where no step repeats, or threads make them side by side: one
    arena follows one sequence of marked steps.
    """
    # Some MiB; few need it.
    from memplan.solving.from_trace import solve_trace
    from memplan.trace.journal import COLUMNS, ROW

    rows = np.frombuffer(log, dtype=ROW)
    if not (rows["action"] == Action.STEP).any():
        raise NoPlanError("no step ended before the log was full")
    columns = {name: rows[name] for name in COLUMNS}
    events = Columns.of(**columns, requested_size=rows["size"])
    program, device = plan.provenance.program, plan.provenance.device
    info = TraceInfo(program=program, device=device, alignment=ALIGNMENT[device])
    found = solve_trace(Trace(events, info=info), METHOD)
    if found.lanes or found.provenance.program.marks == UNMARKED:
        raise NoPlanError("threads make steps side by side, or only requests repeat")
    return replace(found, warmup=None)
