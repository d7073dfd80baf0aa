"""What changed between two recordings: a moment, and the code that made it change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from memplan.errors import UsageError
from memplan.files import PathLike
from memplan.reporting.align import Function, Move, Pair, Sizes, align
from memplan.reporting.live import UNKNOWN, site_name
from memplan.reporting.stats import Stats, summarize
from memplan.trace.lives import Lives
from memplan.trace.sites import Site
from memplan.trace.trace import Category, Trace

By = Literal["line", "function", "module", "op", "category"]
_LEAST_SHARE = 0.5  # of the growth, that one row is said to be responsible for


@dataclass(frozen=True)
class Change:
    """Bytes before and after of a site, of all those of a line, or of a category.

    name: as people read it. pairs: its sites, the largest change first; none of a
    category.
    """

    name: str
    before: int
    after: int
    pairs: tuple[Pair, ...] = ()

    @property
    def site(self) -> Site:
        """The site that changed most, as it is after, or was before it was gone."""
        return self.pairs[0].site if self.pairs else Site()

    @property
    def delta(self) -> int:
        """Bytes more than before."""
        return self.after - self.before


class Moved(NamedTuple):
    """A function that is elsewhere, or has another name; without a name, all of a file.

    move: "moved" or "renamed".
    """

    move: Move
    before: Function
    after: Function


@dataclass(frozen=True)
class Diff:
    """Two recordings at a moment of each, which is `before.at` and `after.at`.

    every: all sites, matched; `sites` has those that changed. categories: those that
    changed. Both the largest change first. The sites' deltas sum to `delta`.
    """

    before: Stats
    after: Stats
    every: tuple[Change, ...]
    categories: tuple[Change, ...]

    @property
    def devices(self) -> tuple[str, str]:
        """Whose memory, "cpu" or "cuda", before and after."""
        return self.before.trace.info.device, self.after.trace.info.device

    @property
    def delta(self) -> int:
        """Bytes more than before."""
        return self.after.at.bytes - self.before.at.bytes

    @property
    def sites(self) -> tuple[Change, ...]:
        """The sites that changed."""
        return _changed(self.every)

    @property
    def moves(self) -> tuple[Moved, ...]:
        """The files and functions that were moved or renamed, of what is live then."""
        found: dict[Moved, None] = {}
        for change in self.every:
            (pair,) = change.pairs
            if (
                pair.before
                and pair.after
                and pair.move
                and max(change.before, change.after)
            ):
                old, new = (
                    Function(each.file, "" if pair.whole else each.function)
                    for each in (pair.before, pair.after)
                )
                found[Moved(pair.move, old, new)] = None
        return tuple(found)

    def by(self, kind: By) -> tuple[Change, ...]:
        """What changed, in groups, the largest change first; the deltas sum to `delta`.

        A line of BEFORE that AFTER does not have is a row of its own.
        """
        if kind == "category":
            return self.categories
        groups: dict[tuple[bool, str], list[Change]] = {}
        for change in self.every:
            (pair,) = change.pairs
            key = kind == "line" and pair.line_gone, site_name(pair.place, kind)
            groups.setdefault(key, []).append(change)
        return _changed([_sum(name, rows) for (_, name), rows in groups.items()])


def diff(before: Trace | PathLike, after: Trace | PathLike, at: str = "peak") -> Diff:
    """Compare what is live at a moment of two recordings, or their files, site by site.

    Sites are matched as `align` does it: the folder and shifted lines do not matter.
    at: as `live_at` takes it, of both. Raises UsageError for a moment that one of them
    does not have.
    """
    sides = []
    for name, trace in (("BEFORE", before), ("AFTER", after)):
        try:
            sides.append(summarize(trace, at))
        except UsageError as error:
            text, shell = f"{name}: {error}", f"{name}: {error.shell}"
            raise UsageError(text, shell=shell) from None
    one, other = sides
    old, new = one.at.sites(), other.at.sites()
    every = []
    for pair in align(_sizes(one.buffers), _sizes(other.buffers)):
        sizes = (
            old.get(pair.before, 0) if pair.before else 0,
            new.get(pair.after, 0) if pair.after else 0,
        )
        every.append(Change(pair.site.place, *sizes, (pair,)))
    categories = [
        Change(each.label, one.at.categories[each], other.at.categories[each])
        for each in Category
    ]
    return Diff(one, other, tuple(every), _changed(categories))


def responsible(rows: Sequence[Change]) -> tuple[Change, float] | None:
    """The row that is half of the growth or more, and its share, from 0.5 to 1.

    The growth is that of all rows that grew. None if there is no such row, or two, if
    it is not known what it is, or if the sum of all rows did not grow.
    """
    growth = sum(max(row.delta, 0) for row in rows)
    if sum(row.delta for row in rows) <= 0:
        return None
    most = [row for row in rows if row.delta >= _LEAST_SHARE * growth]
    if len(most) != 1 or most[0].name == UNKNOWN:
        return None
    return most[0], most[0].delta / growth


def _sizes(buffers: Lives) -> dict[Site, Sizes]:
    """The sizes of each site's buffers, in bytes."""
    sizes, index = np.unique(buffers.size, return_inverse=True)
    found: dict[int, list[int]] = {}
    for code in np.unique(buffers.site * len(sizes) + index).tolist():
        found.setdefault(code // len(sizes), []).append(code % len(sizes))
    return {
        buffers.sites[site]: frozenset(sizes[of].tolist()) for site, of in found.items()
    }


def _sum(name: str, changes: list[Change]) -> Change:
    ordered = sorted(changes, key=lambda change: -abs(change.delta))
    return Change(
        name,
        sum(change.before for change in changes),
        sum(change.after for change in changes),
        tuple(pair for change in ordered for pair in change.pairs),
    )


def _changed(changes: Sequence[Change]) -> tuple[Change, ...]:
    different = [change for change in changes if change.delta]
    return tuple(sorted(different, key=lambda change: -abs(change.delta)))
