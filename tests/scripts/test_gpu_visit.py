"""The runs for a GPU that is there for a while, where there is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

SCRIPT = ROOT / "scripts" / "gpu" / "visit.sh"


def visit(run: str, output: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), run, str(output)],
        env={**os.environ, "BUILT": "1", "PYTHON": sys.executable, **settings},
        capture_output=True,
        text=True,
    )


def test_nothing_is_begun_without_time_and_all_is_in_the_log(tmp_path: Path) -> None:
    done = visit("bench", tmp_path, LIMIT="4")
    assert done.returncode == 1
    log = (tmp_path / "bench.log").read_text()
    assert done.stdout == log
    assert "==== bench: " in log
    assert "---- bench: left out, there is no time for it" in log


def test_a_run_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert visit("lunch", tmp_path).returncode == 2


def test_what_it_runs_is_there() -> None:
    named = re.findall(r"\$root/((?:scripts|tests)/\S+\.py)", SCRIPT.read_text())
    assert len(named) == 6
    for name in named:
        paths = [name.replace("$name", each) for each in ("training", "soak", "stacks")]
        assert all((ROOT / path).exists() for path in paths)
