"""What is live at a moment, and how much of it each line, module or category holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from memplan.arrays import Int64Array
from memplan.errors import UsageError
from memplan.files import PathLike
from memplan.trace.lives import Lives, lives_of
from memplan.trace.read import as_trace
from memplan.trace.sites import Site
from memplan.trace.trace import Action, Category, Trace

By = Literal["line", "function", "module", "op", "category", "size", "step", "holder"]
FREED = "freed before the end"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Share:
    """A part of what is live. name: as people read it. share: of the total, from 0 to
    1. count: of buffers. sites: theirs, the one with the most bytes first."""

    name: str
    bytes: int
    share: float
    count: int
    sites: tuple[Site, ...]

    @property
    def site(self) -> Site:
        """The site with the most bytes."""
        return self.sites[0]


@dataclass(frozen=True, eq=False)
class Live:
    """The buffers that are live after event `row`, as indexes; `row` is -1 for none."""

    buffers: Lives
    row: int
    chosen: Int64Array

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return int(self.buffers.size[self.chosen].sum())

    @property
    def seconds(self) -> float:
        """Since the first event."""
        return float(self.buffers.time_s[self.row]) if self.row >= 0 else 0.0

    @property
    def step(self) -> int:
        """The step it falls in; 0 is what comes before the first boundary."""
        return int(np.searchsorted(self.buffers.bounds, self.row, side="right"))

    @cached_property
    def categories(self) -> dict[Category, int]:
        """Bytes of each category, 0 where it has none; they sum to `bytes`."""
        sums = np.zeros(max(Category) + 1, dtype=np.int64)
        size = self.buffers.size[self.chosen]
        np.add.at(sums, self.buffers.category[self.chosen], size)
        return {category: int(sums[category]) for category in Category}

    def sites(self) -> dict[Site, int]:
        """Bytes of each site, most first; they sum to `bytes`."""
        sums = np.zeros(len(self.buffers.sites), dtype=np.int64)
        size = self.buffers.size[self.chosen]
        np.add.at(sums, self.buffers.site[self.chosen], size)
        order = np.argsort(-sums, kind="stable")
        return {self.buffers.sites[i]: int(sums[i]) for i in order if sums[i]}

    def by(self, kind: By) -> list[Share]:
        """The parts of what is live, largest first; their bytes sum to `bytes`."""
        buffers, total = self.buffers, self.bytes
        keys = _keys(buffers, kind)
        found: dict[str, list[int]] = {}
        for i in self.chosen.tolist():
            found.setdefault(str(keys(i)), []).append(i)
        shares = []
        for name, rows in found.items():
            size = int(buffers.size[rows].sum())
            sums: dict[Site, int] = {}
            for i in rows:
                site = buffers.sites[buffers.site[i]]
                sums[site] = sums.get(site, 0) + int(buffers.size[i])
            sites = tuple(sorted(sums, key=sums.__getitem__, reverse=True))
            shares.append(Share(name, size, size / total, len(rows), sites))
        return sorted(shares, key=lambda each: (-each.bytes, each.name))


def live_at(buffers: Lives | Trace | PathLike, at: str = "peak") -> Live:
    """What is live at a moment of the run; of a trace, its file, or its buffers.

    at: "peak"; "oom", the first failed request; "end", that of the last whole step, or
    of the run without steps; seconds since the first event, as in "1.5s", "20ms" or
    "0.25"; or a step's number, as in "3": the moment in that step when the most is
    live. Raises UsageError for what is none of these, or not in the trace.
    """
    if not isinstance(buffers, Lives):
        accepted = "a Trace, the path of one, or its buffers"
        buffers = lives_of(as_trace(buffers, accepted))
    return live_after(buffers, _row(buffers, at))


def no_moment(at: str, why: str) -> UsageError:
    """The error for a moment that a trace does not have."""
    return UsageError(f"at {at!r}: {why}", shell=f"--at {at}: {why}")


def live_after(buffers: Lives, row: int) -> Live:
    """What is live after event `row`."""
    return Live(buffers, row, buffers.live_rows(row))


def _row(buffers: Lives, at: str) -> int:
    if at == "oom":
        return _first_failed(buffers)
    if at == "peak" or not len(buffers.events):
        return buffers.peak_row
    if at == "end":
        return int([len(buffers.events) - 1, *buffers.bounds][-1])
    if re.fullmatch(r"[0-9]{1,9}", at):
        step = int(at)
        if step > len(buffers.bounds):
            last_step = len(buffers.bounds)
            raise no_moment(
                at, f"the trace has steps 0 to {last_step} only; {at}s means seconds"
            )
        edges = [0, *buffers.bounds.tolist(), len(buffers.events)]
        begin: int = edges[step]
        end = max(edges[step + 1], begin + 1)
        return begin + int(np.argmax(buffers.live_bytes[begin:end]))
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(s|ms|us|µs)?", at)
    if match is None:
        form = "write peak, oom, end, seconds as in 1.5s, or a step's number"
        raise no_moment(at, form)
    seconds = float(match[1]) * {"ms": 1e-3, "us": 1e-6, "µs": 1e-6}.get(match[2], 1.0)
    last = float(buffers.time_s[-1])
    if seconds > last:
        raise no_moment(at, f"the trace ends after {last:.6g} seconds")
    after = np.searchsorted(buffers.time_s, seconds, side="right")
    return int(after) - 1


def _first_failed(buffers: Lives) -> int:
    failed = np.flatnonzero(buffers.events.action == Action.OOM)
    if not len(failed):
        raise no_moment(
            "oom", "no request failed in this recording; peak is when most was live"
        )
    return int(failed[0])


def _keys(buffers: Lives, kind: By) -> Callable[[int], str | int]:
    """What buffers are summed by: of a buffer's index the part that it belongs to."""
    sites = buffers.sites
    if kind == "category":
        return lambda i: Category(int(buffers.category[i])).label
    if kind == "size":
        return lambda i: int(buffers.size[i])
    if kind == "step":
        return lambda i: int(buffers.step[i])
    if kind == "holder":
        return _holders(buffers)
    names = [site_name(site, kind) for site in sites]
    return lambda i: names[buffers.site[i]]


def _holders(buffers: Lives) -> Callable[[int], str]:
    texts = [holder.text for holder in buffers.holders]

    def of(i: int) -> str:
        if buffers.end[i] < len(buffers.events):
            return FREED
        return texts[buffers.holder[i]] if buffers.holder[i] >= 0 else UNKNOWN

    return of


def site_name(site: Site, kind: By) -> str:
    """What a site's buffers are summed by: kind: a part of a site, such as "module"."""
    names = {"function": site.function, "module": site.module, "op": site.operator}
    return site.place if kind == "line" else names[kind] or UNKNOWN
