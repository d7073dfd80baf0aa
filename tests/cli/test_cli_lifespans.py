"""A plan whose blocks lie by how long they live, as commands tell of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import memplan
from memplan.core.plan import Plan
from memplan.core.planfile import read_plan
from memplan.plotting.packing import packing
from memplan.reporting.html.report import report
from memplan.trace.trace import Trace
from memplan.units import format_bytes
from tests.cli.conftest import Command
from tests.plotting.pictures import words
from tests.reporting.test_html_report import Page
from tests.solving.test_lifespans import LENGTHS, START, on_cuda, step_of


@pytest.fixture(scope="module")
def trace() -> Trace:
    return on_cuda([START, *(step_of(*both) for both in LENGTHS)])


@pytest.fixture
def plan(command: Command, tmp_path: Path, trace: Trace) -> Plan:
    """Made from t.parquet, and in p.json."""
    memplan.write_trace(trace, tmp_path / "t.parquet")
    done = command("solve", "t.parquet", "-o", "p.json")
    assert done.code == 0
    found = read_plan(tmp_path / "p.json")
    assert 0 < found.arena_bytes < found.peak == found.lower_bound
    arena = f"  arena        {format_bytes(found.arena_bytes)}, where blocks lie by how"
    assert arena in done.out + done.err
    # That their offsets are the best is true, and no one's blocks lie there.
    assert "gap          0 %, of a step of the largest sizes" in done.out + done.err
    return found


def test_commands_tell_of_the_arena(plan: Plan, command: Command) -> None:
    arena, peak = format_bytes(plan.arena_bytes), format_bytes(plan.peak)
    said = command("verify", "p.json").out
    assert f"buffers in {peak}, none overlap; arena {arena}\n" in said
    assert f"arena         {arena}, where blocks lie" in command("stats", "p.json").out
    found = json.loads(command("stats", "p.json", "--json").out)
    assert (found["peak_bytes"], found["arena_bytes"]) == (plan.peak, plan.arena_bytes)


def test_it_is_the_arena_that_is_checked(plan: Plan, command: Command) -> None:
    passed = command("check", "p.json", "--max", str(plan.arena_bytes))
    failed = command("check", "p.json", "--max", str(plan.arena_bytes - 1))
    assert (passed.code, failed.code) == (0, 1)
    assert f"planned arena {format_bytes(plan.arena_bytes)}, limit" in (
        passed.out + passed.err
    )
    assert "planned arena" in failed.err


def test_the_picture_says_that_nothing_lies_there(plan: Plan) -> None:
    figure = packing(plan)
    text = words(figure)
    assert f"applied in {format_bytes(plan.arena_bytes)}, by how long" in text
    assert figure.axes[0].get_ylabel() == "offset, as solved for the largest sizes"
    assert "proved" not in text


def test_the_page_says_in_what_they_lie(plan: Plan, trace: Trace) -> None:
    page = Page(report(trace, plan))
    arena = format_bytes(plan.arena_bytes)
    hot = page.scene["plan"]["placements"][0]
    assert f"applied, blocks lie by how long they live, in {arena}." in hot["note"]
    assert "all of the largest sizes" in page.words
    assert "proved" not in page.words
