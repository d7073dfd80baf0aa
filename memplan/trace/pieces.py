"""A trace piece by piece: never more of it in memory than one piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from memplan.arrays import Int64Array
from memplan.trace.lives import OpenBlocks
from memplan.trace.trace import Action, Columns, Mark


class Summary:
    """What a trace holds, counted piece by piece.

    events: how many. peak_live: the most bytes alive at any moment, exact sizes.
    failed: how many requests failed; failed_bytes: of the last of them.
    """

    def __init__(self) -> None:
        self.events = 0
        self.peak_live = 0
        self.failed = self.failed_bytes = 0
        self._live = 0
        self._marks = np.zeros(max(Mark) + 1, dtype=np.int64)

    @classmethod
    def of(cls, events: Columns) -> Summary:
        """Of a whole trace's events."""
        summary = cls()
        summary.add(events, OpenBlocks().freed(events))
        return summary

    def add(self, events: Columns, freed: Int64Array) -> None:
        """Count one more piece. freed: as `OpenBlocks.freed` has it."""
        made = events.action == Action.ALLOC
        change = np.where(made, events.requested_size, -np.maximum(freed, 0))
        live = self._live + np.cumsum(change)
        self.events += len(events)
        self.peak_live = max(self.peak_live, int(live.max(initial=0)))
        self._live = int(live[-1]) if len(live) else self._live
        failed = events.requested_size[events.action == Action.OOM]
        self.failed += len(failed)
        self.failed_bytes = int(failed[-1]) if len(failed) else self.failed_bytes
        marks = events.mark[events.action == Action.STEP]
        self._marks += np.bincount(marks, minlength=len(self._marks))

    @property
    def mark(self) -> Mark:
        """The kind of boundary to go by, as `strongest_mark` has it."""
        return Mark(max(np.flatnonzero(self._marks).tolist(), default=Mark.NONE))

    @property
    def steps(self) -> int:
        """How often that boundary came."""
        return int(self._marks[self.mark]) if self.mark is not Mark.NONE else 0


def regrouped(pieces: Iterable[Columns], rows: int) -> Iterator[Columns]:
    """The same events in pieces of `rows` each, the last one shorter.

    At least one piece, though it may be empty.
    """
    waiting: list[Columns] = []
    count, given = 0, False
    for piece in pieces:
        begin = 0
        while count + len(piece) - begin >= rows:
            end = begin + rows - count
            waiting.append(piece.take(slice(begin, end)))
            group, waiting = Columns.joined(waiting), []
            yield group
            del group  # before the next one is gathered
            begin, count, given = end, 0, True
        waiting.append(piece.take(slice(begin, None)))
        count += len(piece) - begin
    if count or not given:
        yield Columns.joined(waiting or [Columns.of()])
