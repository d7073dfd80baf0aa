"""Replanning while the program runs (profile-guided memory optimization, 4.3).

An elastic plan whose steps ask for more than planned is solved again for the larger
sizes. Buffers that turn out to be touched only in part are kept apart. If steps keep
making other requests altogether, some of them are recorded, and the plan made from
them takes over, with the old steps as other kinds. Solving runs in a thread of its own;
the new offsets hold from the next step on. Until then, a plan that steps depart from is
given up: it must not cost more memory or time than the default allocator does
(`memplan.applying.payoff`).

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
from typing import TYPE_CHECKING

import numpy as np

from memplan.applying.payoff import (
    DEPARTED,
    LOST,
    UNPROVEN,
    GivenUp,
    Payoff,
)
from memplan.applying.suitability import ALIGNMENT
from memplan.arrays import BoolArray, Int64Array
from memplan.core.bounds import lower_bound
from memplan.core.plan import UNMARKED, Placement, Plan
from memplan.core.problem import Problem
from memplan.core.tables import (
    ReplayArrays,
    joined,
    replay_arrays,
    room_for_departures,
)
from memplan.core.verify import verify
from memplan.errors import MemplanError, NoPlanError
from memplan.trace.trace import Action, Columns, Trace, TraceInfo

if TYPE_CHECKING:
    from memplan.applying.cuda_library import CudaReplay
    from memplan.native._alloc import Replay

PATIENCE = 3  # steps that do not fit, in a row, before others are recorded
ELASTIC_PATIENCE = 8  # of a plan whose program is known to vary
PROBING = 64  # steps at most in which it is found out what is touched
GROWING = 3  # larger steps in a row, and it grows by a rule
RECORDED_STEPS = 6
SLACK = 16  # one part in so many is added to a size that has grown
SOLVING_SHARE = 0.01  # of the program's CPU time may go into planning
REQUEST_SECONDS = 3e-5  # about what one takes to be planned
SOLVING_SECONDS = 0.05  # and so much is free
PART = 0.75  # touched less than this, and a buffer is sparse
GAIN = 0.95  # of the arena: it must come to less than that, to be worth while
HUGE_PAGE = 1 << 21  # bytes; the sparse part begins at one


@dataclass(frozen=True)
class Replan:
    """One replanning.

    step: hot steps before it took over; reason: "larger", "sparse" or "different";
    seconds: of solving; arena_bytes: from then on; adopted: False where no plan was
    found, or one that needs more than was reserved, or too late.
    """

    step: int
    reason: str
    seconds: float
    arena_bytes: int
    adopted: bool = True


class Replanner:
    """Watches how steps depart from a plan, and replaces it.

    `adopt_ready` goes before a step boundary is marked, `step_ended` after it, both in
    one thread at a time. plan: the one in force; replans, given_up: what was done so
    far, in order.
    """

    def __init__(
        self,
        plan: Plan,
        replay: Replay | CudaReplay,
        adopt: Callable[[ReplayArrays, int, int], None],
    ) -> None:
        """adopt: has `replay` go by a plan's arrays, with the arena's bytes, and those
        below which departures are placed."""
        self.plan = plan
        self._adopt = adopt
        self.replans: list[Replan] = []
        self.given_up: list[GivenUp] = []
        self._replay = replay
        self._arrays = replay_arrays(plan, warmup=False)
        self._earlier: ReplayArrays | None = None  # of plans that others took over from
        # Where the hot steps' requests begin in the native table.
        self._first = 0 if plan.warmup is None else len(plan.warmup.requests)
        self._steps = 0
        self._departed = self._lost = 0  # steps in a row
        self._requests = 0  # in the latest step
        self._prove(False)
        self._patience = PATIENCE
        self._recorded: int | None = None  # steps in the log so far
        self._grows = True
        self._grow_from = 0  # steps, before which nothing is planned for larger sizes
        self._most: Int64Array | None = None  # bytes of each request, ever
        self._larger = 0  # steps in a row with larger requests than any before
        self._payoff = Payoff(replay, plan.provenance.recorded)
        self._gave_up_for_good = False
        self._work = PlanningThread()
        self._sparse: BoolArray | None = None
        self._watch(None)

    def adopt_ready(self) -> None:
        """Have the plan that was made meanwhile, if any, hold from this boundary on."""
        made = self._work.take()
        if made is None:
            return
        plan = made.plan
        unfit = plan is None or plan.arena_bytes > self._replay.reserved_bytes
        if plan is None or unfit or self._gave_up_for_good:
            self._note(made, adopted=False)
            self._replay.unsettle(False)
            # Larger still would not fit either.
            self._grows = self._grows and made.reason != "larger"
            return
        self._grows = True
        self._departed = self._lost = 0  # until now it could not but depart
        if made.reason == "different":
            self._prove(False)
            self._earlier = self._arrays
            self._sparse = None
        arrays = replay_arrays(plan, warmup=False, sparse=self._sparse)
        arena = plan.arena_bytes
        if self._earlier is not None:
            arrays = joined(arrays, self._earlier)
            arena = max(arena, self._replay.arena_bytes)
        self.plan, self._arrays, self._first = plan, arrays, 0
        self._watch(self._sparse)
        online = room_for_departures(plan, arena, self._replay.reserved_bytes)
        self._adopt(arrays, arena, online)
        self._note(made, adopted=True, arena=arena)

    def step_ended(self) -> None:
        """Look at the steps that ended."""
        steps = self._replay.take_steps()
        if not steps:  # in the warm-up, or in a forked child, which is not served
            return
        for _, counts in steps:
            self._judge(counts)
        if not self._replay.aside and not self._payoff.pays(len(steps)):
            self._give_up("faults")
            self._gave_up_for_good = True
        if self._gave_up_for_good:
            return
        if self._sparse is None and self._steps >= self._probed and not self._work.busy:
            self._keep_sparse_apart()
        if self._recorded is not None:
            self._recorded += 1
            if self._recorded > RECORDED_STEPS and not self._work.busy:
                self._learn()
        elif self._too_many() and not self._work.busy:
            self._depart()

    def _depart(self) -> None:
        """The plan does not fit: look for another, or for whether it fits again."""
        if self._replay.aside:  # nothing came of the last look
            self._replay.stand_aside(False)
            self._departed = self._lost = 0
            self._prove(False)
            return
        if self._lost >= UNPROVEN:
            self._give_up("different")
        if self._work.affordable(RECORDED_STEPS * self._requests):
            self._begin_log()
        else:
            self._patience *= 2

    def _judge(self, counts: dict[str, int]) -> None:
        """How the plan did in one step."""
        self._steps += 1
        self._requests = counts["requests"]
        # By lifespan, whatever finds room in the arena lies as well as any other.
        arena = self.plan.lifespan_bytes
        departures = counts["fallback"] + (0 if arena else counts["online"])
        # What came as planned while no arena took it in is no departure.
        followed = counts.get("followed", 0)
        departures -= followed
        if arena and not followed and counts["fallback_bytes"] > LOST * arena:
            departures = counts["requests"]  # the few that found none are what matters
        # Larger requests are no other program.
        grows = counts["outgrown"] > 0 and self._grow()
        fits = grows or departures <= DEPARTED * counts["requests"]
        lost = not grows and departures > LOST * counts["requests"]
        self._departed = 0 if fits else self._departed + 1
        self._lost = self._lost + 1 if lost else 0
        if fits and not self._proven and counts["requests"] > 0:
            self._prove(True)

    def _prove(self, proven: bool) -> None:
        """Whether the plan fitted any step. Until then departures stay outside:
        another program's plan is not to have it filled, and then returned."""
        self._proven = proven
        self._replay.place_departures(proven)

    def _too_many(self) -> bool:
        """Whether steps departed from the plan too often in a row."""
        if not self._proven and not self._replay.aside and self._lost >= UNPROVEN:
            return True
        least = ELASTIC_PATIENCE if self.plan.elastic else 0
        return self._departed >= max(self._patience, least)

    def _give_up(self, reason: str) -> None:
        if not self._replay.aside:
            self._replay.stand_aside(True)
            self.given_up.append(GivenUp(self._steps, reason))

    def finish(self) -> None:
        """Wait for a plan in the making, which comes too late; harmless again."""
        if self._recorded is not None:
            self._replay.take_log()
            self._recorded = None
        self._work.join()
        made = self._work.take()
        if made is not None:
            self._note(made, adopted=False)

    def _watch(self, sparse: BoolArray | None) -> None:
        """Go by `sparse`; None: find out, once every hot step has come by again."""
        self._sparse = sparse
        starts = () if self.plan.hot.requests is None else self.plan.hot.requests.starts
        turn = 2 * len(starts) + 1
        self._probed = self._steps + (max(turn, PROBING) if self.plan.elastic else turn)
        # It costs large blocks their pages, once: not worth it for steps of one size.
        self._replay.unsettle(self.plan.elastic and sparse is None)

    def _grow(self) -> bool:
        """Whether requests were for more bytes than planned; then solve again."""
        if not self.plan.elastic or self.plan.hot.requests is None or not self._grows:
            return False
        begin, end = self._first, self._first + len(self.plan.hot.requests)
        most = np.array(self._replay.largest()[begin:end], dtype=np.int64)
        before = self._most
        grew = before is None or len(before) != len(most) or bool((most > before).any())
        self._larger = self._larger + 1 if grew else 0
        self._most = most
        larger_than_planned = most > self.plan.hot.requests.size
        if not larger_than_planned.any():
            return False
        # Until then its larger steps are served online. At most once in twice as many
        # steps, and with room to double for what grows by a rule.
        due = self._steps >= self._grow_from and self._work.affordable(len(most))
        if due and not self._work.busy:
            self._grow_from = 2 * self._steps
            slack = most if self._larger >= GROWING else most // SLACK
            wanted = np.where(larger_than_planned, most + slack, 0)
            plan, sparse = self.plan, self._sparse
            self._work.start("larger", lambda: larger(plan, wanted, sparse))
        return True

    def _keep_sparse_apart(self) -> None:
        assert self.plan.hot.requests is not None
        begin, end = self._first, self._first + len(self.plan.hot.requests)
        plan = self.plan
        self._sparse = sparse = sparse_buffers(plan, self._replay.touched()[begin:end])
        if sparse.any() and self._work.affordable(len(sparse)):
            self._work.start("sparse", lambda: solved_apart(plan, sparse))
        else:
            self._replay.unsettle(False)

    def _begin_log(self) -> None:
        self._recorded = 0
        self._replay.open_log()

    def _learn(self) -> None:
        log, plan = self._replay.take_log(), self.plan
        self._recorded = None
        self._departed = 0
        # A program that never settles is not to be planned over and over.
        self._patience *= 2
        self._work.start("different", lambda: from_log(plan, log))

    def _note(self, made: Made, *, adopted: bool, arena: int = 0) -> None:
        arena = arena or self._replay.arena_bytes
        self.replans.append(
            Replan(self._steps, made.reason, made.seconds, arena, adopted)
        )


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
