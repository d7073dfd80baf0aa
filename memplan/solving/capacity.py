"""Whether a program fits: what a capacity is compared with, beside the plan's arena.

A plan holds the transient buffers of the hot step. A device must hold as well what
outlives steps, and a machine the rest of the process, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from memplan.core.plan import UNMARKED, Plan
from memplan.core.problem import Problem
from memplan.errors import InfeasibleError, NoPlanError, UsageError, as_options
from memplan.solving.methods import both_ways
from memplan.solving.options import Options
from memplan.solving.outlook import beside_tensors, default_heaps, unplanned_bytes
from memplan.trace.liveness import step_problem
from memplan.trace.lives import lives_of
from memplan.trace.streams import one_stream
from memplan.trace.trace import Action, Trace
from memplan.units import format_bytes

CapacityOf = Literal["arena", "live", "process"]


@dataclass(frozen=True)
class Room:
    """A capacity, and what takes it up. Bytes, all of them.

    of: what is compared: the planned arena alone; with what is live outside it; or all
    of the process. outliving: of tensors outside the plan, which outlive their steps;
    beyond: of the process beside its tensors; other_streams: live at most on streams
    that the plan does not serve. live: of tensors at once in the recording, a failed
    request with them; 0 of a bare problem. Those that are not compared are 0. failed:
    of the last request that failed; whole: whether the recording is, from begin to end.
    """

    capacity: int
    of: CapacityOf
    outliving: int = 0
    beyond: int = 0
    other_streams: int = 0
    live: int = 0
    failed: int = 0
    whole: bool = True

    @property
    def outside(self) -> int:
        """What is compared beside the arena."""
        return self.outliving + self.beyond + self.other_streams

    @property
    def at_once(self) -> bool:
        """Whether all that is outside is there at one time for sure: of two parts that
        vary, each may be at its most when the other is not."""
        return not (self.outliving and self.other_streams)

    def needed(self, plan: Plan) -> int:
        """What is compared with the capacity: no less than was live at once."""
        return max(plan.arena_bytes + self.outside, self.live + self.beyond)


def room_for(
    source: Trace | Problem, capacity: int, of: CapacityOf | None, step: str = "hot"
) -> Room:
    """What is compared with `capacity` bytes; of a trace "live", of a problem "arena".

    Raises UsageError where `of` asks for what `source` does not tell, and what
    `step_problem` raises for a step that is not there.
    """
    if isinstance(source, Problem):
        if of not in (None, "arena"):
            text = f'capacity_of="{of}" needs a trace: a problem is its arena alone'
            raise UsageError(text, shell=as_options(text))
        return Room(capacity, "arena")
    if of == "arena":
        return Room(capacity, "arena")
    measured = source.info.run.peak_rss_bytes
    if of == "process" and (source.info.device != "cpu" or not measured):
        text = (
            'capacity_of="process" needs a recording of a program on the CPU, whose '
            'resident memory was measured; capacity_of="live" counts its tensors'
        )
        raise UsageError(text, shell=as_options(text))
    planned = one_stream(source)
    marks = UNMARKED if step_problem(planned, step).unmarked else ""
    events = source.events
    failed = events.requested_size[events.action == Action.OOM]
    room = Room(
        capacity,
        of or "live",
        outliving=unplanned_bytes(planned, marks, step),
        other_streams=_live_beside(source, planned),
        live=_most_live(source),
        failed=int(failed[-1]) if len(failed) else 0,
        whole=source.info.complete and not source.info.dropped_events,
    )
    if of != "process":
        return room
    return replace(room, beyond=beside_tensors(source, *default_heaps(source))[1])


def solve_within(
    room: Room, options: Options, attempt: Callable[[Options], Plan]
) -> Plan:
    """A plan with which all that is compared keeps within the capacity.

    options: without a capacity of their own. attempt: solves with options, and raises
    what `solve` does. Raises InfeasibleError if it is proved that there is none,
    NoPlanError if none was found, or what is outside need not be there at once.
    """
    if room.live + room.beyond > room.capacity:
        raise InfeasibleError(
            f"does not fit: the recorded program holds {_compared(room)} at once, "
            f"whatever the plan, and the capacity is {both_ways(room.capacity)}"
        )
    if room.failed:
        text = (
            f"unknown: a request for {both_ways(room.failed)} failed in this "
            "recording, and what its program needs after that is not in it; record it "
            'where it runs through, or with device="fake"'
        )
        raise NoPlanError(text, shell=as_options(text))
    left = room.capacity - room.outside
    if left < 0 and not room.at_once:
        raise NoPlanError(
            f"unknown: {_outside(room)} takes {both_ways(room.outside)} if all of it "
            f"is there at once, and the capacity is {both_ways(room.capacity)}"
        )
    if left < 0:
        raise InfeasibleError(
            f"does not fit: {_outside(room)} takes {both_ways(room.outside)}, whatever "
            f"the plan, and the capacity is {both_ways(room.capacity)}"
        )
    try:
        plan = attempt(replace(options, capacity=left))
        if plan.arena_bytes > left:  # other steps, or threads, need more: do one's best
            plan = attempt(options)
    except NoPlanError as error:
        raise _told(error, room) from None
    if plan.arena_bytes > left:
        unknown = NoPlanError(
            f"unknown: no plan was found within {both_ways(left)} for all steps and "
            f"threads; the best one's arena takes {both_ways(plan.arena_bytes)}",
            plan.arena_bytes,
            plan.lower_bound,
        )
        raise _told(unknown, room)
    return plan


def _told(error: NoPlanError, room: Room) -> NoPlanError:
    """`error`, with what the capacity has to hold beside the arena."""
    if not room.outside:
        return error
    text = (
        f"{error}; that is what {_outside(room)} leaves of a capacity of "
        f"{both_ways(room.capacity)}"
    )
    if isinstance(error, InfeasibleError) and not room.at_once:
        text = f"unknown: if all of that is there at once, it {text}"
        return NoPlanError(text, error.peak, error.lower_bound)
    return type(error)(text, error.peak, error.lower_bound)


def _outside(room: Room) -> str:
    parts = [
        (room.outliving, "that outlive their steps"),
        (room.other_streams, "on other streams"),
        (room.beyond, "of the process beside its tensors"),
    ]
    named = [f"{format_bytes(size)} {what}" for size, what in parts if size]
    return "what is outside the arena" + (f" ({', '.join(named)})" if named else "")


def _compared(room: Room) -> str:
    text = f"{both_ways(room.live)} of tensors"
    if room.beyond:
        text += f" and {both_ways(room.beyond)} beside them"
    return text


def _live_beside(trace: Trace, planned: Trace) -> int:
    """The most bytes alive at once that are not of the stream that is planned."""
    if planned is trace:
        return 0
    stream = int(planned.events.stream[planned.events.action == Action.ALLOC][0])
    others = trace.events.stream != stream
    rows = np.flatnonzero(others & (trace.events.action != Action.OOM))
    return _most_live(replace(trace, events=trace.events.take(rows)))


def _most_live(trace: Trace) -> int:
    """The most bytes alive at once, counting what a failed request asked for."""
    failed = trace.events.action == Action.OOM
    asked = np.where(failed, trace.events.requested_size, 0)
    return int((lives_of(trace).live_bytes + asked).max(initial=0))
