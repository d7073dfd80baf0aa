"""What is run on a GPU that is there for a while, where there is none."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

SCRIPT = ROOT / "scripts" / "gpu" / "visit.py"


def visit(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True
    )


def test_what_fails_stops_nothing_else_and_is_told(tmp_path: Path) -> None:
    busy = ("--seconds", 5000, "--patience", 50)
    done = visit(
        *("tests", "programs", "--built", "--out", tmp_path, "--only", "tiny", *busy)
    )
    assert done.returncode == 1
    failed = {line for line in done.stdout.splitlines() if line.startswith("FAILED")}
    assert any(line.startswith("FAILED soak: ended with 1") for line in failed)
    assert any(line.startswith("FAILED tiny: native: ended with 1") for line in failed)
    assert "==== tiny: native: 1 after" in (tmp_path / "log.txt").read_text()


def test_nothing_is_begun_without_time(tmp_path: Path) -> None:
    done = visit("times", "--built", "--out", tmp_path, "--seconds", 4)
    assert done.returncode == 1
    assert "FAILED resnet50: left out, there is no time for it" in done.stdout


def test_a_part_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert visit("lunch", "--out", tmp_path).returncode == 2


def test_what_it_runs_is_there() -> None:
    named = re.findall(r'GPU / "(\w+\.py)"', SCRIPT.read_text())
    assert len(set(named)) == 6
    assert all((SCRIPT.parent / name).exists() for name in named)
