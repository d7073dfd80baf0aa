"""Will it fit, and up to which size: a program's memory against one of its flags.

Memory grows with a batch in a line, nearly: two small recordings say where the limit
is met, the third and fourth that it is so. What is found was recorded, never only
computed: the largest value that fits, and that the next one does not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from memplan.errors import UsageError

MOST_RECORDINGS = 40
GUESSES = 3  # of where a plateau begins, before its range is halved
# Of 11 programs the real peak was never more than this above the fake one (docs/fit.md)
MARGIN = Fraction(8, 100)


@dataclass(frozen=True)
class Measured:
    """A recording with the flag at `value`: bytes at most, and whether they fit.

    Where a simulated device ran out of memory, bytes are what it had asked for by then.
    allocated: bytes of all allocations together.
    """

    value: int
    bytes: int
    fits: bool
    allocated: int = 0


@dataclass(frozen=True)
class Plateau:
    """Where a program's peak no longer changes: from `value` on, up to the range's end.

    bytes: the peak. unused: whether all allocations together do not change either.
    """

    value: int
    bytes: int
    unused: bool


@dataclass(frozen=True)
class Fitted:
    """best: the largest value that fits; None if the smallest does not.

    beyond: the next one, which does not; None where all up to the range's end fit.
    sure: the largest that fits with MARGIN to spare, None if none does.
    measured: every recording, by value. steady: whether more never took less.
    plateau: where all fit, None if the peak changes up to the range's end. If the peak
    falls to it, best and sure are below it.
    """

    best: Measured | None
    beyond: Measured | None
    sure: Measured | None
    measured: tuple[Measured, ...]
    plateau: Plateau | None = None

    @property
    def steady(self) -> bool:
        """Whether a larger value never took less memory."""
        return self.fall is None

    @property
    def fall(self) -> tuple[Measured, Measured] | None:
        """The first recorded value that took more than the next one, and that one."""
        pairs = itertools.pairwise(one for one in self.measured if one.fits)
        return next((pair for pair in pairs if pair[0].bytes > pair[1].bytes), None)


class Search:
    """The largest value from `low` to `high` that fits; each is measured but once.

    measure: a recording at a value.
    """

    def __init__(self, measure: Callable[[int], Measured], low: int, high: int) -> None:
        if not 0 <= low <= high:
            raise UsageError(f"{low}..{high}: name the smallest value first, from 0")
        self._measure, self._low, self._high = measure, low, high
        self._known: dict[int, Measured] = {}

    def largest(self, limit: int) -> tuple[Measured | None, Measured | None]:
        """The largest value whose bytes are within `limit`, and the one after it.

        None for what there is not. Looks below the smallest value that is known not to
        fit. Raises UsageError after MOST_RECORDINGS.
        """
        if not self._fits(self._low, limit):
            return None, self._known[self._low]
        failing = [value for value in self._known if not self._fits(value, limit)]
        fails = min(failing, default=self._high + 1)
        fits = max(value for value in self._known if value < fails)
        same_end = 0  # moves of one end in a row, beyond the first: above, below
        while fails - fits > 1:
            value = self._guess(fits, fails, limit, halve=abs(same_end) > 1)
            fitted = self._fits(value, limit)
            fits, fails = (value, fails) if fitted else (fits, value)
            same_end = max(same_end, 0) + 1 if fitted else min(same_end, 0) - 1
        return self._known[fits], self._known.get(fails)

    def run(self, limit: int) -> Fitted:
        """Raises UsageError after MOST_RECORDINGS."""
        best, beyond = self.largest(limit)
        plateau = None
        if best is not None and beyond is None:
            plateau = self._plateau(self._known[self._high])
            best, beyond = self.largest(limit)  # what was met may not fit
        sure = None
        if best is not None:
            sure, _ = self.largest(int(limit / (1 + MARGIN)))
        if plateau is not None and beyond is None:
            best, sure = self._before(best, plateau), self._before(sure, plateau)
        measured = tuple(self._known[value] for value in sorted(self._known))
        return Fitted(best, beyond, sure, measured, plateau)

    def _before(self, one: Measured | None, plateau: Plateau) -> Measured | None:
        """`one`, or the last value before a plateau to which the peak falls, as where
        no batch is complete any more."""
        before = self._known.get(plateau.value - 1)
        falls = before is not None and before.bytes > plateau.bytes
        return before if falls and one and one.value >= plateau.value else one

    def _plateau(self, top: Measured) -> Plateau | None:
        """The plateau that ends with the range. One more recording at most notices it,
        a few find its start."""

        def unused(one: Measured) -> bool:
            return (one.bytes, one.allocated) == (top.bytes, top.allocated)

        same = self._start(unused)
        if same is None and self._high > self._low:
            self._record(self._high - 1)
            same = self._start(unused)
        if same is not None:
            return Plateau(same, top.bytes, True)
        # An allocator rounds: one peak of neighbours says nothing.
        near, half = self._known.get(self._high - 1), max(self._low, self._high // 2)
        if near is None or not near.bytes == self._record(half).bytes == top.bytes:
            return None
        start = self._start(lambda one: one.bytes == top.bytes)
        return None if start is None else Plateau(start, top.bytes, False)

    def _start(self, alike: Callable[[Measured], bool]) -> int | None:
        """The value from which on all recordings are `alike`; None if only the last."""
        unlike = [value for value, one in self._known.items() if not alike(one)]
        before = max(unlike, default=self._low - 1)
        start = min(value for value in self._known if value > before)
        guesses = GUESSES
        while start < self._high and start - before > 1:
            if len(self._known) >= MOST_RECORDINGS:
                break
            value = self._bend(before, start) if guesses else (before + start) // 2
            guesses -= guesses > 0
            if alike(self._record(value)):
                start = value
            else:
                before = value
        return start if start < self._high else None

    def _bend(self, before: int, start: int) -> int:
        """Between the two: where the line through what was measured up to `before`
        meets the bytes at `start`; the middle if there is no such line."""
        other = max((v for v in self._known if v < before), default=before)
        rise = self._known[before].bytes - self._known[other].bytes
        missing = self._known[start].bytes - self._known[before].bytes
        if rise <= 0 or missing <= 0:
            return (before + start) // 2
        met = before + math.ceil(Fraction(missing * (before - other), rise))
        return min(max(met, before + 1), start - 1)

    def _fits(self, value: int, limit: int) -> bool:
        one = self._record(value)
        return one.fits and one.bytes <= limit

    def _record(self, value: int) -> Measured:
        if value not in self._known:
            if len(self._known) >= MOST_RECORDINGS:
                raise UsageError(
                    f"{MOST_RECORDINGS} recordings do not settle it: its memory does "
                    "not grow evenly with the flag; name a smaller range"
                )
            self._known[value] = self._measure(value)
        return self._known[value]

    def _guess(self, fits: int, fails: int, limit: int, halve: bool) -> int:
        """Between the two: where the line through what was measured meets the limit.

        halve: the line has misled, for memory does not grow evenly; the middle.
        """
        below, above = self._known[fits], self._known.get(fails)
        if above is None or not above.fits:  # no bytes to go by: what lies below
            lower = [v for v, one in self._known.items() if v < fits and one.fits]
            if not lower:
                return min(fails - 1, max(fits + 1, 2 * fits))
            other, most = self._known[max(lower)], 8 * fits
        else:
            other, most = above, fails
        slope = Fraction(other.bytes - below.bytes, other.value - below.value)
        if slope <= 0 or (halve and above is not None):
            return (fits + fails) // 2 if above is not None else min(fails - 1, most)
        met = below.value + int((limit - below.bytes) / slope)
        return min(max(met, fits + 1), fails - 1, most)
