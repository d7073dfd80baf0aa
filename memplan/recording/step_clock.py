"""When a program's steps began, and what it had used of the machine by then."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from memplan.native import _alloc
from memplan.trace.trace import Mark

# A boundary: monotonic ns, page faults so far, the Mark, ns of CPU time of all threads.
Boundary = tuple[int, int, int, int]
_FIELDS = 4
MOST = 1 << 17  # boundaries kept; a program that runs for days has many
# To ask the system what was used takes a step of 0.3 ms 5 µs, and more where others use
# the core, too: of steps that are shorter not all are asked for.
LOOK_NS = 4_000_000
_UNKNOWN = -1


class StepClock:
    """Notes step boundaries; of very many, the later ones are kept.

    Page faults and CPU time are asked for every LOOK_NS at most; to the boundaries
    between they are shared out by time.
    """

    def __init__(self, most: int = MOST, look_ns: int = LOOK_NS) -> None:
        self._most = most
        self._look_ns = look_ns
        self._next_look = 0  # monotonic ns
        self._rows = array("q")
        self._noted = [0] * (max(Mark) + 1)  # by mark: its hash is Python's, and slow

    def note(self, mark: Mark) -> None:
        """A step begins. Any thread may say so."""
        time_ns = _alloc.monotonic_ns()
        faults = cpu = _UNKNOWN
        if time_ns >= self._next_look:
            time_ns, faults, cpu = _alloc.step_usage()
            self._next_look = time_ns + self._look_ns
        # In one call: no other thread's comes between these four.
        self._rows.extend((time_ns, faults, mark, cpu))
        self._noted[mark] += 1
        if len(self._rows) >= _FIELDS * self._most:
            del self._rows[: _FIELDS * (self._most // 2)]

    @classmethod
    def of_turns(cls, count: int, turns: Iterable[tuple[int, int, int]]) -> StepClock:
        """Of `count` steps that no mark told of; turns: of the later ones, monotonic
        ns, page faults and ns of CPU time."""
        clock = cls()
        for time_ns, faults, cpu in turns:
            clock._rows.extend((time_ns, faults, int(Mark.NONE), cpu))
        clock._noted[Mark.NONE] = count
        return clock

    @property
    def steps(self) -> int:
        """Boundaries noted, kept or not, of the strongest kind among them."""
        return next((count for count in reversed(self._noted) if count), 0)

    def boundaries(self) -> list[Boundary]:
        """Those that are kept, in order."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, _FIELDS)
        known = rows[:, 1] != _UNKNOWN
        if not known.all():
            looks = np.vstack([rows[known][:, [0, 1, 3]], _alloc.step_usage()])
            for column, values in ((1, looks[:, 1]), (3, looks[:, 2])):
                between = np.interp(rows[~known, 0], looks[:, 0], values)
                rows[~known, column] = np.rint(between).astype(np.int64)
        return [(row[0], row[1], row[2], row[3]) for row in rows.tolist()]
