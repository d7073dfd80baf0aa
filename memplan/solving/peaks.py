"""The peaks that a problem's best plans can have, and what may lie beneath each.

The offsets of some best plan are multiples of a unit, sums of padded sizes; the topmost
buffer counts without its padding. So a peak is a multiple of the unit less the padding
of a buffer, and there is nothing to ask about between two of these.
"""

from __future__ import annotations

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.problem import FREE, Problem


class Peaks:
    """All possible peaks in bytes, ascending: `peaks[0]` is 0, and there is no end.

    Multiples of the unit are among them, whether or not a buffer has no padding.

    unit: bytes that all offsets of some best plan are multiples of.
    """

    def __init__(self, problem: Problem) -> None:
        """The peaks of `problem`; of none, all integers."""
        unit = int(np.gcd.reduce(problem.padded)) or 1
        if (problem.alignment != problem.granularity).any():
            unit = int(np.gcd(unit, problem.granularity))
        fixed = problem.fixed[problem.fixed != FREE]
        self.unit = int(np.gcd.reduce(np.append(fixed, unit)))
        self._slack = problem.slack
        # What a peak may fall short of a multiple of the unit, descending.
        self._short: list[int] = np.unique(np.append(self._slack, 0))[::-1].tolist()

    def __getitem__(self, index: int) -> int:
        """The peak with this index, in bytes."""
        turns, place = divmod(index - 1, len(self._short))
        return (turns + 1) * self.unit - self._short[place]

    def index(self, least: int) -> int:
        """The index of the lowest peak of at least so many bytes."""
        units = -(-least // self.unit)
        rest = units * self.unit - least
        place = next(i for i, short in enumerate(self._short) if short <= rest)
        return (units - 1) * len(self._short) + place + 1

    def at_most(self, most: int) -> int:
        """The highest peak of at most so many bytes."""
        return self[self.index(most + 1) - 1]

    def room(self, index: int) -> tuple[int, Int64Array | None]:
        """Units beneath a peak, and the buffers that may reach one beyond: 0 or 1.

        The latter int64, shape (n,), or None where no buffer may: those that do have
        enough padding to stand out.
        """
        peak = self[index]
        units = peak // self.unit
        beyond = (peak + self._slack) // self.unit - units
        return units, beyond if beyond.any() else None
