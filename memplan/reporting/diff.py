"""What changed between two recordings: the peak, and the sites that made it change."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.reporting.live import Live
from memplan.reporting.stats import Stats, summarize
from memplan.trace.sites import Site
from memplan.trace.trace import Category, Trace


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
    first; the sites' deltas sum to the peak's."""

    before: Stats
    after: Stats
    sites: tuple[Change, ...]
    categories: tuple[Change, ...]

    @property
    def devices(self) -> tuple[str, str]:
        """Whose memory, "cpu" or "cuda", before and after."""
        return self.before.trace.info.device, self.after.trace.info.device

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
    sums = _by_site(one.peak), _by_site(other.peak)
    sites = [
        Change(site.place, site, *(side[key][1] if key in side else 0 for side in sums))
        for key, (site, _) in (sums[1] | sums[0] | sums[1]).items()
    ]
    categories = [
        Change(
            each.label, Site(), one.peak.categories[each], other.peak.categories[each]
        )
        for each in Category
    ]
    return Diff(one, other, _changed(sites), _changed(categories))


def _by_site(live: Live) -> dict[tuple[str, ...], tuple[Site, int]]:
    """The first line of each site, and its bytes."""
    found: dict[tuple[str, ...], tuple[Site, int]] = {}
    for site, size in live.sites().items():
        key = (site.file, site.function, site.module, site.operator)
        first, bytes_ = found.get(key, (site, 0))
        found[key] = first, bytes_ + size
    return found


def _changed(changes: list[Change]) -> tuple[Change, ...]:
    different = [change for change in changes if change.delta]
    return tuple(sorted(different, key=lambda change: -abs(change.delta)))
