"""The report in a browser: it draws, asks for nothing, and answers to the pointer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import memplan
from memplan.reporting.html.report import report
from memplan.trace.trace import Trace
from tests.conftest import ROOT
from tests.reporting import browser
from tests.reporting.browser import Browser
from tests.reporting.pages import (
    hostile,
    loop,
    many,
    of_kinds,
    of_threads,
)

pytestmark = pytest.mark.skipif(
    not browser.there_is_one(), reason="needs chromium and chromedriver"
)

BUFFERS = 5_000
LIT = """
const canvas = document.querySelector(arguments[0]);
const copy = new OffscreenCanvas(canvas.width, canvas.height);
const context = copy.getContext("2d", {willReadFrequently: true});
context.drawImage(canvas, 0, 0);
const data = context.getImageData(0, 0, canvas.width, canvas.height);
const seen = new Set();
for (let i = 0; i < data.data.length; i += 4 * 37) {
  if (data.data[i + 3]) seen.add(data.data.slice(i, i + 3).join());
}
return seen.size;
"""
VIEW = "const r = memplanReport.range; return [r.low, r.high];"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser.browser(tmp_path_factory.mktemp("profile")) as session:
        yield session


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("pages") / "many.html"
    page.write_text(report(many(BUFFERS)), encoding="utf-8")
    return page


def quiet(chromium: Browser, page: Path) -> None:
    assert chromium.complaints() == []
    assert chromium.requests() == [page.as_uri()]


def test_thousands_of_buffers_are_drawn_and_zoomed(
    chromium: Browser, crowded: Path
) -> None:
    chromium.open(crowded)
    assert chromium.run("return memplanReport.set.count") == BUFFERS
    for canvas in ("#timeline", "#packing", "#flame"):
        assert chromium.run(LIT, canvas) > 3, canvas
    low, high = chromium.run(VIEW)
    assert (low, high) == (0, 2 * BUFFERS)
    chromium.wheel("#packing", 400, 200, -480)
    closer = chromium.run(VIEW)
    assert low < closer[0] < closer[1] < high
    assert chromium.run(LIT, "#packing") > 3
    chromium.run("document.getElementById('whole').click()")
    assert chromium.run(VIEW) == [low, high]
    quiet(chromium, crowded)


def test_hovering_a_buffer_says_size_life_and_site(
    chromium: Browser, crowded: Path
) -> None:
    chromium.open(crowded)
    # To the middle of the largest buffer there is.
    x, y, size = chromium.run(
        """
        const {set, range} = memplanReport;
        let i = 0;
        for (let k = 1; k < set.count; k++) {
          const area = (n) => set.size[n] * (set.upper[n] - set.lower[n]);
          if (area(k) > area(i)) i = k;
        }
        const c = document.getElementById("packing");
        const [w, h] = [c.clientWidth - 88, c.clientHeight - 44];
        const tick = (set.lower[i] + set.upper[i]) / 2;
        const top = memplanReport.addressTop * 1.02;
        return [74 + w * tick / range.high,
                20 + h * (1 - (set.bottom[i] + set.size[i] / 2) / top), set.size[i]];
        """
    )
    chromium.point("#packing", x, y)
    said = chromium.text("#tooltip")
    assert "events " in said
    assert "/home/me/" in said
    assert f"{size / 2**20:.1f} MiB" in said
    assert not chromium.run("return document.getElementById('tooltip').hidden")
    quiet(chromium, crowded)


def test_a_click_in_either_picture_shows_what_was_alive_then(
    chromium: Browser, crowded: Path
) -> None:
    chromium.open(crowded)
    peak = chromium.text("#alive .headline")
    assert "peak" in peak
    for canvas, x in (("#timeline", 300), ("#packing", 500)):
        chromium.point(canvas, x, 150, click=True)
        then = chromium.text("#alive .headline")
        assert then != peak
        assert "of the peak" in then
        total, listed = chromium.run(
            """
            const {set, moment, moments, total} = memplanReport;
            let sum = 0;
            for (let i = 0; i < set.count; i++) {
              if (set.lower[i] <= moments[moment] && moments[moment] < set.upper[i]) {
                sum += set.size[i];
              }
            }
            return [total[moment], sum];
            """
        )
        assert total == listed
        assert chromium.run("return document.querySelectorAll('.site').length") >= 4
        peak = then
    quiet(chromium, crowded)


def test_a_site_is_followed_through_the_pictures(
    chromium: Browser, crowded: Path
) -> None:
    chromium.open(crowded)
    before = chromium.run(LIT, "#packing")
    chromium.run("document.querySelector('.site').click()")
    chromium.settle()
    assert chromium.run("return memplanReport.site") is not None
    assert chromium.run(LIT, "#packing") != before
    chromium.run("document.querySelectorAll('.choice button')[1].click()")
    assert "never freed" in chromium.text(".sites") or "events" in chromium.text(
        ".sites"
    )
    chromium.run("document.querySelector('.sites .site').click()")
    assert chromium.run(VIEW) != [0, 2 * BUFFERS]
    quiet(chromium, crowded)


def test_seconds_categories_and_the_flame(chromium: Browser, tmp_path: Path) -> None:
    page = tmp_path / "loop.html"
    page.write_text(report(loop()), encoding="utf-8")
    chromium.open(page)
    chromium.run("document.getElementById('by-seconds').click()")
    low, high = chromium.run(VIEW)
    assert low == 0 and high < 1
    chromium.run("document.getElementById('by-events').click()")
    total = chromium.text("#alive .many")
    chromium.run("document.querySelector('#legend button').click()")
    assert chromium.text("#alive .many") != total
    chromium.run("document.querySelector('#legend button').click()")
    assert chromium.text("#alive .many") == total
    chromium.point("#flame", 40, 30)
    assert "train.py:10" in chromium.text("#tooltip")
    chromium.point("#flame", 40, 50, click=True)
    chromium.point("#flame", 40, 30)
    quiet(chromium, page)


def test_a_plan_is_drawn_before_and_after(chromium: Browser, tmp_path: Path) -> None:
    trace = memplan.read_trace(ROOT / "traces/train_resnet50.parquet")
    page = tmp_path / "plan.html"
    page.write_text(report(trace, memplan.solve(trace, "bestfit")), encoding="utf-8")
    chromium.open(page)
    tabs = "document.querySelectorAll('#tabs button')"
    assert chromium.run(f"return {tabs}.length") == 3
    for k in (1, 2):
        chromium.run(f"{tabs}[{k}].click()")
        chromium.settle()
        chromium.settle()
        assert chromium.run(LIT, "#after") > 3
        assert "MiB" in chromium.text("#packing-note")
    chromium.run(f"{tabs}[1].click()")
    chromium.settle()
    chromium.point("#after", 200, 300)
    assert "offset" in chromium.text("#tooltip")
    chromium.point("#before", 200, 300)
    assert "addresses used" in chromium.text("#tooltip")
    quiet(chromium, page)


@pytest.mark.parametrize(
    ("trace", "tabs", "offset"),
    [(of_kinds(), 4, "in the arena"), (of_threads(), 2, "in the lane")],
    ids=["kinds", "lanes"],
)
def test_plans_of_kinds_and_of_lanes_are_drawn(
    chromium: Browser, tmp_path: Path, trace: Trace, tabs: int, offset: str
) -> None:
    page = tmp_path / "plan.html"
    page.write_text(report(trace, memplan.solve(trace)), encoding="utf-8")
    chromium.open(page)
    buttons = "document.querySelectorAll('#tabs button')"
    assert chromium.run(f"return {buttons}.length") == tabs
    for k in range(1, tabs):
        chromium.run(f"{buttons}[{k}].click()")
        chromium.settle()
        chromium.settle()
        assert chromium.run(LIT, "#after") > 3
        high = chromium.run("return document.getElementById('after').clientHeight")
        chromium.point("#after", 100, high - 40)
        assert offset in chromium.text("#tooltip")
        assert "undefined" not in chromium.text("#tooltip")
    quiet(chromium, page)


def test_hostile_names_are_only_text(chromium: Browser, tmp_path: Path) -> None:
    page = tmp_path / "hostile.html"
    page.write_text(report(hostile()), encoding="utf-8")
    chromium.open(page)
    assert "<script>alert(1)</script>" in chromium.text("h1")
    assert "onerror=alert(2)" in chromium.text("#alive .sites")
    chromium.point("#flame", 40, 50)
    assert "onerror" in chromium.text("#tooltip")
    assert chromium.run("return document.querySelectorAll('img').length") == 0
    quiet(chromium, page)
