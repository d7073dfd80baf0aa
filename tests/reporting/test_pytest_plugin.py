"""The fixture `memplan_peak`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PROGRAM = """\
import pytest
import torch

def test_within(memplan_peak):
    with memplan_peak("5KiB", no_leak=True):
        torch.zeros(1000)
    assert memplan_peak.bytes == 4000
    assert memplan_peak.stats.peak.by("op")[0].name == "zeros"

def test_above(memplan_peak):
    with memplan_peak(3999):
        torch.zeros(1000)

def test_only_measured(memplan_peak):
    assert memplan_peak.bytes == 0
    with memplan_peak():
        torch.zeros(10)
    with memplan_peak() as same:
        torch.zeros(20)
    assert same.bytes == 80

def test_wrong(memplan_peak):
    with memplan_peak("5 foo"):
        print("the block ran")
"""


def test_a_test_fails_that_needs_more_or_has_no_limit(tmp_path: Path) -> None:
    (tmp_path / "test_program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    assert "2 failed, 2 passed" in done.stdout
    told = "peak live 3.9 KiB is 1 B, 0.0 %, above 3.9 KiB; most at"
    assert told in done.stdout
    # Before the block runs.
    assert "'5 foo' is not a size" in done.stdout
    assert "Captured stdout" not in done.stdout
