"""The units to compute again for a budget, the least budget, and all in between.

An integer program finds the cheapest units of which none lies in another. Where no such
choice fits, small units are taken first, and units around them are chosen on top: those
keep next to nothing, and make the small ones again in their turn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from memplan.budgeting.descent import composed, lower, peak_of
from memplan.budgeting.program import Program
from memplan.budgeting.step import Recorded
from memplan.budgeting.timeline import remade
from memplan.budgeting.units import (
    Candidate,
    Candidates,
    candidates,
    spans_of,
)
from memplan.core.recompute import Recomputation, Unit
from memplan.errors import InfeasibleError, UsageError
from memplan.trace.trace import Trace
from memplan.units import budget_of, format_bytes, parse_memory

RESERVE = 64 << 10  # bytes of a budget that the prediction leaves free
MOST_TRIES = 8  # at a budget, each with the last prediction's excess left free
_STEPS_DOWN = 10  # of the search for the least budget: each halves what is open
TIME_LIMIT = 10.0  # seconds of one integer program
_HALVINGS = 4  # of the largest unit's bytes, for the small units within others
_WORTH = 2048  # a small unit keeps at least one part in so many of the peak
_MOST_DROPPED = 24  # small units that are tried to be left out again
_RUN = re.compile(r"(.*\.)?(\d{1,6}) to (?:.*\.)?(\d{1,6})")  # a name of `Unit`
_SHARE = re.compile(r"\s*(\d{1,3}(?:\.\d{1,6})?)\s*%\s*")


# Candidates, the trace with them, and whether none are proved to be cheaper.
Found: TypeAlias = "tuple[tuple[Candidate, ...], Recorded, bool]"
# Units within those of the next row; none of a row lies in another of it.
Below: TypeAlias = "tuple[tuple[Candidate, ...], ...]"


def _paths(name: str) -> list[str]:
    """The modules that a unit's name stands for: of a run, its children."""
    match = _RUN.fullmatch(name)
    if match is None:
        return [name]
    at, first, last = match[1] or "", int(match[2]), int(match[3])
    return [f"{at}{i}" for i in range(first, last + 1)]


@dataclass(frozen=True, eq=False)
class Chosen:
    """One choice. recorded: the trace with it; cost: of one step, as candidates have
    it."""

    units: Recomputation
    recorded: Recorded
    cost: float

    @property
    def peak(self) -> int:
        """The most bytes that are expected to be live."""
        return self.units.predicted


class _Level:
    """Choices of units in a trace in which the units `below` are made again already.

    peak: its most live bytes.
    """

    def __init__(
        self,
        recorded: Recorded,
        keep: Collection[str],
        time_limit: float,
        below: Below = (),
    ) -> None:
        self.recorded, self.below = recorded, below
        self.peak = peak_of(recorded)
        spans = (span for row in below for each in row for span in each.spans)
        taken = {span.calls for span in spans}
        self.candidates: Candidates = candidates(recorded, keep, taken)
        self._program = Program(recorded, self.candidates.found)
        self._limit = time_limit

    def within(self, budget: int, cheapest: bool = True) -> Found | None:
        """The cheapest candidates whose prediction is within `budget`, or any of them.

        None if none are found.
        """
        # A recorded peak is one; that of a trace to be is expected.
        if self.peak <= budget - RESERVE * bool(self.below):
            return (), self.recorded, not self.below
        target = budget - RESERVE
        for _ in range(MOST_TRIES):
            answer = self._program.solve(target, self._limit, cheapest)
            if answer.chosen is None:
                return None
            picked = tuple(self.candidates.found[i] for i in answer.chosen)
            made = with_units(self.recorded, [each.unit for each in picked])
            excess = peak_of(made) - (budget - RESERVE)
            if excess <= 0:
                proved = answer.proved and cheapest and target == budget - RESERVE
                return picked, made, proved and not self.below
            target -= excess
        return None


def with_units(recorded: Recorded, units: Sequence[Unit]) -> Recorded:
    """A trace with units computed again of which none lies in another."""
    return remade(recorded, spans_of(recorded, units)) if units else recorded


def _again(candidate: Candidate) -> int:
    """The most bytes that it allocates when it is made again."""
    return max(span.again for span in candidate.spans)


def _step(peak: int) -> int:
    """What peaks have to differ by to be told apart: bytes."""
    return max(RESERVE, peak >> 9)


class Budgeting:
    """What a trace's budgets lead to.

    eager: the recorded peak, bytes. candidates: for units of which none lies in
    another.
    """

    def __init__(
        self,
        trace: Trace,
        keep: Collection[str] = (),
        time_limit: float = TIME_LIMIT,
    ) -> None:
        """keep: paths of modules that are not computed again. time_limit: seconds of
        one integer program.

        Raises UsageError if the trace has no calls, no whole step, or no module that is
        called like one of `keep`.
        """
        self.recorded = Recorded.of(trace)
        known = {each.path for each in self.recorded.calls.modules}
        keep = [path for text in keep for path in _paths(text)]
        for path in keep:
            if not path or path not in known:
                why = f"{path!r}: the trace has no module of that name"
                raise UsageError(f"keep {why}", shell=f"--keep {why}")
        self._keep, self._limit = keep, time_limit
        self._base = _Level(self.recorded, keep, time_limit)
        self.eager = self._base.peak
        self.candidates = self._base.candidates

    def bytes_of(self, budget: str | int) -> int:
        """The bytes of a budget: a size, a share of the recorded peak, or "min".

        Raises UsageError for anything else.
        """
        if isinstance(budget, int):
            return budget
        if budget == "min":
            return self.least.units.budget
        if match := _SHARE.fullmatch(budget):
            return math.floor(self.eager * float(match[1]) / 100)
        try:
            return parse_memory(budget)
        except UsageError as error:
            raise UsageError(f"{error}, 70% or min") from error

    def within(self, budget: int) -> Chosen:
        """The cheapest choice that keeps to `budget` bytes.

        Raises InfeasibleError with the least budget if none is found.
        """
        found = self._try(budget)
        if found is not None:
            return found
        fits = [each for each in self._lower if each.units.budget <= budget]
        if fits:
            best = min(fits, key=lambda each: each.cost)
            if (chosen := self._known(best.units.units)) is not None:
                return self._fewer(chosen, chosen, budget)
            return replace(best, units=replace(best.units, budget=budget))
        least = self.least
        if not least.units.units:
            raise InfeasibleError(
                "no module was found that takes less memory when it is computed again: "
                f"{budget_of(self.eager)} recorded",
                peak=self.eager,
            )
        raise InfeasibleError(
            f"no choice of modules to compute again was found for "
            f"{format_bytes(budget)}; the least is {budget_of(least.units.budget)}, of "
            f"{format_bytes(self.eager)} recorded",
            peak=least.units.budget,
        )

    @cached_property
    def least(self) -> Chosen:
        """The choice with the lowest peak that is found."""
        return min(self._lower, key=lambda each: each.peak)

    @cached_property
    def _lower(self) -> list[Chosen]:
        """The lowest that bisection finds, and what leads down from there."""
        found, every = [self._bisected], self.candidates.found
        if (chosen := self._known(found[0].units.units)) is not None:
            for each, made in lower(self.recorded, every, chosen):
                found.append(self._made((), (each, made, False), 0))
        return found

    def _known(self, units: Sequence[Unit]) -> tuple[Candidate, ...] | None:
        """The candidates for some units; None if they are not all among them."""
        known = {each.unit: each for each in self.candidates.found}
        found = tuple(known[unit] for unit in units if unit in known)
        return found if found and len(found) == len(units) else None

    @cached_property
    def _bisected(self) -> Chosen:
        """The choice with the lowest peak that bisection finds."""
        best, at = self._made((), ((), self.recorded, True), 0), self._base
        for level in self._levels:
            if level.peak < best.peak:
                best, at = (
                    self._made(level.below, ((), level.recorded, False), 0),
                    level,
                )
            low = 0
            for look in range(_STEPS_DOWN):
                # The first look at small units tells whether they bring anything.
                near = level.below and not look
                middle = (
                    best.peak - _step(best.peak) if near else (low + best.peak) // 2
                )
                found = level.within(middle, cheapest=False)
                if found is None:
                    low = middle
                else:
                    best, at = self._made(level.below, found, 0), level
                if best.peak - low <= _step(best.peak):
                    break
        cheaper = at.within(best.peak + RESERVE)
        return best if cheaper is None else self._made(at.below, cheaper, 0)

    def curve(self, points: int) -> list[Chosen]:
        """Choices from the recorded peak down to the least, each cheaper than all that
        need less memory; at most `points`, at least two."""
        least = self.least
        found = [self._made((), ((), self.recorded, True), 0), least]
        low, high = least.peak, self.eager
        for i in range(1, points - 1):
            budget = low + RESERVE + (high - low) * i // (points - 1)
            if (chosen := self._try(budget)) is not None:
                found.append(chosen)
        front: list[Chosen] = []
        for each in sorted(found, key=lambda c: (c.peak, c.cost)):
            if not front or each.cost < front[-1].cost:
                front.append(each)
        return front[::-1]

    @cached_property
    def _levels(self) -> list[_Level]:
        """The trace as it is, and with small units of several sizes made again."""
        spans = (span for each in self.candidates.found for span in each.spans)
        largest = max((span.again for span in spans), default=0)
        levels, seen = [self._base], {frozenset[Unit]()}

        def add(level: _Level, most: int) -> _Level | None:
            small = self._small(level, most)
            below = (*level.below, small)
            units = frozenset(each.unit for row in below for each in row)
            if units in seen:
                return None
            seen.add(units)
            made = with_units(level.recorded, [each.unit for each in small])
            levels.append(_Level(made, self._keep, self._limit, below))
            return levels[-1]

        for halving in range(_HALVINGS):
            inner = add(self._base, largest >> halving)
            if inner is not None and halving > 1:
                add(inner, largest >> (halving - 2))
        return levels

    def _small(self, level: _Level, most: int) -> tuple[Candidate, ...]:
        """Units that allocate at most `most` bytes when they are made again, none in
        another, those first that keep most."""
        chosen: list[Candidate] = []
        taken: set[int] = set()
        found = level.candidates.found
        # Times differ from run to run: the least budget is not to depend on them.
        for each in sorted(found, key=lambda c: (-c.saved, _again(c), c.unit.name)):
            calls = {call for span in each.spans for call in range(*span.calls)}
            if (
                each.saved * _WORTH > self.eager
                and not calls & taken
                and _again(each) <= most
            ):
                chosen.append(each)
                taken |= calls
        return tuple(chosen)

    def _try(self, budget: int) -> Chosen | None:
        """The cheapest choice of the first kind, or else of the other kinds."""
        found = self._base.within(budget)
        if found is not None:
            return self._made((), found, budget)
        nested = []
        for level in self._levels[1:]:
            found = level.within(budget)
            if found is not None:
                small = [each for row in level.below for each in row]
                nested.append(self._fewer([*small, *found[0]], small, budget))
        return min(nested, key=lambda each: each.cost, default=None)

    def _fewer(
        self, chosen: Sequence[Candidate], dropped: Sequence[Candidate], budget: int
    ) -> Chosen:
        """The same choice without units of `dropped` that it can do without."""
        chosen, made = list(chosen), composed(self.recorded, chosen)
        for each in sorted(dropped, key=lambda c: -c.cost)[:_MOST_DROPPED]:
            rest = [c for c in chosen if c is not each]
            other = composed(self.recorded, rest)
            if peak_of(other) <= budget - RESERVE:
                chosen, made = rest, other
        return self._made((), (tuple(chosen), made, False), budget)

    def _made(
        self,
        below: Below,
        found: Found,
        budget: int,
    ) -> Chosen:
        above, made, proved = found
        both = [each for row in (*below, above) for each in row]
        peak = peak_of(made)
        cost = math.fsum(each.cost for each in both)
        share = cost / self.candidates.forward if self.candidates.forward else 0.0
        part = Recomputation(
            budget or peak + RESERVE * bool(both),
            peak,
            self.eager,
            round(share * 1000),
            proved,
            self.recorded.calls.roots,
            tuple(each.unit for each in both),
        )
        return Chosen(part, made, cost)
