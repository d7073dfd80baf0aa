"""The report holds what the trace holds, and nothing in it can act."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

import memplan
from memplan.core.plan import Program
from memplan.errors import InputError
from memplan.reporting.html.placements import closed_up
from memplan.reporting.html.report import report
from memplan.reporting.html.scene import (
    MOST_BUFFERS,
    MOST_MOMENTS,
    most_telling,
    shown_moments,
    tick_of,
)
from memplan.trace.lives import lives_of
from memplan.trace.stacks import StackTable
from memplan.trace.trace import Action, Columns, Mark, Trace
from tests.conftest import ROOT
from tests.reporting.pages import (
    HOSTILE,
    Page,
    hostile,
    loop,
    many,
    of_kinds,
    of_threads,
    stacks,
    traced,
)

SAMPLE = ROOT / "traces/train_resnet50.parquet"


def test_the_curves_are_the_live_bytes_of_the_trace() -> None:
    page = Page(report(loop(labels=True)))
    columns, scene = page.columns(), page.scene
    names = [entry["name"] for entry in scene["categories"]]
    assert names == ["parameters", "activations", "temporaries"]
    parameters = columns["live0"]
    assert parameters.max() == parameters[-1] == sum(4096 * k for k in range(1, 9))
    total = sum(columns[f"live{c}"] for c in range(len(names)))
    assert scene["peak"] == total.max() == parameters[-1] + 8 * 16384 + 512
    assert scene["peak_tick"] == int(np.argmax(total))
    assert len(columns["steps"]) == 5


def test_every_buffer_has_its_site_life_and_address() -> None:
    trace = loop(steps=1, layers=2)
    page = Page(report(trace))
    columns, scene = page.columns(), page.scene
    assert columns["size"].tolist() == [4096, 8192, 16384, 512, 16384, 512]
    assert columns["lower"].tolist() == [0, 1, 2, 3, 5, 6]
    assert columns["upper"].tolist() == [10, 10, 9, 4, 8, 7]
    lines = [scene["sites"][k][1] for k in columns["site"]]
    assert lines == [3, 3, 7, 10, 9, 10]
    # Parameters leave no gap, activations lie a buffer apart, scratch on top of all.
    assert columns["address"].tolist() == [0, 4096, 12288, 45056, 28672, 45056]
    assert scene["address_top"] == 45056 + 512


def test_the_tree_of_stacks_leads_from_main_to_each_site() -> None:
    page = Page(report(loop(steps=1, layers=1)))
    columns, labels = page.columns(), page.scene["labels"]

    def path(node: int) -> list[str]:
        found = []
        while node:
            found.append(labels[columns["node_label"][node]][2])
            node = int(columns["node_parent"][node])
        return found[::-1]

    assert path(columns["node"][1]) == ["main", "forward", "layers.0 · linear"]
    assert path(columns["node"][0]) == ["main", "__init__"]


def test_folders_can_be_left_out_and_the_page_is_the_same_each_time() -> None:
    text = report(loop())
    assert "/home/me" in text
    assert text == report(loop())
    assert "/home/me" not in report(loop(), paths=False)


def test_a_plan_is_shown_beside_what_it_was_made_from() -> None:
    trace = memplan.read_trace(SAMPLE)
    plan = memplan.solve(trace, "bestfit")
    page = Page(report(trace, plan))
    columns = page.columns()
    hot, warmup = page.scene["plan"]["placements"]
    assert hot["peak"] == plan.peak
    assert hot["bound"] == plan.lower_bound
    assert hot["before_top"] > plan.peak
    again = int((plan.problem.wraps & (plan.problem.upper > 0)).sum())
    assert len(columns["plan0_left"]) == len(plan.problem) + again
    assert (columns["plan0_bottom"] + columns["plan0_size"]).max() <= plan.peak
    assert warmup["before_top"] == 0
    # The same buffers, by their sizes, before and after.
    buffers = lives_of(trace)
    assert set(columns["plan0_size"]) <= set(buffers.size.tolist())
    before = columns["plan0_before"] + columns["plan0_size"]
    assert before.max() == hot["before_top"]


def test_before_a_plan_no_two_live_buffers_shared_an_address() -> None:
    trace = loop(steps=6)
    plan = memplan.solve(trace)
    columns = Page(report(trace, plan)).columns()
    bottom, size = columns["plan0_before"], columns["plan0_size"]
    left, right = columns["plan0_left"], columns["plan0_right"]
    for i in range(len(size)):
        for j in range(i):
            together = left[i] < right[j] and left[j] < right[i]
            apart = bottom[i] >= bottom[j] + size[j] or bottom[j] >= bottom[i] + size[i]
            assert apart or not together


def test_steps_of_other_kinds_have_their_own_sites_and_categories() -> None:
    trace = of_kinds()
    plan = memplan.solve(trace)
    page = Page(report(trace, plan))
    columns = page.columns()
    hot, before, kind = page.scene["plan"]["placements"]
    # The run's buffers: one before, two a hot step (two are planned), the odd one's.
    for k, rows in ((0, [1, 2, 3, 4]), (1, [0]), (2, [9, 10, 11])):
        for name in ("size", "site", "category"):
            assert columns[f"plan{k}_{name}"].tolist() == columns[name][rows].tolist()
    assert hot["before_top"] and not before["before_top"] and not kind["before_top"]
    # The arena has room for all kinds; the bound is the hot steps' alone.
    assert kind["peak"] == plan.arena_bytes > plan.peak
    assert "hot step 12.0 KiB" in page.words
    assert "the hot step: proved optimal" in page.words


def test_of_threads_that_take_turns_a_lane_is_shown() -> None:
    trace = of_threads(threads=2)
    plan = memplan.solve(trace)
    assert plan.lanes == 2
    page = Page(report(trace, plan))
    (lane,) = page.scene["plan"]["placements"]
    assert lane["name"] == "a thread's step"
    assert "2 threads at a time" in lane["note"]
    assert "2 lanes of 12.0 KiB" in page.words
    assert "a thread's step: proved optimal" in page.words
    # Its buffers are nobody's in particular, and of no category.
    assert set(page.columns()["plan0_category"]) == {len(page.scene["categories"])}


def test_steps_that_the_trace_does_not_repeat_are_drawn_alone() -> None:
    """Blocks that live for two steps: the plan repeats every three."""
    rows = []
    for step, size in enumerate((64, 128, 128, 128)):
        rows.append((Action.STEP, 0, 0, Mark.EXPLICIT, -1))
        rows.append((Action.ALLOC, 1 << 20 | step << 12, size, 0, 1))
        if step:
            rows.append((Action.FREE_COMPLETED, 1 << 20 | (step - 1) << 12, 0, 0, -1))
    rows.append((Action.STEP, 0, 0, Mark.EXPLICIT, -1))
    rows.append((Action.FREE_COMPLETED, 1 << 20 | 3 << 12, 0, 0, -1))
    trace = traced(rows, stacks())
    # After the first come larger ones; after the second two alike; then there are none.
    for step, known in (("1", False), ("2", True), ("3", False)):
        plan = memplan.solve(trace, step=step)
        page = Page(report(trace, plan))
        hot = page.scene["plan"]["placements"][0]
        assert len(plan.problem) == 3
        assert bool(hot["before_top"]) is known
        nobodys = len(page.scene["categories"])
        assert (set(page.columns()["plan0_category"]) == {nobodys}) is not known


def test_a_plan_of_another_trace_is_refused() -> None:
    plan = memplan.solve(loop(steps=6, layers=3))
    with pytest.raises(InputError, match="another trace"):
        report(loop(steps=6, layers=4), plan)


def test_what_failed_and_what_is_missing_is_said() -> None:
    trace = loop(oom=7 << 30)
    info = dataclasses.replace(trace.info, complete=False, dropped_events=12_345)
    info = dataclasses.replace(info, program=Program())
    page = Page(report(dataclasses.replace(trace, info=info)))
    for words in (
        "Out of memory: a request for 7.0 GiB failed.",
        "12,345 events are missing",
        "not complete",
        "a recorded run",
    ):
        assert words in page.words
    (oom,) = page.scene["ooms"]
    assert oom == {"tick": page.scene["ticks"] - 1, "size": 7 << 30}


@pytest.mark.parametrize("labels", [True, False])
def test_colours_are_by_category_or_else_by_life(labels: bool) -> None:
    trace = loop(labels=labels)
    if not labels:
        trace = dataclasses.replace(trace, stacks=StackTable(list(trace.stacks)))
    names = [e["name"] for e in Page(report(trace)).scene["categories"]]
    assert ("parameters" in names) == labels
    assert ("outlives steps" in names) != labels


def test_without_steps_colours_are_by_how_long_buffers_live() -> None:
    bare = dataclasses.replace(many(500), stacks=StackTable())
    events = bare.events
    columns = {
        name: getattr(events, name) for name in Columns.DTYPES if name != "stack"
    }
    bare = dataclasses.replace(bare, events=Columns.of(**columns))
    names = [e["name"] for e in Page(report(bare)).scene["categories"]]
    assert all(name.startswith("alive") for name in names)


@pytest.mark.parametrize(
    "trace",
    [
        Trace(Columns.of()),
        Trace(Columns.of(action=[Action.STEP], mark=[3])),
        Trace(Columns.of(action=[Action.OOM], requested_size=[1 << 50], size=[1])),
    ],
)
def test_a_trace_without_allocations_makes_a_page(trace: Trace) -> None:
    page = Page(report(trace))
    assert "nothing to draw" in page.words
    assert page.scripts == []


def test_names_cannot_leave_their_place() -> None:
    text = report(hostile())
    page = Page(text)
    assert [attributes.get("id") for attributes, _ in page.scripts] == [
        "scene",
        "columns",
        None,
    ]
    assert "img" not in [tag for tag, _ in page.tags]
    assert f"/home/me/{HOSTILE}" in [site[0] for site in page.scene["sites"]]
    assert "<script>alert(1)</script>" in page.words  # as text
    assert not any(
        name.startswith("on") for _, attributes in page.tags for name in attributes
    )


def test_names_that_are_no_text_are_written_all_the_same(tmp_path: Path) -> None:
    trace = traced([(0, 64, 64, 0, 0)], stacks("\udcff\x00.py"), "\udcff.py")
    text = report(trace)
    (tmp_path / "page.html").write_bytes(text.encode("utf-8"))
    assert "\\udcff.py" in Page(text).words


def test_the_page_asks_for_nothing_and_runs_only_its_own_script() -> None:
    text = report(hostile())
    page = Page(text)
    (policy,) = [a["content"] for t, a in page.tags if "http-equiv" in a]
    assert policy is not None and policy.startswith("default-src 'none'")
    script = page.scripts[2][1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    links = [a for _, attributes in page.tags for a in attributes.items()]
    addresses = [v for name, v in links if name in ("src", "href")]
    assert addresses == ["data:,"]
    assert not re.search(r"https?://|innerHTML", text)


def test_many_events_keep_peak_troughs_and_the_peaks_buffers() -> None:
    trace = many(MOST_BUFFERS + 500)
    lives = lives_of(trace)
    live, peak = lives.live_bytes[lives.tick_row], tick_of(lives, lives.peak_row)
    moments = shown_moments(lives, np.array([7]))
    assert len(moments) <= MOST_MOMENTS + 1
    assert {7, peak, 0, lives.ticks - 1} <= set(moments.tolist())
    for begin in range(0, lives.ticks, lives.ticks // 50):
        end = begin + lives.ticks // 50
        inside = moments[(moments >= begin) & (moments < end)]
        stretch = live[begin + 8 : end - 8]  # those at the edges are a neighbour's
        assert live[inside].min() <= stretch.min()
        assert live[inside].max() >= stretch.max()
    shown = most_telling(lives)
    assert len(shown) == MOST_BUFFERS == len(set(shown.tolist()))
    there = (lives.lower <= peak) & (peak < lives.freed)
    assert set(np.flatnonzero(there).tolist()) <= set(shown.tolist())


@pytest.mark.soak
def test_a_page_of_a_million_events_is_small() -> None:
    text = report(many(600_000))
    assert len(text) <= 8 << 20
    assert "of 600,000 buffers are drawn one by one" in text


def test_addresses_close_up_to_what_was_used() -> None:
    device = np.array([1, 0, 0, 1], dtype=np.int16)
    address = np.array([2**63, 100, 2**64 - 64, 2**63 + 8], dtype=np.uint64)
    place = closed_up(device, address, np.array([16, 10, 64, 4]))
    assert place.tolist() == [74, 0, 10, 82]
