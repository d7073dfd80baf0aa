"""When a program's steps began, and what it had used of the machine by then."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from memplan.native import _alloc
from memplan.trace.trace import Mark

# A boundary: monotonic ns, page faults so far, the Mark, ns of CPU time of all threads.
Boundary = tuple[int, int, int, int]
_FIELDS = 4
MOST = 1 << 17  # boundaries kept; a program that runs for days has many


class StepClock:
    """Notes step boundaries; of very many, the later ones are kept."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._rows = array("q")
        self._noted = [0] * (max(Mark) + 1)  # by mark: its hash is Python's, and slow

    def note(self, mark: Mark) -> None:
        """A step begins. Any thread may say so."""
        time_ns, faults, cpu = _alloc.step_usage()
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
        return list(self._each())

    def _each(self) -> Iterator[Boundary]:
        values = iter(self._rows.tolist())
        yield from zip(values, values, values, values, strict=False)
