"""What the report of a run says, of times, conditions and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memplan.applying.report import Memory
from memplan.recording.usage import Boundary, Spread, StepClock, run_stats, step_spreads
from memplan.trace.trace import Mark
from tests.conftest import ROOT, Run

OPTIMIZER = int(Mark.OPTIMIZER)


def boundaries(*steps: tuple[float, int, float]) -> list[Boundary]:
    """Boundaries between steps of these seconds, page faults and CPU seconds."""
    rows = [(0, 0, OPTIMIZER, 0)]
    for seconds, faults, cpu in steps:
        time, before, _, used = rows[-1]
        rows.append(
            (
                time + round(seconds * 1e9),
                before + faults,
                OPTIMIZER,
                used + round(cpu * 1e9),
            )
        )
    return rows


def test_what_falls_on_a_few_steps_is_not_lost_in_a_median() -> None:
    # One step in five is an evaluation that faults 50,000 pages in.
    steps = [(1.0, 10, 0.9)] * 4 + [(3.0, 50_000, 2.9)]
    stats = run_stats(boundaries(*steps * 4))
    assert stats.page_faults_per_step == pytest.approx((4 * 10 + 50_000) / 5)
    assert stats.cpu_seconds == pytest.approx((4 * 0.9 + 2.9) / 5)
    assert stats.step_seconds == pytest.approx(1.0)
    assert stats.steps == 21


def test_the_spread_is_of_the_later_half_of_the_steps() -> None:
    early, late = [(9.0, 999, 9.0)] * 4, [(1.0, 1, 1.0), (2.0, 2, 2.0), (3.0, 3, 3.0)]
    found = step_spreads(boundaries(*early, *late, (4.0, 4, 4.0)))
    assert found.counted == 4
    assert found.seconds == Spread(2.5, 1.75, 2.5, 3.25, 4.0)
    assert found.page_faults == Spread(2.5, 1.75, 2.5, 3.25, 4.0)
    assert step_spreads(boundaries()).seconds == Spread()
    assert step_spreads(boundaries((1.0, 2, 3.0))).cpu_seconds == Spread(*[3.0] * 5)


def test_only_the_strongest_marks_count() -> None:
    rows = boundaries((1.0, 5, 1.0), (1.0, 5, 1.0))
    weak = [(time + 1, 0, int(Mark.FORWARD), 0) for time, *_ in rows]
    assert step_spreads(sorted([*rows, *weak])) == step_spreads(rows)


def test_a_clock_of_many_steps_keeps_the_later_ones() -> None:
    clock = StepClock(most=8)
    for _ in range(50):
        clock.note(Mark.FORWARD)
        clock.note(Mark.OPTIMIZER)
    kept = clock.boundaries()
    assert 4 <= len(kept) < 8
    assert kept == sorted(kept)
    assert clock.steps == 50  # of the strongest kind
    assert {kind for _, _, kind, _ in kept} == {int(Mark.FORWARD), OPTIMIZER}


def memory(**changes: int) -> Memory:
    names = ("peak_resident", "arena", "tensors_outside", "before", "other")
    more = ("most_live", "most_live_in_arena", "arena_top", "returned")
    return Memory(**{**dict.fromkeys((*names, *more), 0), **changes})


def test_the_share_of_the_peak_that_no_plan_can_touch() -> None:
    assert memory(peak_resident=1000, before=300, other=200).out_of_reach == 0.5
    assert memory(peak_resident=1000, before=900, other=200).out_of_reach == 1.0
    assert memory().out_of_reach == 0.0


TWICE = """\
import json
import sys
import torch
import memplan

torch.set_num_threads(1)
model = torch.nn.Linear(1024, 1024)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
reports = []
for width in (16384, 256):
    with memplan.apply(sys.argv[1]) as loader:
        for _ in range(6):
            batch = torch.randn(width, 1024)
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        kept.append(torch.ones(8 << 18))  # outlives its plan
    reports.append(loader.report().to_json())
print(json.dumps(reports))
"""


@pytest.mark.torch
def test_a_second_plan_in_a_process_counts_only_what_is_its_own(
    planned: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "twice.py").write_text(TWICE)
    done = subprocess.run(
        [sys.executable, "twice.py", "p.json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    first, second = (report["memory"] for report in json.loads(done.stdout))
    # The first needed 128 MiB at a time, and the second 2.
    assert first["most_live"] > 124 << 20
    assert second["most_live"] < 30 << 20
    assert second["peak_resident"] < first["peak_resident"] - (20 << 20)
    for report in (first, second):
        assert min(report.values()) >= 0
        parts = ("arena", "tensors_outside", "before", "other")
        assert sum(report[part] for part in parts) >= report["peak_resident"]


@pytest.mark.torch
def test_a_recording_is_no_measure_of_a_plan(
    memplan: Run, planned: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    done = memplan("apply", "--report", "r.json", "p.json", "program.py", "14")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stderr.splitlines()]
    assert ["steps", "8", "14"] in lines
    assert ["threads", "1", "1"] in lines
    assert any(line[:2] == ["CPU", "time"] for line in lines)
    assert "ratio" not in done.stderr
    assert "compare with a run without memplan" in done.stderr
    assert "out of reach" in done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["recorded"]["steps"], report["run"]["steps"]) == (8, 14)
    assert report["recorded"]["cpu_seconds"] > 0 < report["cpu_seconds"]
    assert report["spread"]["counted"] == 7
    quarters = report["spread"]["seconds"]
    assert quarters["quarter"] <= quarters["median"] <= quarters["three_quarters"]
    assert 0 < report["memory"]["out_of_reach"] <= 1
