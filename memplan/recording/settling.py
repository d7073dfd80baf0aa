"""When a recording has seen enough: the steps repeat, and have for a while."""

from __future__ import annotations

from collections import deque

from memplan.trace.steps import MAX_PERIOD
from memplan.trace.trace import Mark

SETTLED_STEPS = 32  # in a row, each with the requests of one before it
SETTLED_FAKE_STEPS = 3  # likewise, where no kernel runs: what repeats, repeats
SETTLED_EVENTS = 100_000  # a recording that is shorter is worth having whole
MOST_EVENTS = 2_000_000  # and a longer one is not, settled or not: 80 MB of journal


class Settling:
    """Follows the steps of a program by a digest of what each asked for."""

    def __init__(self, steps: int = SETTLED_STEPS) -> None:
        """steps: so many must be alike in a row."""
        self._least = steps
        self._mark = Mark.NONE
        self._last: deque[int] = deque(maxlen=MAX_PERIOD)
        self._alike = [0] * MAX_PERIOD  # steps in a row, by period

    def add(self, mark: Mark, digest: int) -> None:
        """A step ended here, or one began; digest: of the requests since the last mark
        in this thread, 0 for none.

        Only the strongest kind of mark counts, as everywhere.
        """
        if mark < self._mark:
            return
        if mark > self._mark:
            self._mark = mark
            self._last.clear()
            self._alike = [0] * MAX_PERIOD
        for i, earlier in enumerate(self._last):
            same = digest != 0 and digest == earlier
            self._alike[i] = self._alike[i] + 1 if same else 0
        self._last.appendleft(digest)

    @property
    def settled(self) -> bool:
        """Whether enough steps were alike, with some period."""
        return max(self._alike) >= self._least
