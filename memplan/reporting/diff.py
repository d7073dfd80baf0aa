"""What changed between two recordings: the peak, and the sites that made it change."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.reporting.live import Live
from memplan.reporting.stats import Stats, category_entries, site_entries, summarize
from memplan.trace.category import Category
from memplan.trace.sites import Site
from memplan.trace.trace import Trace


@dataclass(frozen=True)
class Change:
    """Bytes at the peak, before and after, of a site or a category."""

    name: str
    site: Site
    before: int
    after: int

    @property
    def delta(self) -> int:
        """Bytes more than before."""
        return self.after - self.before


@dataclass(frozen=True)
class Diff:
    """Two recordings' peaks. sites, categories: those that changed, the largest change
    first; the sites' deltas sum to the peak's. devices: whose memory, "cpu" or
    "cuda"."""

    before: Stats
    after: Stats
    sites: tuple[Change, ...]
    categories: tuple[Change, ...]
    devices: tuple[str, str] = ("cpu", "cpu")

    @property
    def delta(self) -> int:
        """Bytes that the peak is higher than before."""
        return self.after.peak.bytes - self.before.peak.bytes


def diff(before: Trace, after: Trace) -> Diff:
    """Compare the peaks of two recordings, site by site.

    A site is its file, function and module with the operator: a line that moved within
    its function is the same site.
    """
    one, other = summarize(before), summarize(after)
    return Diff(
        one,
        other,
        _changes(_by_site(one.peak), _by_site(other.peak)),
        _changes(_by_category(one.peak), _by_category(other.peak)),
        (before.info.device, after.info.device),
    )


def entries(found: Diff) -> dict[str, object]:
    """`found` as `memplan diff --json` prints it."""
    return {
        "schema": "memplan.diff",
        "version": 1,
        "before": _side(found.before, found.devices[0]),
        "after": _side(found.after, found.devices[1]),
        "same_device": found.devices[0] == found.devices[1],
        "delta_bytes": found.delta,
        "sites": [
            {
                **site_entries(change.site),
                "before": change.before,
                "after": change.after,
                "delta": change.delta,
            }
            for change in found.sites
        ],
    }


def _side(stats: Stats, device: str) -> dict[str, object]:
    return {
        "device": device,
        "peak_bytes": stats.peak.bytes,
        "peak_time": stats.peak.seconds,
        "categories": category_entries(stats.peak),
    }


_Sums = dict[tuple[str, ...], tuple[str, Site, int]]


def _by_site(live: Live) -> _Sums:
    found: _Sums = {}
    for site, size in live.sites().items():
        key = (site.file, site.function, site.module, site.operator)
        name, first, bytes_ = found.get(key, (site.place, site, 0))
        found[key] = name, first, bytes_ + size
    return found


def _by_category(live: Live) -> _Sums:
    return {
        (category.label,): (category.label, Site(), live.categories[category])
        for category in Category
    }


def _changes(before: _Sums, after: _Sums) -> tuple[Change, ...]:
    changes = []
    for key in {**after, **before}:
        name, site, _ = after.get(key) or before[key]
        sizes = [side[key][2] if key in side else 0 for side in (before, after)]
        if sizes[0] != sizes[1]:
            changes.append(Change(name, site, *sizes))
    return tuple(sorted(changes, key=lambda change: -abs(change.delta)))
