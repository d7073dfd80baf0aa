"""Planning anew while the program runs (profile-guided memory optimization, 4.3).

An elastic plan whose steps ask for more than planned is solved again for the larger
sizes. Where buffers turn out to be touched only in part, they are kept apart. Where
steps ask for something else altogether, again and again, some of them are recorded,
and the plan made from them takes over, with the old steps as other kinds.
Solving happens in a thread of its own; the new offsets hold from the next step on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from memplan.apply.sparse import BoolArray, solved_apart, sparse_buffers
from memplan.apply.tables import ReplayArrays, joined, replay_arrays
from memplan.core.plan import UNPLANNED, Plan
from memplan.core.problem import Int64Array, Problem
from memplan.core.verify import verify
from memplan.errors import MemplanError
from memplan.solve.program import solve_trace
from memplan.trace.trace import Columns, Trace, TraceInfo

if TYPE_CHECKING:
    from memplan.native._alloc import Replay

METHOD = "skyline"  # milliseconds, on one core: the program needs the others
DEPARTED = 0.05  # of a step's requests: more than that, and the plan does not fit it
PATIENCE = 3  # such steps in a row before others are recorded
RECORDED_STEPS = 6


@dataclass(frozen=True)
class Replan:
    """One time the plan was made anew.

    step: hot steps so far; reason: "larger", "sparse" or "different"; seconds: of
    solving;
    arena_bytes: from then on; adopted: False where no better plan was found.
    """

    step: int
    reason: str
    seconds: float
    arena_bytes: int
    adopted: bool = True


class Replanner:
    """Watches how steps depart from a plan, and replaces it.

    plan: the one in force; replans: what was done so far, in order.
    """

    def __init__(self, plan: Plan, replay: Replay) -> None:
        self.plan = plan
        self.replans: list[Replan] = []
        self._replay = replay
        self._arrays = replay_arrays(plan, warmup=False)
        # Where the hot steps' requests begin in the native table.
        self._first = 0 if plan.warmup is None else len(plan.warmup.requests)
        self._steps = 0
        self._departed = 0  # steps in a row
        self._patience = PATIENCE
        self._recorded: int | None = None  # steps in the log so far
        self._work: threading.Thread | None = None
        self._sparse: BoolArray | None = None  # None: not looked at yet
        self._probed = 2 * len(plan.requests.starts) + 1 if plan.requests else 0
        # Until it is known which buffers are sparse.
        replay.unsettle(plan.elastic)

    def step_ended(self) -> None:
        """Look at the steps that ended; called at every boundary."""
        for _, counts in self._replay.take_steps():
            self._steps += 1
            departures = counts["online"] + counts["fallback"]
            fits = departures <= DEPARTED * counts["requests"]
            self._departed = 0 if fits else self._departed + 1
            if departures and self.plan.elastic and not self._busy():
                self._grow()
        if self._sparse is None and self._steps >= self._probed and not self._busy():
            self._keep_sparse_apart()
        if self._recorded is not None:
            self._recorded += 1
            if self._recorded > RECORDED_STEPS and not self._busy():
                self._learn()
        elif self._departed >= self._patience and not self._busy():
            self._begin_log()

    def finish(self) -> None:
        """Wait for a plan in the making."""
        if self._work is not None:
            self._work.join()

    def _busy(self) -> bool:
        return self._work is not None and self._work.is_alive()

    def _start(self, reason: str, make: Callable[[], Plan | None]) -> None:
        self._work = threading.Thread(
            target=self._make, args=(reason, make), name="memplan-replan", daemon=True
        )
        self._work.start()

    def _grow(self) -> None:
        """Solve again if a request was for more bytes than planned."""
        assert self.plan.requests is not None
        begin, end = self._first, self._first + len(self.plan.requests)
        most = np.array(self._replay.largest()[begin:end], dtype=np.int64)
        if (most > self.plan.requests.size).any():
            plan, sparse = self.plan, self._sparse
            self._start("larger", lambda: larger(plan, most, sparse))

    def _keep_sparse_apart(self) -> None:
        assert self.plan.requests is not None
        begin, end = self._first, self._first + len(self.plan.requests)
        plan = self.plan
        self._sparse = sparse = sparse_buffers(plan, self._replay.touched()[begin:end])
        if sparse.any():
            self._start("sparse", lambda: solved_apart(plan, sparse, METHOD))
        else:
            self._replay.unsettle(False)

    def _begin_log(self) -> None:
        from memplan.native import _alloc

        self._recorded = 0
        _alloc.open_log()

    def _learn(self) -> None:
        from memplan.native import _alloc

        rows = _alloc.take_log()
        self._recorded = None
        self._departed = 0
        # A program that never settles is not to be planned over and over.
        self._patience *= 2
        plan = self.plan
        self._start("different", lambda: from_log(plan, rows))

    def _make(self, reason: str, make: Callable[[], Plan | None]) -> None:
        begun = time.perf_counter()
        try:
            plan = make()
        except MemplanError:
            plan = None
        seconds = time.perf_counter() - begun
        fits = plan is not None and plan.arena_bytes <= self._replay.reserved_bytes
        if plan is None or not fits or verify(plan):
            arena = self._replay.arena_bytes
            self.replans.append(Replan(self._steps, reason, seconds, arena, False))
            return
        sparse = None if reason == "different" else self._sparse
        arrays = replay_arrays(plan, warmup=False, sparse=sparse)
        arena = plan.arena_bytes
        if reason == "different":
            arrays = joined(arrays, self._arrays)
            arena = max(arena, self._replay.arena_bytes)
            self._sparse = None
        self._adopt(plan, arrays, arena)
        self.replans.append(Replan(self._steps, reason, seconds, arena))

    def _adopt(self, plan: Plan, arrays: ReplayArrays, arena: int) -> None:
        online = self._replay.reserved_bytes if plan.elastic else arena
        self.plan, self._arrays, self._first = plan, arrays, 0
        self._replay.adopt(arrays.table(arena, online))
        self._replay.unsettle(False)


def larger(plan: Plan, most: Int64Array, sparse: BoolArray | None = None) -> Plan:
    """`plan` with room for requests of `most` bytes each, where that is more.

    sparse: buffers to keep apart, if any.
    """
    assert plan.requests is not None
    requests, problem = plan.requests, plan.problem
    sizes = np.maximum(requests.size, most)
    planned = requests.buffer != UNPLANNED
    size = problem.size.copy()
    size[requests.buffer[planned]] = sizes[planned]
    grown = Problem.of(
        problem.lower,
        problem.upper,
        size,
        alignment=problem.alignment,
        length=problem.length,
    )
    roomy = replace(plan, problem=grown, requests=replace(requests, size=sizes))
    none = np.zeros(len(grown), dtype=np.bool_)
    return solved_apart(roomy, none if sparse is None else sparse, METHOD)


def from_log(plan: Plan, rows: list[tuple[int, int, int, int, int, int]]) -> Plan:
    """A plan for the steps in `rows`: (ns, address, bytes, thread, Action, Mark) each.

    Raises NoPlanError where no step repeats.
    """
    columns = np.array(rows, dtype=object).reshape(-1, 6).T
    time_ns, address, size, thread, action, mark = columns
    events = Columns.of(
        time_ns=time_ns.astype(np.int64),
        address=address.astype(np.uint64),
        size=size.astype(np.int64),
        requested_size=size.astype(np.int64),
        thread=thread.astype(np.int32),
        action=action.astype(np.uint8),
        mark=mark.astype(np.uint8),
    )
    found = solve_trace(Trace(events, info=TraceInfo(program=plan.program)), METHOD)
    return replace(found, warmup=None)
