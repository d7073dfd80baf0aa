"""The numbers that the page and `memplan stats` both have are the same."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from memplan.reporting.html.report import report
from memplan.reporting.stats import summarize
from memplan.trace.read import read_trace
from memplan.trace.trace import Action, Category, Mark, Trace
from memplan.units import format_bytes, format_seconds
from tests.conftest import ROOT
from tests.reporting.asking import asking
from tests.reporting.pages import Page, hostile, loop, many, of_kinds, stacks, traced
from tests.snapshot_samples import FRAMES, Device, segment, snapshot, step

BASE = 0x7F_0000_0000
MIB = 1 << 20


def sample(name: str) -> Callable[[Path], Trace]:
    return lambda folder: read_trace(ROOT / f"traces/{name}.parquet")


def made(make: Callable[[], Trace]) -> Callable[[Path], Trace]:
    return lambda folder: make()


def of_snapshot(*args: Device, held: bool = False) -> Callable[[Path], Trace]:
    """A snapshot that is read from a file; held: with a live block in a segment."""
    blocks = ((BASE, 3 * MIB, "active_allocated"),) if held else ()
    value = snapshot(*args, segments=(segment(BASE, 20 * MIB, *blocks),))

    def read(folder: Path) -> Trace:
        (folder / "s.pickle").write_bytes(pickle.dumps(value, protocol=4))
        return read_trace(folder / "s.pickle")

    return read


def late() -> Trace:
    """Nothing is asked for until after the first step; all is freed at the end."""
    rows = [(int(Action.STEP), 0, 0, int(Mark.EXPLICIT), -1)] * 3
    for k in range(6):
        rows.append((Action.ALLOC, 1 << 20 | k << 12, 4096 * (k % 4 + 1), 0, k % 4))
        rows.append((Action.STEP, 0, 0, Mark.EXPLICIT, -1))
    rows += [(Action.FREE_COMPLETED, 1 << 20 | k << 12, 0, 0, -1) for k in range(6)]
    return traced(rows, stacks())


def training() -> Device:
    """A failed request in the midst of steps, and segments before the first block."""
    device = Device()
    for i in range(3):
        device.other("segment_alloc", addr=BASE + i * 8 * MIB, size=8 * MIB)
    device.allocate(BASE, 3_000_000, frames=FRAMES)
    for _ in range(4):
        step(device, BASE + 4 * MIB)
    device.other("oom", size=1 << 34, device_free=MIB, frames=FRAMES)
    device.free(BASE)
    return device


SOURCES = {
    "infer_resnet50": sample("infer_resnet50"),
    "train_googlenet": sample("train_googlenet"),
    "train_gpt2": sample("train_gpt2"),
    "train_resnet50": sample("train_resnet50"),
    "leak": made(lambda: asking(12)),
    "failed": made(lambda: asking(4, asked=1 << 40)),
    "loop": made(loop),
    "kinds": made(of_kinds),
    "late": made(late),
    "many": made(lambda: many(3000)),
    "hostile": made(hostile),
    "snapshot": of_snapshot(training()),
    "ring": of_snapshot(Device(), training(), held=True),
    "state": of_snapshot(Device(), held=True),
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_page_has_the_numbers_of_stats(source: str, tmp_path: Path) -> None:
    trace = SOURCES[source](tmp_path)
    stats, page = summarize(trace), Page(report(trace))
    figures = page.figures()
    if trace.info.history:
        when = f"after {format_seconds(stats.peak.seconds)}"
        assert figures["peak live"] == (format_bytes(stats.peak.bytes), when)
    else:
        assert figures["live"] == (format_bytes(stats.peak.bytes), "")
    if stats.steps > 2:
        assert figures["kept at end"][0] == format_bytes(stats.kept_at_end_bytes)
    elif trace.info.history:
        end = summarize(trace, "end").at
        assert figures["live at the end"][0] == format_bytes(end.bytes)
    if stats.reserved is not None:
        assert figures["reserved"][0] == format_bytes(stats.reserved.bytes)
    if stats.trace.info.run.peak_rss_bytes and trace.info.device == "cpu":
        resident = format_bytes(stats.trace.info.run.peak_rss_bytes)
        assert figures["process, resident"][0] == resident
    # What the script of the page makes of its columns.
    scene, columns = page.scene, page.columns()
    names = [entry["name"] for entry in scene["categories"]]
    at = np.searchsorted(columns["moment"], scene["peak_tick"], side="right") - 1
    live = [int(columns[f"live{c}"][at]) for c in range(len(names))]
    assert columns["seconds"][at] == pytest.approx(stats.peak.seconds)
    assert sum(live) == scene["peak"] == stats.peak.bytes
    known = stats.peak.categories
    if known[Category.UNKNOWN] < stats.peak.bytes:
        assert dict(zip(names, live, strict=True)) == {
            c.label: size for c, size in known.items() if c.label in names
        }
    assert len(columns["steps"]) == stats.steps
    begun = np.searchsorted(columns["steps"], scene["peak_tick"], side="right")
    assert begun == stats.peak.step
    there = (columns["lower"] <= scene["peak_tick"]) & (
        columns["upper"] > scene["peak_tick"]
    )
    sums: dict[int, int] = {}
    for site, size in zip(columns["site"][there], columns["size"][there], strict=True):
        sums[site] = sums.get(site, 0) + int(size)
    sites = [(scene["sites"][site][:3], size) for site, size in sums.items()]
    assert sorted(sites) == sorted(
        ([site.file, site.line, site.function], size)
        for site, size in stats.peak.sites().items()
    )
    failed = int((trace.events.action == Action.OOM).sum())
    assert len(scene["ooms"]) == failed == (stats.oom.count if stats.oom else 0)
    if stats.oom:
        first = scene["ooms"][0]
        assert first["size"] == stats.oom.requested_bytes
        at = np.searchsorted(columns["moment"], first["tick"], side="right") - 1
        whole = sum(int(columns[f"live{c}"][at]) for c in range(len(names)))
        assert whole == stats.oom.live.bytes
