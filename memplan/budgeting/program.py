"""The integer program that chooses what is computed again, and its solution by CBC.

A binary x for each candidate: 1, if it is computed again. The cost of the chosen ones
is least, such that

- no two of them share a call,
- between two rows at which a call ends or is needed again, the most bytes live there,
  less what the chosen ones do not keep then, and more by what they hold, is within the
  budget,
- and so it is when a chosen one is made again, with what that allocates.

Rows that no choice can break are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from memplan.arrays import Int64Array
from memplan.budgeting.step import Recorded
from memplan.budgeting.units import Candidate, Span
from memplan.solving.linear import Choice, Rows, minimize

_SCALE = 1024  # bytes: the unit of the rows


@dataclass(frozen=True, eq=False)
class _Effect:
    """What a candidate's span changes: bytes in rows [begin, end)."""

    candidate: int
    begin: int
    end: int
    bytes: int


class Program:
    """The integer program of one step."""

    def __init__(self, recorded: Recorded, found: Sequence[Candidate]) -> None:
        self._recorded, self._found = recorded, found
        begin, end = recorded.rows
        self._live = recorded.lives.taken_bytes
        self._rows = begin, end
        self._effects = [
            effect for i, each in enumerate(found) for effect in self._of(i, each)
        ]

    def solve(self, budget: int, time_limit: float, cheapest: bool = True) -> Choice:
        """The cheapest choice within `budget` bytes: `chosen` are its candidates.

        time_limit: seconds. cheapest: if not, any choice will do.
        """
        rows = Rows(len(self._found))
        for group in self._apart:
            rows.add(dict.fromkeys(group, 1.0), 1.0)
        self._between(rows, budget)
        self._again(rows, budget)
        costs = [each.cost * cheapest for each in self._found]
        return minimize(costs, rows, time_limit)

    def _of(self, number: int, candidate: Candidate) -> list[_Effect]:
        size, end = self._recorded.lives.size, self._recorded.lives.end
        effects = []
        for span in candidate.spans:
            for freed in np.unique(span.freed).tolist():
                saved = int(size[span.kept[span.freed == freed]].sum())
                effects.append(_Effect(number, freed, span.needed, -saved))
            for buffer in span.held.tolist():
                freed = int(end[buffer])
                held = _Effect(number, freed, span.released, int(size[buffer]))
                effects.append(held)
            for buffer, until in zip(
                span.twice.tolist(), span.until.tolist(), strict=True
            ):
                more = int(size[buffer])
                effects.append(_Effect(number, span.needed, until, more))
            if span.besides:
                effects.append(_Effect(number, span.begin, span.released, span.besides))
        return effects

    @cached_property
    def _apart(self) -> list[tuple[int, ...]]:
        """Candidates that hold the same call: of each group at most one is chosen."""
        holders: dict[int, list[int]] = {}
        for number, candidate in enumerate(self._found):
            for span in candidate.spans:
                for call in range(*span.calls):
                    holders.setdefault(call, []).append(number)
        groups = {tuple(sorted(set(each))) for each in holders.values()}
        largest = [
            group
            for group in groups
            if len(group) > 1 and not any(set(group) < set(other) for other in groups)
        ]
        return sorted(largest)

    def _between(self, rows: Rows, budget: int) -> None:
        begin, end = self._rows
        edges = {begin, end}
        for effect in self._effects:
            edges |= {effect.begin, effect.end}
        cuts = np.array(sorted(e for e in edges if begin <= e <= end), dtype=np.int64)
        starts = np.array([e.begin for e in self._effects], dtype=np.int64)
        ends = np.array([e.end for e in self._effects], dtype=np.int64)
        for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            most = int(self._live[low:high].max(initial=0))
            active = np.flatnonzero((starts <= low) & (ends >= high))
            self._limit(rows, active, most, budget)

    def _again(self, rows: Rows, budget: int) -> None:
        starts = np.array([e.begin for e in self._effects], dtype=np.int64)
        ends = np.array([e.end for e in self._effects], dtype=np.int64)
        for number, candidate in enumerate(self._found):
            for span in candidate.spans:
                live = self._when_needed(span)
                active = np.flatnonzero((starts < span.needed) & (ends >= span.needed))
                self._limit(rows, active, live, budget, (number, span.again))

    def _when_needed(self, span: Span) -> int:
        """Bytes live just before the row at which a span is made again."""
        return int(self._live[max(span.needed - 1, 0)])

    def _limit(
        self,
        rows: Rows,
        active: Int64Array,
        live: int,
        budget: int,
        again: tuple[int, int] | None = None,
    ) -> None:
        """live + effects (+ again, if that candidate is chosen) <= budget."""
        terms: dict[int, float] = {}
        for i in active.tolist():
            effect = self._effects[i]
            value = terms.get(effect.candidate, 0.0) + effect.bytes / _SCALE
            terms[effect.candidate] = value
        room = (budget - live) / _SCALE
        worst = sum(value for value in terms.values() if value > 0)
        if again is not None:
            number, size = again
            # It binds only if that candidate is chosen; it is alive again then.
            slack = max(worst + size / _SCALE - room, 0.0)
            terms[number] = terms.get(number, 0.0) + size / _SCALE + slack
            room, worst = room + slack, worst + size / _SCALE + slack
        if worst > room or room < 0:
            rows.add(terms, room)
