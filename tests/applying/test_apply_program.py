"""Real programs under a plan: what they compute, and what becomes of their memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Run

pytest.importorskip("torch")


def test_a_plan_takes_no_page_faults_in_steady_steps(
    memplan: Run, training: Path, tmp_path: Path
) -> None:
    # Blocks of over 32 MiB always go back to the system, and fault in each step.
    wide = ["train.py", "7", "80000"]
    recording = ("record", "-q", "-o", "t.parquet")
    assert memplan(*recording, *wide, cold=True).returncode == 0
    assert memplan("solve", "t.parquet", "-o", "p.json").returncode == 0
    done = memplan("apply", "--report", "r.json", "p.json", *wide, cold=True)
    assert done.returncode == 0
    report = json.loads((tmp_path / "r.json").read_text())
    without = report["recorded"]["page_faults_per_step"]
    assert without > 10_000
    # A busy machine takes pages from the interpreter: 5.3 a step were seen.
    assert report["page_faults_per_step"] <= without / 1000
    assert report["fallback_requests"] == report["conflicts"] == 0
    assert report["warmup"]["fallback"] == report["warmup"]["conflicts"] == 0


def test_ctrl_c_under_a_plan_still_reports(memplan: Run, planned: Path) -> None:
    source = planned.read_text()
    interrupting = "import os, signal; os.kill(os.getpid(), signal.SIGINT)\n"
    planned.write_text(source + interrupting)
    done = memplan("apply", "--report", "r.json", "p.json", "program.py")
    assert done.returncode == 130
    assert "KeyboardInterrupt" in done.stderr
    assert json.loads((planned.parent / "r.json").read_text())["steps"] == 8


def test_another_number_of_threads_is_told(memplan: Run, planned: Path) -> None:
    source = planned.read_text()
    planned.write_text(source.replace("set_num_threads(1)", "set_num_threads(2)"))
    done = memplan("apply", "p.json", "program.py")
    assert done.returncode == 0
    assert "recorded with 1 threads, and this ran with 2" in done.stderr


def test_one_plan_at_a_time(memplan: Run, planned: Path) -> None:
    planned.write_text(
        "import memplan\n"
        "try:\n"
        "    with memplan.apply('p.json'): pass\n"
        "except memplan.errors.UsageError as error:\n"
        "    print(error)\n"
    )
    done = memplan("apply", "-q", "p.json", "program.py")
    assert "already recording or applying" in done.stdout
