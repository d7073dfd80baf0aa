"""Plans made while a program runs, in a thread of their own.

A plan is made from another one, with room for larger requests or with sparse buffers
kept apart, or from a log of what the program did. Sparse buffers are those that a
program touches only in part: workspaces are often requested at their largest. Pages
that nobody touches cost nothing, unless another buffer lies there, so sparse buffers
get a part of the arena to themselves, above the others.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from memplan.applying.suitability import ALIGNMENT
from memplan.arrays import BoolArray, Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import UNMARKED, Placement, Plan
from memplan.core.problem import Problem
from memplan.core.verify import verify
from memplan.errors import MemplanError, NoPlanError
from memplan.trace.trace import Action, Columns, Trace, TraceInfo

SOLVING_SHARE = 0.01  # of the program's CPU time may go into planning
REQUEST_SECONDS = 3e-5  # about what one takes to be planned
SOLVING_SECONDS = 0.05  # and so much is free
PART = 0.75  # touched less than this, and a buffer is sparse
GAIN = 0.95  # of the arena: it must come to less than that, to be worth while
HUGE_PAGE = 1 << 21  # bytes; the sparse part begins at one


@dataclass(frozen=True)
class Made:
    """What replanning gave; plan: None if nothing."""

    reason: str
    seconds: float
    plan: Plan | None


class PlanningThread:
    """Makes one plan at a time."""

    def __init__(self) -> None:
        self._begun = time.process_time()
        self._spent = 0.0
        self._thread: threading.Thread | None = None
        self._made: Made | None = None  # set by that thread, as its last act

    def affordable(self, requests: int) -> bool:
        """Whether one more plan, made from so many requests, is."""
        allowed = SOLVING_SHARE * (time.process_time() - self._begun)
        needed = REQUEST_SECONDS * requests
        return self._spent + needed <= SOLVING_SECONDS + allowed

    @property
    def busy(self) -> bool:
        """A plan is in the making, or was not taken yet."""
        return self._made is not None or (
            self._thread is not None and self._thread.is_alive()
        )

    def start(self, reason: str, make: Callable[[], Plan | None]) -> None:
        """Begin with a plan; `make` raises MemplanError if there is none."""
        self._thread = threading.Thread(
            target=self._make, args=(reason, make), name="memplan-replan", daemon=True
        )
        self._thread.start()

    def take(self) -> Made | None:
        """What was made meanwhile, once."""
        made, self._made = self._made, None
        return made

    def join(self) -> None:
        """Wait for a plan in the making."""
        if self._thread is not None:
            self._thread.join()

    def _make(self, reason: str, make: Callable[[], Plan | None]) -> None:
        begun = time.perf_counter()
        plan = None
        try:
            plan = make()
            if plan is not None and verify(plan):
                plan = None
        except MemplanError:
            pass
        except Exception as error:  # a bug of ours must not end the program
            print(f"memplan: replanning failed: {error!r}", file=sys.stderr)
        seconds = time.perf_counter() - begun
        self._spent += seconds
        self._made = Made(reason, seconds, plan)


def sparse_buffers(plan: Plan, touched: Sequence[float]) -> BoolArray:
    """Which buffers of the hot steps are sparse, bool, shape (n,).

    touched: per request of the hot steps, the part of its pages that were, or -1.
    None at all if keeping them apart saves little.
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


def solved_apart(plan: Plan, sparse: BoolArray) -> Plan:
    """`plan` with new offsets, those of sparse buffers above all others'."""
    # Most programs never need these.
    from memplan.solving.methods import solve_problem
    from memplan.solving.options import BEST, Options

    # Milliseconds, on one core: the program needs the others.
    method, options = "bestfit", Options(priority=BEST)

    offsets = np.zeros(len(plan.problem), dtype=np.int64)
    whole = np.flatnonzero(~sparse)
    below = solve_problem(plan.problem.take(whole), method, options)
    offsets[whole] = below.offsets
    if sparse.any():
        apart = np.flatnonzero(sparse)
        floor = -(-below.peak // HUGE_PAGE) * HUGE_PAGE
        above = solve_problem(plan.problem.take(apart), method, options)
        offsets[apart] = above.offsets + floor
    return replace(
        plan.coming_from(method=method),
        hot=replace(plan.hot, offsets=offsets),
        lower_bound=lower_bound(plan.problem),
        proved_optimal=below.proved_optimal and not sparse.any(),
        warmup=None,
        stated=None,
    )


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
    return solved_apart(replace(plan, hot=hot), sparse)


def from_log(plan: Plan, log: bytes) -> Plan:
    """A plan for the steps in `log`, events as in a journal; `plan` says which program.

    Raises NoPlanError where no step repeats, or threads make them side by side: one
    arena follows one sequence of marked steps.
    """
    # Some MiB; few need it.
    from memplan.solving.from_trace import solve_trace
    from memplan.solving.options import BEST, Options
    from memplan.trace.journal import COLUMNS, ROW

    rows = np.frombuffer(log, dtype=ROW)
    if not (rows["action"] == Action.STEP).any():
        raise NoPlanError("no step ended before the log was full")
    columns = {name: rows[name] for name in COLUMNS}
    events = Columns.of(**columns, requested_size=rows["size"])
    program, device = plan.provenance.program, plan.provenance.device
    info = TraceInfo(program=program, device=device, alignment=ALIGNMENT[device])
    quick = Options(priority=BEST)
    found = solve_trace(Trace(events, info=info), "bestfit", options=quick)
    if found.lanes or found.provenance.program.marks == UNMARKED:
        raise NoPlanError("threads make steps side by side, or only requests repeat")
    return replace(found, warmup=None)
