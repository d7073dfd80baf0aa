"""Will it fit, and up to which size: a program's memory against one of its flags.

Memory grows with a batch in a line, nearly: two small recordings say where the limit
is met, the third and fourth that it is so. What is found was recorded, never only
computed: the largest value that fits, and that the next one does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from memplan.errors import UsageError

MOST_RECORDINGS = 40
# Of 11 programs the real peak was never more than this above the fake one (docs/fit.md)
MARGIN = Fraction(8, 100)


@dataclass(frozen=True)
class Measured:
    """A recording with the flag at `value`: bytes at most, and whether they fit.

    Where a simulated device ran out of memory, bytes are what it had asked for by then.
    """

    value: int
    bytes: int
    fits: bool


@dataclass(frozen=True)
class Fitted:
    """best: the largest value that fits; None if the smallest does not.

    beyond: the next one, which does not; None where all up to the range's end fit.
    sure: the largest that fits with MARGIN to spare, None if none does.
    measured: every recording, by value. steady: whether more never took less.
    """

    best: Measured | None
    beyond: Measured | None
    sure: Measured | None
    measured: tuple[Measured, ...]

    @property
    def steady(self) -> bool:
        """Whether a larger value never took less memory."""
        sizes = [one.bytes for one in self.measured if one.fits]
        return sizes == sorted(sizes)


class Search:
    """The largest value from `low` to `high` that fits; each is measured but once.

    measure: the bytes at a value, and whether the device had room for them.
    """

    def __init__(
        self, measure: Callable[[int], tuple[int, bool]], low: int, high: int
    ) -> None:
        if not 0 <= low <= high:
            raise UsageError(f"{low}..{high}: name the smallest value first, from 0")
        self._measure, self._low, self._high = measure, low, high
        self._known: dict[int, Measured] = {}

    def largest(self, limit: int) -> tuple[Measured | None, Measured | None]:
        """The largest value whose bytes are within `limit`, and the one after it.

        None for what there is not. Raises UsageError after MOST_RECORDINGS.
        """
        if not self._fits(self._low, limit):
            return None, self._known[self._low]
        fits, fails = self._low, self._high + 1
        for value, one in self._known.items():
            if one.fits and one.bytes <= limit:
                fits = max(fits, value)
        for value in self._known:
            if value > fits:
                fails = min(fails, value)
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
        sure = None
        if best is not None:
            sure, _ = self.largest(int(limit / (1 + MARGIN)))
        measured = tuple(self._known[value] for value in sorted(self._known))
        return Fitted(best, beyond, sure, measured)

    def _fits(self, value: int, limit: int) -> bool:
        if value not in self._known:
            if len(self._known) >= MOST_RECORDINGS:
                raise UsageError(
                    f"{MOST_RECORDINGS} recordings do not settle it: its memory does "
                    "not grow with the flag; name a smaller range"
                )
            self._known[value] = Measured(value, *self._measure(value))
        one = self._known[value]
        return one.fits and one.bytes <= limit

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
