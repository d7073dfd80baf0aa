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
"""


def failing(program: str, folder: Path) -> str:
    """What pytest says of tests of which some fail."""
    (folder / "test_program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    return done.stdout


def test_a_test_fails_that_needs_more(tmp_path: Path) -> None:
    said = failing(PROGRAM, tmp_path)
    assert "1 failed, 2 passed" in said
    assert "peak live 3.9 KiB is 1 B, 0.0 %, above 3.9 KiB; most at" in said


WRONG = """\
def test_wrong(memplan_peak):
    with memplan_peak("5 foo"):
        print("the block ran")
"""


def test_a_limit_that_is_none_is_told_before_the_block_runs(tmp_path: Path) -> None:
    said = failing(WRONG, tmp_path)
    assert "'5 foo' is not a size" in said
    assert "Captured stdout" not in said
