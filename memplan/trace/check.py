"""What every trace must satisfy, whichever file it was read from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memplan.arrays import BoolArray, Int64Array
from memplan.errors import FormatError
from memplan.files import PathLike
from memplan.trace.trace import Action, Category, Columns, Mark

MAX_EVENTS = 200_000_000


@dataclass(frozen=True)
class Fault:
    """The first event that breaks a rule: its row from 0, the column, and why."""

    row: int
    column: str
    problem: str

    def __str__(self) -> str:
        return f"row {self.row}, column {self.column}: {self.problem}"


class EventCheck:
    """The rules that events must obey, for a whole trace or its pieces in turn.

    Known actions and marks, marks on steps only, at least one byte per allocation and
    never fewer than none, times from 0 that do not decrease within a thread, stack
    indexes within the table.

    rows: of the pieces that passed so far.
    """

    def __init__(self, stacks: int) -> None:
        """stacks: the length of the stack table."""
        self.rows = 0
        self._stacks = stacks
        none = Columns.of()
        # The last event of each thread so far, ascending by time.
        self._thread, self._time = none.thread, none.time_ns

    def fault(self, events: Columns) -> Fault | None:
        """The first row of the next piece that breaks the first rule broken, or None.

        Its row is the trace's. Only a piece without a fault counts as seen.
        """
        thread = np.concatenate([self._thread, events.thread])
        time_ns = np.concatenate([self._time, events.time_ns])
        earlier = _earlier(time_ns, thread)[len(self._thread) :]
        for column, bad, problem in _rules(events, self._stacks, earlier):
            if bad.any():
                row = int(np.argmax(bad))
                value = int(getattr(events, column)[row])
                words = problem.format(value=value, stacks=self._stacks)
                return Fault(self.rows + row, column, words)
        threads, last = np.unique(thread[::-1], return_index=True)
        latest = time_ns[::-1][last]
        order = np.argsort(latest, kind="stable")
        self._thread, self._time = threads[order], latest[order]
        self.rows += len(events)
        return None


def check_events(path: PathLike, events: Columns, stacks: int) -> None:
    """Raise FormatError, naming row and column, for events that break a rule.

    Also if there are more events than any reader takes.
    """
    check_count(path, len(events))
    fault = EventCheck(stacks).fault(events)
    if fault is not None:
        raise FormatError(path, str(fault), "record or convert the trace again")


def check_count(path: PathLike, count: int) -> None:
    """Raise FormatError if `count` events are more than any reader takes."""
    if count > MAX_EVENTS:
        problem = f"{count} events, more than the limit of {MAX_EVENTS}"
        raise FormatError(path, problem, "record fewer steps")


def check_index(
    path: PathLike, index: Int64Array, begin: int = 0, last: int = -1
) -> None:
    """Raise FormatError unless a file's `index` column counts up from 0 or more.

    begin, last: where the index of a piece begins, and the entry before it.
    """
    if len(index) and index[0] < 0:
        raise FormatError(path, f"row {begin}, column index: {index[0]} is negative")
    before = np.concatenate([np.array([last]), index[:-1]])[: len(index)]
    bad = index <= before
    if bad.any():
        row = int(np.argmax(bad))
        problem = f"row {begin + row}, column index: {index[row]} follows {before[row]}"
        raise FormatError(path, problem, "sort the rows by index")


def _rules(
    events: Columns, stacks: int, earlier: BoolArray
) -> Iterator[tuple[str, BoolArray, str]]:
    step = events.action == Action.STEP
    alloc = events.action == Action.ALLOC
    yield "action", events.action > max(Action), "unknown action code {value}"
    yield "mark", events.mark > max(Mark), "unknown mark code {value}"
    marked = events.mark != Mark.NONE
    yield "mark", marked & ~step, "mark code {value} on an event that is not a step"
    yield "size", events.size < 0, "{value} bytes, a negative size"
    yield "size", alloc & (events.size < 1), "an allocation of {value} bytes"
    code = (events.action == Action.LABEL) & (events.requested_size > max(Category))
    yield "requested_size", code, "unknown category code {value}"
    yield "requested_size", events.requested_size < 0, "{value} bytes, a negative size"
    yield "time_ns", events.time_ns < 0, "{value} is negative"
    late = "{value} is earlier than the event before it in the same thread"
    yield "time_ns", earlier, late
    yield "stack", events.stack < -1, "{value} is neither an index nor -1"
    unknown = "no stack {value} in the table of {stacks} stacks"
    yield "stack", events.stack >= stacks, unknown


def _earlier(time_ns: Int64Array, thread: npt.NDArray[np.int32]) -> BoolArray:
    """Which events come before the preceding event of their thread."""
    bad = np.zeros(len(time_ns), dtype=np.bool_)
    drop = time_ns[1:] < time_ns[:-1]
    if drop.any():  # threads may interleave a little out of order; each may not
        order = np.argsort(thread, kind="stable")
        same = thread[order[1:]] == thread[order[:-1]]
        late = time_ns[order[1:]] < time_ns[order[:-1]]
        bad[order[1:][same & late]] = True
    return bad
