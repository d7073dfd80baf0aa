"""Regions that reach further than the search looks around a peak: from one place where
few bytes wait to another, as most of a network for a part of the batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from memplan.chunking.candidates import Candidate, Landscape, Weight, ends, sweep, weigh

LESS = 0.75  # of the bytes that wait at the place before: the next that counts


def far(land: Landscape, peak: int, reach: int) -> list[tuple[Candidate, Weight]]:
    """Regions that the operator at `peak` is in, and that begin or end at least `reach`
    operators from it."""
    wanted = land.program.ops[peak].name
    found: list[tuple[Candidate, Weight]] = []
    for place in _narrow(land.waiting, range(peak + 1, len(land.waiting))):
        able = (i for i in range(place - 1, peak - 1, -1) if any(ends(land, i, 1)))
        last = next(able, None)
        if last is None:
            continue
        if last not in land.far:
            land.far[last] = list(_ending(land, last))
        found += [
            (each, weight)
            for each, weight in land.far[last]
            if each.first <= peak
            and wanted in each.slices
            and (last >= peak + reach or each.first < peak - reach)
        ]
    return found


def _ending(land: Landscape, last: int) -> Iterator[tuple[Candidate, Weight]]:
    """The widest regions that end there, within each place before that counts."""
    within = {0, *_narrow(land.waiting, range(last, -1, -1))}
    for _, end in ends(land, last, 1):
        for copies in (False, True):
            firsts = set()
            for each in sweep(land, last, end, 0, copies, within):
                if each.first not in firsts:
                    firsts.add(each.first)
                    yield each, weigh(land, each)


def _narrow(waiting: Sequence[int], places: Iterable[int]) -> Iterator[int]:
    """Of some places, those at which fewer bytes wait than at all before."""
    least = float("inf")
    for at in places:
        if waiting[at] < LESS * least:
            least = waiting[at]
            yield at
