"""Units within units, added step by step, each for a lower peak.

At the moment of the peak, tensors wait that a unit around what saved them would not
keep, or a unit is made again that makes too much at once, and could do so in parts.
Such units are tried, those first that promise most, together with their like in units
of the same class; the best is added. There is no proof that none is better.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memplan.budgeting.step import NEVER, NONE, Recorded
from memplan.budgeting.timeline import remade
from memplan.budgeting.units import Candidate, spans_of
from memplan.core.recompute import Unit

MOST_TRIED = 80  # moves in all
_TRIED = 30  # moves of a step
_WORTH = 1024  # a step brings at least one part in so many of the peak
_ENOUGH = 64  # a move that brings one part in so many is taken at once

Choice = tuple[Candidate, ...]


def composed(
    recorded: Recorded,
    chosen: Collection[Candidate],
    known: dict[tuple[frozenset[Unit], ...], Recorded] | None = None,
) -> Recorded:
    """A trace with units computed again, which lie within each other or apart.

    known: traces by their units, those within others first; those made are added.
    """
    known = {} if known is None else known
    left: list[Candidate] = list(chosen)
    at: tuple[frozenset[Unit], ...] = ()
    while left:
        inner = [c for c in left if not any(_within(d, c) for d in left if d is not c)]
        at = (*at, frozenset(c.unit for c in inner))
        if at not in known:
            spans = spans_of(recorded, [c.unit for c in inner])
            known[at] = remade(recorded, spans)
        recorded = known[at]
        left = [c for c in left if c not in inner]
    return recorded


def peak_of(recorded: Recorded) -> int:
    """Its most live bytes."""
    return int(recorded.lives.taken_bytes.max(initial=0))


def lower(
    recorded: Recorded, found: Sequence[Candidate], chosen: Choice
) -> Iterator[tuple[Choice, Recorded]]:
    """Choices with ever lower peaks, from `chosen` on; found: all candidates."""
    made, left = composed(recorded, chosen), MOST_TRIED
    while left > 0:
        best = None
        peak = least = peak_of(made)
        known: dict[tuple[frozenset[Unit], ...], Recorded] = {}
        for added in _moves(made, found, chosen)[: min(_TRIED, left)]:
            left -= 1
            rest = [c for c in chosen if not any(_cross(c, a) for a in added)]
            choice = (*rest, *added)
            trace = composed(recorded, choice, known)
            if peak_of(trace) < least:
                best, least = (choice, trace), peak_of(trace)
            if peak - least > peak // _ENOUGH:
                break
        if best is None or peak - least < peak // _WORTH:
            return
        chosen, made = best
        yield best


def _moves(
    made: Recorded, found: Sequence[Candidate], chosen: Choice
) -> list[list[Candidate]]:
    """What may be added to `chosen`, which `made` is with: those first that promise
    most."""
    begin, end = made.rows
    peak = begin + int(np.argmax(made.lives.taken_bytes[begin:end]))
    waiting = _Waiting(made, peak)
    again = waiting.made_again(chosen)
    promised: list[tuple[int, int, str, list[Candidate]]] = []
    seen: set[frozenset[str]] = set()
    for each in found:
        if each in chosen:
            continue
        inside = again is not None and _within(each, again)
        gain = waiting.bytes(each)
        if inside:
            gain = max(gain, each.saved // len(each.spans))
        if not gain:
            continue
        for group in ([each], _like(each, found, chosen)):
            names = frozenset(c.unit.name for c in group)
            if names not in seen:
                seen.add(names)
                saved = sum(c.saved for c in group)
                promised.append((-gain * len(group), saved, each.unit.name, group))
    promised.sort(key=lambda each: each[:3])
    return [group for *_, group in promised]


def _like(
    one: Candidate, found: Sequence[Candidate], chosen: Choice
) -> list[Candidate]:
    """It, and what it is in other chosen units of the class of the one around it."""
    around = [c for c in chosen if not c.unit.last and _within(one, c)]
    if not around:
        return [one]
    near = max(around, key=lambda c: len(c.unit.path))
    at = one.unit.path.removeprefix(near.unit.path)
    wanted = {
        (c.unit.root, f"{c.unit.path}{at}", one.unit.first, one.unit.last)
        for c in chosen
        if c.unit.kind == near.unit.kind and not c.unit.last
    }
    return [
        c
        for c in found
        if (c.unit.root, c.unit.path, c.unit.first, c.unit.last) in wanted
        and c not in chosen
    ]


@dataclass(frozen=True, eq=False)
class _Waiting:
    """Saved tensors that wait for the backward pass at a row."""

    made: Recorded
    row: int

    def bytes(self, candidate: Candidate) -> int:
        """What of them calls of the candidate made, and alone keep."""
        made, lives = self.made, self.made.lives
        waits = (made.packed <= self.row) & (made.unpacked > self.row)
        waits &= (made.unpacked != NEVER) & (made.buffer != NONE)
        own = np.zeros_like(waits)
        born = np.zeros(len(lives), dtype=np.bool_)
        for span in candidate.spans:
            first, last = span.calls
            own |= made.saved_in(first, last)
            rows = made.begin[first], made.end[first:last].max()
            born |= (lives.row >= rows[0]) & (lives.row < rows[1])
        kept = np.setdiff1d(made.buffer[waits & own], made.buffer[waits & ~own])
        alive = (
            born[kept] & (lives.row[kept] <= self.row) & (lives.end[kept] > self.row)
        )
        return int(lives.size[kept[alive]].sum())

    def made_again(self, chosen: Choice) -> Candidate | None:
        """The outermost unit that was made again last."""
        made, last, found = self.made, -1, None
        for each in chosen:
            for span in each.spans:
                own = (made.saver == span.calls[0]) & (made.unpacked <= self.row)
                needed = int(made.unpacked[own].max(initial=-1))
                if needed > last:
                    last, found = needed, each
        return found


def _pairs(one: Candidate, other: Candidate) -> Iterator[tuple[int, int, int, int]]:
    for a in one.spans:
        for b in other.spans:
            yield *a.calls, *b.calls


def _within(one: Candidate, other: Candidate) -> bool:
    """Whether calls of one lie in calls of the other."""
    return any(
        first <= a and b <= last and (a, b) != (first, last)
        for a, b, first, last in _pairs(one, other)
    )


def _cross(one: Candidate, other: Candidate) -> bool:
    """Whether they share calls, and neither's lie in the other's."""
    return any(
        a < last
        and first < b
        and ((a, b) == (first, last) or not (first <= a and b <= last))
        and ((a, b) == (first, last) or not (a <= first and last <= b))
        for a, b, first, last in _pairs(one, other)
    )
